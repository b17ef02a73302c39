"""Which experts a token goes to: sigmoid scores, and biases that balance the loads without a loss (DeepSeek-V3,
arXiv 2412.19437, section 2.1.2).
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from attention_residuals.errors import InputError, require_positive
from attention_residuals.ops.compiler import uncompiled


class Routing(NamedTuple):
    """The experts `[n, top_k]` of tokens, 0-based, and the weights of their outputs, float32 or float64."""

    experts: Tensor
    weights: Tensor


class Router(nn.Module):
    """Tokens `[n, width]` to the `top_k` of `experts` whose score + bias is largest.

    A score is the sigmoid of a linear map, in float32 at least. The bias chooses and has no part in the weights, which
    are the scores of the chosen experts over their sum, times `scale`. It is no parameter: see `balance.py`. It is
    float32 whatever the model's type, since its steps are too small for others, and zero at the start.

    Args:
        groups, chosen_groups: with several groups of experts, next to each other and of one size, a token chooses
            within the `chosen_groups` in which the sum of the two largest score + bias is largest.

    Raises:
        InputError: a size below 1; more experts a token than it may choose from; groups that do not divide the
            experts, of fewer than two experts, or fewer than are to be chosen; a scale that is not positive.
    """

    def __init__(
        self, width: int, experts: int, top_k: int, *, scale: float = 1.0, groups: int = 1, chosen_groups: int = 1
    ):
        super().__init__()
        self.width, self.experts, self.top_k, self.scale = width, experts, top_k, scale
        self.groups, self.chosen_groups = groups, chosen_groups
        require_positive(self, "width", "experts", "top_k", "groups", "chosen_groups")
        self._require_fit()
        self.matrix = nn.Linear(width, experts, bias=False)
        self.bias: Tensor
        self.register_buffer("bias", torch.zeros(experts, dtype=torch.float32))
        # No buffer: what counts a step is this process's own, not to be copied between processes or saved.
        self.load: Tensor | None = None

    def forward(self, x: Float[Tensor, "n width"]) -> Routing:
        with torch.autocast(x.device.type, enabled=False):
            kind = torch.promote_types(x.dtype, torch.float32)
            scores = F.linear(x.to(kind), self.matrix.weight.to(kind)).sigmoid()
        experts = self._chosen(scores.detach() + self.bias)
        weights = scores.gather(1, experts)
        total = weights.sum(-1, keepdim=True).clamp_min(torch.finfo(kind).tiny)
        return Routing(experts, weights / total * self.scale)

    def _chosen(self, ranks: Float[Tensor, "n experts"]) -> Int[Tensor, "n top_k"]:
        if self.groups > 1:
            grouped = ranks.unflatten(-1, (self.groups, -1))
            best = grouped.topk(2, dim=-1).values.sum(-1).topk(self.chosen_groups, dim=-1).indices
            outside = torch.ones(grouped.shape[:-1], dtype=torch.bool, device=ranks.device).scatter(1, best, False)
            ranks = grouped.masked_fill(outside.unsqueeze(-1), -math.inf).flatten(-2)
        return ranks.topk(self.top_k, dim=-1).indices

    # A compiler leaves this out of its graph: what it does happens in the backward.
    @uncompiled
    def count_in_backward(self, output: Tensor, load: Int[Tensor, "experts"]) -> None:
        """Count the tokens of each expert when the gradient of `output` comes, so once a training step.

        A forward without a backward, as in evaluation, is not counted. One that is computed again in an activation
        checkpoint is counted once: gradients go through the first one's output.
        """

        def count(_: Tensor) -> None:
            self.load = load if self.load is None else self.load + load

        if output.requires_grad:
            output.register_hook(count)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Router":
        """Every change of type or device comes through here: the type of the bias stays, and a build on the meta
        device, which leaves buffers empty, gives zeros.
        """
        before = self.bias
        super()._apply(fn, recurse)
        device = self.bias.device
        self.bias = torch.zeros_like(before, device=device) if before.is_meta else before.to(device)
        return self

    def _require_fit(self) -> None:
        if not (math.isfinite(self.scale) and self.scale > 0):
            raise InputError(f"scale is {self.scale}; the weights need a positive number, for example 1.0")
        if self.experts % self.groups:
            raise InputError(f"groups is {self.groups}, which does not divide {self.experts} experts; take a divisor")
        if self.groups > 1 and self.experts // self.groups < 2:
            raise InputError(f"groups is {self.groups} for {self.experts} experts; a group needs at least 2 experts")
        if self.chosen_groups > self.groups:
            raise InputError(f"chosen_groups is {self.chosen_groups}, and there are {self.groups} groups; choose fewer")
        choice = self.experts // self.groups * self.chosen_groups
        if self.top_k > choice:
            raise InputError(
                f"top_k is {self.top_k}, and a token has {choice} experts to choose from; take at most those"
            )
