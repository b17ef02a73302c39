"""The loss that models are trained and judged by."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from attention_residuals.models import Decoder


def token_losses(model: Decoder, batch: Int[Tensor, "sequences time"]) -> Float[Tensor, "sequences predicted"]:
    """Cross-entropy in nats of each token given those before it, in float32 at least."""
    return losses_of_logits(model(batch[:, :-1]), batch[:, 1:])


def losses_of_logits(
    logits: Float[Tensor, "sequences time vocab"], targets: Int[Tensor, "sequences time"]
) -> Float[Tensor, "sequences time"]:
    """Cross-entropy in nats of each target, in float32 at least."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    return losses.view(targets.shape)
