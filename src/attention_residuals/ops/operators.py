"""The operators every read is made of, as torch sees them: schemas, plain implementations and shapes.

`mix`, `mix_backward` and `row_products` know nothing of autograd; `read.py` and `group.py` put them together. The plain
implementations here serve every device and type; `native.py` puts kernels in front of them.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from attention_residuals.ops import loops
from attention_residuals.ops.checks import exact_precision

LIBRARY = torch.library.Library("attention_residuals", "FRAGMENT")

LIBRARY.define(
    "mix(Tensor[] sources, Tensor folded, Tensor[] part, float eps, float gain, bool wide)"
    " -> (Tensor[] mixed, Tensor maximum, Tensor total)"
)
LIBRARY.define(
    "mix_backward(Tensor[] sources, Tensor?[] running, Tensor folded, Tensor[] grads, Tensor[] maxima, Tensor[] totals,"
    " Tensor[] deltas, float[] gains, float eps) -> (Tensor[] grads, Tensor grad_folded)"
)
LIBRARY.define("row_products(Tensor grad, Tensor mixed) -> Tensor")


def mix(
    sources: Sequence[Tensor], folded: Tensor, part: Sequence[Tensor], eps: float, gain: float, wide: bool
) -> tuple[list[Tensor], Tensor, Tensor]:
    """R reads of N sources: mixtures, and what a later operator needs to go on from them or to differentiate them.

    Args:
        sources: N >= 1 tensors `[..., D]`.
        folded: `[R, D]` in the compute type, queries times key weights.
        part: empty, or mixture `[..., D]`, maximum `[1, T]` and total `[1, T]` of the one query over other sources, all
            in the compute type, made with gain 1: the read goes on from there.
        wide: mixtures stay in the compute type instead of being rounded to that of the sources.

    Returns:
        R mixtures `[..., D]`, contiguous, times `gain`; the maximum of the logits `[R, T]`; and the total of
        `exp(logit - maximum)` `[R, T]`. Two numbers, since one log-sum-exp loses digits when logits are large.
    """
    first = sources[0]
    with exact_precision(first):
        logits, _ = loops.score(sources, folded, eps)
        maximum = logits.amax(0)
        if part:
            maximum = torch.maximum(maximum, part[1])
        exponentials = torch.exp(logits - maximum)
        total = exponentials.sum(0)
        mixed = loops.mix(sources, exponentials)
        if part:
            kept = part[2] * torch.exp(part[1] - maximum)
            total += kept
            mixed += loops.rows(part[0]) * kept.unsqueeze(-1)
        mixed *= (gain / total).unsqueeze(-1)
        kind = mixed.dtype if wide else first.dtype
        return [row.to(kind, copy=True).view(first.shape) for row in mixed], maximum, total


def mix_backward(
    sources: Sequence[Tensor],
    running: Sequence[Tensor | None],
    folded: Tensor,
    grads: Sequence[Tensor],
    maxima: Sequence[Tensor],
    totals: Sequence[Tensor],
    deltas: Sequence[Tensor],
    gains: Sequence[float],
    eps: float,
) -> tuple[list[Tensor], Tensor]:
    """Gradients of N sources and of `folded` from R reads that had these sources among theirs.

    With w the weights of a read over *all* its sources and g its `grad`, the gradient of a logit is
    `gain w (<g, v> - delta)`, so what a read knows of its other sources is its maximum, its total and its delta.

    Args:
        running: empty, or for each source a gradient from elsewhere, to be added before the one rounding.
        grads: R gradients `[..., D]` of the mixtures.
        maxima, totals: R tensors of T numbers, over all sources of the read.
        deltas: R tensors of T numbers, `<grad, mixture> / gain`; empty if `sources` are all there were.
    """
    with exact_precision(folded):
        logits, rstd = loops.score(sources, folded, eps)
        weights = torch.exp(logits - torch.stack([one.reshape(-1) for one in maxima]))
        weights /= torch.stack([one.reshape(-1) for one in totals])
        grad_rows = torch.stack([loops.rows(grad) for grad in grads])
        grad = loops.weight_gradients(sources, grad_rows)
        delta = torch.stack([one.reshape(-1) for one in deltas]) if deltas else (weights * grad).sum(0)
        scaled = weights * folded.new_tensor(gains).view(-1, 1)
        return loops.input_gradients(
            sources, folded, (logits, rstd), scaled, scaled * (grad - delta), grad_rows, running
        )


def row_products(grad: Tensor, mixed: Tensor) -> Tensor:
    """Inner products `[T]` of the rows of two tensors `[..., D]`, in the type of `mixed`, the compute type."""
    with exact_precision(mixed):
        return torch.linalg.vecdot(loops.rows(grad), loops.rows(mixed))


def _mix_shapes(
    sources: Sequence[Tensor], folded: Tensor, part: Sequence[Tensor], eps: float, gain: float, wide: bool
) -> tuple[list[Tensor], Tensor, Tensor]:
    first, queries = sources[0], folded.shape[0]
    like = folded if wide else first
    tokens = first.numel() // first.shape[-1]
    mixed = [like.new_empty(first.shape) for _ in range(queries)]
    return mixed, folded.new_empty(queries, tokens), folded.new_empty(queries, tokens)


def _mix_backward_shapes(
    sources: Sequence[Tensor], running: Sequence[Tensor | None], folded: Tensor, *_: object
) -> tuple[list[Tensor], Tensor]:
    return [source.new_empty(source.shape) for source in sources], folded.new_empty(folded.shape)


def _row_products_shapes(grad: Tensor, mixed: Tensor) -> Tensor:
    return mixed.new_empty(grad.numel() // grad.shape[-1])


for _plain, _shapes in (
    (mix, _mix_shapes),
    (mix_backward, _mix_backward_shapes),
    (row_products, _row_products_shapes),
):
    LIBRARY.impl(_plain.__name__, _plain, "CompositeExplicitAutograd")
    torch.library.register_fake(f"attention_residuals::{_plain.__name__}", _shapes, lib=LIBRARY)
