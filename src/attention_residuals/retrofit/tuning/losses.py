"""The loss of a causal language model of `transformers` on windows of tokens."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attention_residuals.retrofit.measurement import evaluating
from attention_residuals.train.losses import losses_of_logits

CHUNK_TOKENS = 1024
"""Tokens evaluated at once, so that memory does not grow with how many are asked for."""


def next_token_losses(
    model: Any, windows: Int[Tensor, "windows time"], prefix: Sequence[int] = ()
) -> Float[Tensor, "windows predicted"]:
    """Cross-entropy in nats of each token of a window given those before it, and given `prefix` in front of all."""
    inputs = windows[:, :-1]
    if prefix:
        front = torch.tensor(list(prefix), device=windows.device).expand(len(windows), -1)
        inputs = torch.cat([front, inputs], 1)
    logits = model(input_ids=inputs, use_cache=False).logits[:, len(prefix) :]
    return losses_of_logits(logits, windows[:, 1:])


@torch.no_grad()
def validation_losses(
    model: Any, windows: Int[Tensor, "windows time"], prefix: Sequence[int] = ()
) -> Float[Tensor, "windows"]:
    """Mean loss of each window, in evaluation mode, in float64 on the CPU."""
    at_once = max(1, CHUNK_TOKENS // (windows.shape[1] - 1))
    with evaluating(model):
        rows = [
            next_token_losses(model, part.to(model.device), prefix).double().mean(1).cpu()
            for part in windows.split(at_once)
        ]
    return torch.cat(rows)
