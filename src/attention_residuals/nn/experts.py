"""A mixture of experts (DeepSeekMoE, arXiv 2401.06066): one sublayer, tensor in, tensor out."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from attention_residuals.errors import InputError, is_count, require_positive
from attention_residuals.nn.mlp import SwiGLU
from attention_residuals.nn.router import Router
from attention_residuals.ops.compiler import uncompiled


class ExpertLinear(nn.Module):
    """A linear map of each expert, in one tensor `[experts, outputs, inputs]`: a stack of matrices.

    Takes tokens sorted by expert and how many each has, `[n, inputs]` and `[experts]`, to `[n, outputs]`.
    """

    def __init__(self, experts: int, inputs: int, outputs: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(experts, outputs, inputs))
        nn.init.normal_(self.weight, std=inputs**-0.5)

    def forward(self, x: Float[Tensor, "n inputs"], load: Int[Tensor, "experts"]) -> Float[Tensor, "n outputs"]:
        return grouped_product(x, self.weight, load)


class ExpertOutputLinear(ExpertLinear):
    """One whose results are written to the residual stream, as `OutputLinear`."""


class MixtureOfExperts(nn.Module):
    """`[..., width] -> [..., width]`: SwiGLU experts, of which each token goes through `top_k` and the shared ones.

    The input is already normed. No token is ever dropped, however uneven the loads.

    Args:
        width: D of the stream.
        hidden: units of an expert.
        experts, top_k: how many there are to choose from, and how many a token chooses.
        shared: experts that every token goes through, as one SwiGLU of `shared x hidden` units; 0 for none.
        scale: factor on the weights of the chosen, which sum to 1.
        groups, chosen_groups: as in `Router`.

    Raises:
        InputError: a size below 1, or what a `Router` refuses.
    """

    def __init__(
        self,
        width: int,
        hidden: int,
        experts: int,
        top_k: int,
        *,
        shared: int = 1,
        scale: float = 1.0,
        groups: int = 1,
        chosen_groups: int = 1,
    ):
        super().__init__()
        self.hidden = hidden
        require_positive(self, "hidden")
        if shared != 0 and not is_count(shared):
            raise InputError(f"shared is {shared}; it must be a whole number of experts, 0 for none")
        self.router = Router(width, experts, top_k, scale=scale, groups=groups, chosen_groups=chosen_groups)
        self.gate = ExpertLinear(experts, width, hidden)
        self.up = ExpertLinear(experts, width, hidden)
        self.output = ExpertOutputLinear(experts, hidden, width)
        self.shared = SwiGLU(width, shared * hidden) if shared else None

    def forward(self, x: Float[Tensor, "*tokens width"]) -> Float[Tensor, "*tokens width"]:
        tokens = x.flatten(0, -2)
        experts, weights = self.router(tokens)
        load = _count(experts, self.router.experts)
        order = experts.flatten().argsort(stable=True)  # places of `experts`, those of the first expert first
        outputs = self.through_experts(tokens[order // self.router.top_k], load)
        # Back to the order of the tokens rather than added to them one by one: sums are the same from run to run.
        each = outputs[order.argsort()].unflatten(0, experts.shape)
        mixed = (weights.to(each.dtype).unsqueeze(1) @ each).reshape(x.shape)
        output = mixed if self.shared is None else mixed + self.shared(x)
        self.router.count_in_backward(output, load)
        return output

    def through_experts(self, rows: Float[Tensor, "n width"], load: Int[Tensor, "experts"]) -> Float[Tensor, "n width"]:
        """What the experts make of rows that are sorted by expert, of which each has `load`."""
        hidden = F.silu(self.gate(rows, load)) * self.up(rows, load)
        return self.output(hidden, load)


def grouped_product(
    x: Float[Tensor, "n inputs"], weight: Float[Tensor, "experts outputs inputs"], load: Int[Tensor, "experts"]
) -> Float[Tensor, "n outputs"]:
    """Rows of `x`, sorted by expert, times the matrix of their expert, which has `load` of them.

    One product an expert that has tokens, or torch's grouped kernel where there is one. A matrix without tokens has a
    gradient of zeros, even if there are no rows at all.
    """
    device = x.device.type
    if torch.is_autocast_enabled(device):  # a grouped product is none of the operations that it knows
        kind = torch.get_autocast_dtype(device)
        x, weight = x.to(kind), weight.to(kind)
    if len(x) == 0:
        return F.linear(x, weight[0])
    if (grouped := _kernel(x, weight)) is not None:
        return grouped(x, weight.mT, offs=load.cumsum(0).to(torch.int32))
    return _one_by_one(x, weight, load)


# Left out of compiled graphs: they would be compiled anew for every load.
@uncompiled
def _one_by_one(x: Tensor, weight: Tensor, load: Tensor) -> Tensor:
    counts = load.tolist()
    # Unbound once: to index it would give the whole stack a gradient for every expert.
    rows = zip(x.split(counts), weight.unbind(), counts, strict=True)
    return torch.cat([F.linear(own, matrix) for own, matrix, count in rows if count])


def _kernel(x: Tensor, weight: Tensor) -> Callable[..., Tensor] | None:
    """Torch's grouped product, if it has a kernel for these: bfloat16 on CUDA, with rows that begin at 16 bytes."""
    aligned = all(size % 8 == 0 for size in weight.shape[1:])
    fits = x.is_cuda and x.dtype == weight.dtype == torch.bfloat16 and aligned
    return getattr(F, "grouped_mm", None) if fits else None  # not in torch 2.9


def _count(experts: Int[Tensor, "n top_k"], kinds: int) -> Int[Tensor, "experts"]:
    """How many of `experts` are each of `kinds`. Unlike `bincount` it does not wait for the device."""
    chosen = experts.flatten()
    return chosen.new_zeros(kinds).scatter_add_(0, chosen, torch.ones_like(chosen))
