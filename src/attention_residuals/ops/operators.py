"""The operators every read is made of, as torch sees them: schemas, plain implementations and shapes.

They know nothing of autograd; `read.py` and `group.py` put them together. The plain implementations here serve every
device and type; `native.py` puts kernels in front of them.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_residuals.ops import loops
from attention_residuals.ops.checks import exact_precision
from attention_residuals.ops.splitting import join, split

LIBRARY = torch.library.Library("attention_residuals", "FRAGMENT")

LIBRARY.define(
    "mix(Tensor[] sources, Tensor folded, float eps, float gain, bool wide, bool in_two=False)"
    " -> (Tensor[] mixed, Tensor maximum, Tensor total)"
)
LIBRARY.define(
    "extend(Tensor[] local, Tensor? partial_sum, Tensor folded, Tensor[] part, Tensor? norm, float eps, float norm_eps,"
    " float gain, ScalarType dtype)"
    " -> (Tensor mixed, Tensor maximum, Tensor total, Tensor normed, Tensor rest, Tensor source)"
)
LIBRARY.define(
    "advance(Tensor output, Tensor partial_sum, Tensor folded, int r, Tensor values, Tensor maxima, Tensor totals,"
    " Tensor norm, float eps, float norm_eps, float gain) -> (Tensor normed, Tensor source)"
)
LIBRARY.define(
    "mix_backward(Tensor[] sources, Tensor?[] running, Tensor folded, Tensor[] grads, Tensor[] maxima, Tensor[] totals,"
    " Tensor?[] deltas, Tensor?[] mixtures, float[] gains, float eps)"
    " -> (Tensor[] grads, Tensor grad_folded, Tensor[] deltas)"
)
LIBRARY.define(
    "norm_backward(Tensor grad, Tensor mixed, Tensor weight, float eps, Tensor? rest=None)"
    " -> (Tensor grad_mixed, Tensor products, Tensor grad_weight)"
)
LIBRARY.define("fold_rows(Tensor[] queries, Tensor[] key_weights, ScalarType dtype) -> Tensor")
LIBRARY.define("row_products(Tensor grad, Tensor mixed) -> Tensor")


def mix(
    sources: Sequence[Tensor], folded: Tensor, eps: float, gain: float, wide: bool, in_two: bool = False
) -> tuple[list[Tensor], Tensor, Tensor]:
    """R reads of N sources: mixtures, and what a later operator needs to go on from them or to differentiate them.

    Args:
        sources: N >= 1 tensors `[..., D]`.
        folded: `[R, D]` in the compute type, queries times key weights.
        wide: mixtures stay in the compute type instead of being rounded to that of the sources.
        in_two: wide ones of sources in a narrow type are split; see `splitting.py`.

    Returns:
        R mixtures `[..., D]`, contiguous, times `gain`, and then R rests if they are split; the maximum of the logits
        `[R, T]`; and the total of `exp(logit - maximum)` `[R, T]`. Two numbers, since one log-sum-exp loses digits
        when logits are large.
    """
    first = sources[0]
    with exact_precision(first):
        logits, _ = loops.score(sources, folded, eps)
        maximum = logits.amax(0)
        exponentials = torch.exp(logits - maximum)
        total = exponentials.sum(0)
        mixed = loops.mix(sources, exponentials)
        mixed *= (gain / total).unsqueeze(-1)
        mixed = [row.view(first.shape) for row in mixed]
        if in_two:
            rounded, rests = zip(*(split(row, first.dtype) for row in mixed), strict=True)
            return [*rounded, *rests], maximum, total
        kind = folded.dtype if wide else first.dtype
        return [row.to(kind, copy=True) for row in mixed], maximum, total


def extend(
    local: Sequence[Tensor],
    partial_sum: Tensor | None,
    folded: Tensor,
    part: Sequence[Tensor],
    norm: Tensor | None,
    eps: float,
    norm_eps: float,
    gain: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """One read, gone on with from other sources to the `local` ones, and the pre-norm behind it.

    Args:
        local: N >= 0 tensors `[..., D]`.
        partial_sum: `[..., D]`, or None. With it `local` is one tensor, and the source is the sum of both.
        folded: `[1, D]` in the compute type, the query times its key weight.
        part: mixture `[..., D]` with gain 1, maximum `[1, T]` and total `[1, T]` over the other sources, from `mix`;
            and the rest of the mixture if it is split.
        norm: weight `[D]` of an RMSNorm of the mixture, in the compute type, if one follows.
        dtype: type of the sources.

    Returns:
        The mixture of all sources `[..., D]` in the compute type, times `gain`; the statistics as from `mix`; its
        RMSNorm `[..., D]` in `dtype`, taken before any rounding; the rest of the mixture, which is split where that of
        the part is; and the sum. What does not exist is an empty tensor, and so is a mixture that is the part once
        more: without sources, and with gain 1.
    """
    values, maximum, total, *rests = part
    if rests:
        values = join(values, *rests)
    source = values.new_empty(0, dtype=dtype)
    with exact_precision(values):
        if partial_sum is not None:
            source = (partial_sum + local[0]).contiguous()
            local = [source]
        if local:
            logits, _ = loops.score(local, folded, eps)
            highest = torch.maximum(logits.amax(0), maximum)
            exponentials = torch.exp(logits - highest)
            kept = total * torch.exp(maximum - highest)
            maximum, total = highest, exponentials.sum(0) + kept
            mixed = loops.mix(local, exponentials).view(values.shape)
            mixed += values * kept.view(*values.shape[:-1], 1)
            mixed *= (gain / total).view(*values.shape[:-1], 1)
        else:
            mixed, maximum, total = values * gain, maximum.clone(), total.clone()
        normed = mixed.new_empty(0, dtype=dtype)
        if norm is not None:
            normed = F.rms_norm(mixed, norm.shape, norm, norm_eps).to(dtype, copy=True)
        rest = mixed.new_empty(0, dtype=torch.int8)
        if not local and gain == 1.0:
            mixed = part[0].new_empty(0)
        elif rests:
            mixed, rest = split(mixed, dtype)
        return mixed, maximum, total, normed, rest, source


def advance(
    output: Tensor,
    partial_sum: Tensor,
    folded: Tensor,
    r: int,
    values: Tensor,
    maxima: Tensor,
    totals: Tensor,
    norm: Tensor,
    eps: float,
    norm_eps: float,
    gain: float,
) -> tuple[Tensor, Tensor]:
    """`extend` where nothing is kept: with one token, what is passed in and out takes longer than the read itself.

    Args:
        output, partial_sum: `[..., D]`, the one source being their sum.
        folded: `[R, D]` of all reads of the group; this is read `r`.
        values, maxima, totals: of the first phase, read `r`'s mixture `[..., D]` and the statistics `[R, T]` of all.
        norm, eps, norm_eps, gain: as there.

    Returns:
        The normed mixture and the sum, in the type of `output`.
    """
    own = slice(r, r + 1)
    part = [values, maxima[own], totals[own]]
    _, _, _, normed, _, source = torch.ops.attention_residuals.extend(
        [output], partial_sum, folded[own], part, norm, eps, norm_eps, gain, output.dtype
    )
    return normed, source


def mix_backward(
    sources: Sequence[Tensor],
    running: Sequence[Tensor | None],
    folded: Tensor,
    grads: Sequence[Tensor],
    maxima: Sequence[Tensor],
    totals: Sequence[Tensor],
    deltas: Sequence[Tensor | None],
    mixtures: Sequence[Tensor | None],
    gains: Sequence[float],
    eps: float,
) -> tuple[list[Tensor], Tensor, list[Tensor]]:
    """Gradients of N sources and of `folded` from R reads that had these sources among theirs.

    With w the weights of a read over *all* its sources and g its `grad`, the gradient of a logit is
    `gain w (<g, v> - delta)`, so what a read knows of its other sources is its maximum, its total and its delta.

    Args:
        running: empty, or for each source a gradient from elsewhere, to be added before the one rounding.
        grads: R gradients `[..., D]` of the mixtures, all in the type of the sources or all in the compute type.
        maxima, totals: R tensors of T numbers, over all sources of the read.
        deltas: R tensors of T numbers, `<grad, mixture> / gain`; empty if `sources` are all there were.
        mixtures: for each delta that is None the mixture `[..., D]` in the compute type, contiguous; or empty. Behind
            all of them their rests if they are split.

    Returns:
        N gradients `[..., D]`; that of `folded`; and the deltas `[T]` of the reads that came with a mixture, in order.
    """
    rests = mixtures[len(grads) :]
    if rests:
        halves = zip(mixtures, rests, strict=False)
        mixtures = [None if one is None or rest is None else join(one, rest) for one, rest in halves]
    made = [
        row_products(grad, mixture) / gain
        for grad, mixture, gain in zip(grads, mixtures, gains, strict=False)
        if mixture is not None
    ]
    missing = iter(made)
    deltas = [next(missing) if delta is None else delta for delta in deltas]
    with exact_precision(folded):
        logits, rstd = loops.score(sources, folded, eps)
        weights = torch.exp(logits - torch.stack([one.reshape(-1) for one in maxima]))
        weights /= torch.stack([one.reshape(-1) for one in totals])
        grad_rows = torch.stack([loops.rows(grad) for grad in grads])
        grad = loops.weight_gradients(sources, grad_rows)
        delta = torch.stack([one.reshape(-1) for one in deltas]) if deltas else (weights * grad).sum(0)
        scaled = weights * folded.new_tensor(gains).view(-1, 1)
        results, grad_folded = loops.input_gradients(
            sources, folded, (logits, rstd), scaled, scaled * (grad - delta), grad_rows, running
        )
        return results, grad_folded, made


def norm_backward(
    grad: Tensor, mixed: Tensor, weight: Tensor, eps: float, rest: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """From the gradient `[..., D]` of an RMSNorm of `mixed` with `weight [D]`, both in the compute type.

    Args:
        rest: of `mixed`, if that is split.

    Returns:
        The gradient of `mixed`, in the type of `grad`; its inner products `[T]` with `mixed`; the gradient of `weight`.
    """
    if rest is not None:
        mixed = join(mixed, rest)
    with exact_precision(mixed):
        values, incoming = loops.rows(mixed), loops.rows(grad)
        rstd = torch.rsqrt(values.square().mean(-1, keepdim=True) + eps)
        scaled = incoming * rstd
        along = torch.linalg.vecdot(scaled * weight, values).unsqueeze(-1) * rstd.square() / values.shape[-1]
        grad_mixed = (scaled * weight - values * along).to(grad.dtype).contiguous().view(grad.shape)
        return grad_mixed, row_products(grad_mixed, mixed), (scaled * values).sum(0)


def row_products(grad: Tensor, mixed: Tensor) -> Tensor:
    """Inner products `[T]` of the rows of two tensors `[..., D]`, in the type of `mixed`, the compute type."""
    with exact_precision(mixed):
        return torch.linalg.vecdot(loops.rows(grad), loops.rows(mixed))


def _mix_shapes(
    sources: Sequence[Tensor], folded: Tensor, eps: float, gain: float, wide: bool, in_two: bool = False
) -> tuple[list[Tensor], Tensor, Tensor]:
    first, queries = sources[0], folded.shape[0]
    kind = folded.dtype if wide and not in_two else first.dtype
    tokens = first.numel() // first.shape[-1]
    mixed = [first.new_empty(first.shape, dtype=kind) for _ in range(queries)]
    if in_two:
        mixed += [first.new_empty(first.shape, dtype=torch.int8) for _ in range(queries)]
    return mixed, folded.new_empty(queries, tokens), folded.new_empty(queries, tokens)


def _extend_shapes(
    local: Sequence[Tensor],
    partial_sum: Tensor | None,
    folded: Tensor,
    part: Sequence[Tensor],
    norm: Tensor | None,
    eps: float,
    norm_eps: float,
    gain: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    values, maximum, total, *rests = part
    normed = values.new_empty(0 if norm is None else values.shape, dtype=dtype)
    has_mixed = bool(local) or gain != 1.0
    mixed = values.new_empty(values.shape if has_mixed else 0)
    rest = values.new_empty(values.shape if has_mixed and rests else 0, dtype=torch.int8)
    source = values.new_empty(0 if partial_sum is None else values.shape, dtype=dtype)
    return mixed, torch.empty_like(maximum), torch.empty_like(total), normed, rest, source


def _advance_shapes(output: Tensor, partial_sum: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    return output.new_empty(output.shape), output.new_empty(output.shape)


def _mix_backward_shapes(
    sources: Sequence[Tensor],
    running: Sequence[Tensor | None],
    folded: Tensor,
    grads: Sequence[Tensor],
    maxima: Sequence[Tensor],
    totals: Sequence[Tensor],
    deltas: Sequence[Tensor | None],
    mixtures: Sequence[Tensor | None],
    gains: Sequence[float],
    eps: float,
) -> tuple[list[Tensor], Tensor, list[Tensor]]:
    mixtures = mixtures[: len(grads)]
    made = [folded.new_empty(one.numel() // one.shape[-1]) for one in mixtures if one is not None]
    return [source.new_empty(source.shape) for source in sources], folded.new_empty(folded.shape), made


def _norm_backward_shapes(
    grad: Tensor, mixed: Tensor, weight: Tensor, eps: float, rest: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    return grad.new_empty(grad.shape), _row_products_shapes(grad, weight), weight.new_empty(weight.shape)


def _row_products_shapes(grad: Tensor, mixed: Tensor) -> Tensor:
    return mixed.new_empty(grad.numel() // grad.shape[-1])


def fold_rows(queries: Sequence[Tensor], key_weights: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """Queries times key weights, R vectors `[D]` each, as rows `[R, D]` of type `dtype`; without gradients."""
    return torch.stack(list(queries)).to(dtype) * torch.stack(list(key_weights)).to(dtype)


def _fold_rows_shapes(queries: Sequence[Tensor], key_weights: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    return queries[0].new_empty((len(queries), *queries[0].shape), dtype=dtype)


for _plain, _shapes in (
    (mix, _mix_shapes),
    (extend, _extend_shapes),
    (advance, _advance_shapes),
    (mix_backward, _mix_backward_shapes),
    (norm_backward, _norm_backward_shapes),
    (fold_rows, _fold_rows_shapes),
    (row_products, _row_products_shapes),
):
    LIBRARY.impl(_plain.__name__, _plain, "CompositeExplicitAutograd")
    torch.library.register_fake(f"attention_residuals::{_plain.__name__}", _shapes, lib=LIBRARY)
