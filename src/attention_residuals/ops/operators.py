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
from attention_residuals.ops.halves import from_half, to_half

LIBRARY = torch.library.Library("attention_residuals", "FRAGMENT")

LIBRARY.define(
    "mix(Tensor[] sources, Tensor folded, float eps, float gain, bool wide)"
    " -> (Tensor[] mixed, Tensor maximum, Tensor total)"
)
LIBRARY.define(
    "mix_halves(Tensor[] sources, Tensor folded, float eps, int whole)"
    " -> (Tensor[] mixed, Tensor maximum, Tensor total, Tensor scale)"
)
LIBRARY.define(
    "extend(Tensor[] local, Tensor? partial_sum, Tensor folded, Tensor[] part, Tensor? norm, float eps, float norm_eps,"
    " float gain, ScalarType dtype)"
    " -> (Tensor mixed, Tensor maximum, Tensor total, Tensor normed, Tensor source)"
)
LIBRARY.define(
    "extend_halves(Tensor[] local, Tensor? partial_sum, Tensor folded, Tensor[] part, Tensor? norm, float eps,"
    " float norm_eps, float gain, ScalarType dtype)"
    " -> (Tensor result, Tensor maximum, Tensor total, Tensor share, Tensor source)"
)
LIBRARY.define(
    "advance(Tensor output, Tensor partial_sum, Tensor folded, int r, Tensor values, Tensor maxima, Tensor totals,"
    " Tensor norm, float eps, float norm_eps, float gain) -> (Tensor normed, Tensor source)"
)
LIBRARY.define(
    "mix_backward(Tensor[] sources, Tensor?[] running, Tensor folded, Tensor[] grads, Tensor[] maxima, Tensor[] totals,"
    " Tensor?[] deltas, Tensor?[] mixtures, Tensor?[] shares, Tensor?[] carried, float[] gains, float eps,"
    " bool elsewhere=False) -> (Tensor[] grads, Tensor sums, Tensor[] made)"
)
LIBRARY.define(
    "norm_backward(Tensor grad, Tensor mixed, Tensor weight, float eps)"
    " -> (Tensor grad_mixed, Tensor products, Tensor grad_weight)"
)
LIBRARY.define(
    "extend_halves_backward(Tensor grad, Tensor[] local, Tensor folded, Tensor half, Tensor share, Tensor maximum,"
    " Tensor total, Tensor? norm, float eps, float norm_eps, float gain)"
    " -> (Tensor grad_mixed, Tensor delta, Tensor beside, Tensor grad_weight)"
)
LIBRARY.define("fold_rows(Tensor[] queries, Tensor[] key_weights, ScalarType dtype) -> Tensor")
LIBRARY.define("row_products(Tensor grad, Tensor mixed) -> Tensor")


def mix(
    sources: Sequence[Tensor], folded: Tensor, eps: float, gain: float, wide: bool
) -> tuple[list[Tensor], Tensor, Tensor]:
    """R reads of N sources: mixtures, and what a later operator needs to go on from them or to differentiate them.

    Args:
        sources: N >= 1 tensors `[..., D]`.
        folded: `[R, D]` in the compute type, queries times key weights.
        wide: mixtures stay in the compute type instead of being rounded to that of the sources.

    Returns:
        R mixtures `[..., D]`, contiguous, times `gain`; the maximum of the logits `[R, T]`; and the total of
        `exp(logit - maximum)` `[R, T]`. Two numbers, since one log-sum-exp loses digits when logits are large.
    """
    first = sources[0]
    with exact_precision(first):
        logits, _ = loops.score(sources, folded, eps)
        maximum = logits.amax(0)
        exponentials = torch.exp(logits - maximum)
        total = exponentials.sum(0)
        mixed = loops.mix(sources, exponentials)
        mixed *= (gain / total).unsqueeze(-1)
        kind = folded.dtype if wide else first.dtype
        return [row.view(first.shape).to(kind, copy=True) for row in mixed], maximum, total


def mix_halves(
    sources: Sequence[Tensor], folded: Tensor, eps: float, whole: int
) -> tuple[list[Tensor], Tensor, Tensor, Tensor]:
    """`mix` of sources in a narrow type, with gain 1, for reads that go on from there.

    Args:
        whole: the read that has no other sources, or -1: its mixture is rounded once more, to the type of the sources.

    Returns:
        R mixtures `[..., D]` as in `halves.py`; the statistics; and the powers of two `[R, T]`.
    """
    wide, maximum, total = torch.ops.attention_residuals.mix(sources, folded, eps, 1.0, True)
    halves = [to_half(one) for one in wide]
    mixed = [half for half, _ in halves]
    if whole >= 0:
        mixed[whole] = from_half(*halves[whole]).to(sources[0].dtype)
    return mixed, maximum, total, torch.stack([scale for _, scale in halves])


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
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """One read, gone on with from other sources to the `local` ones, and the pre-norm behind it.

    Args:
        local: N >= 0 tensors `[..., D]`.
        partial_sum: `[..., D]`, or None. With it `local` is one tensor, and the source is the sum of both.
        folded: `[1, D]` in the compute type, the query times its key weight.
        part: mixture `[..., D]` with gain 1, maximum `[1, T]` and total `[1, T]` over the other sources, from `mix`.
        norm: weight `[D]` of an RMSNorm of the mixture, in the compute type, if one follows.
        dtype: type of the sources.

    Returns:
        The mixture of all sources `[..., D]` in the compute type, times `gain`; the statistics as from `mix`; its
        RMSNorm `[..., D]` in `dtype`, taken before any rounding; and the sum. What does not exist is an empty tensor,
        and so is a mixture that is the part once more: without sources, and with gain 1.
    """
    values, maximum, total = part
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
        if not local and gain == 1.0:
            mixed = values.new_empty(0)
        return mixed, maximum, total, normed, source


def extend_halves(
    local: Sequence[Tensor],
    partial_sum: Tensor | None,
    folded: Tensor,
    part: Sequence[Tensor],
    norm: Tensor | None,
    eps: float,
    norm_eps: float,
    gain: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """`extend` from a part of `mix_halves`, whose powers of two `[1, T]` come last in it.

    Returns:
        The normed mixture, or without `norm` the mixture, `[..., D]` in `dtype`; the statistics; the share `[1, T]` of
        the part's numbers in the mixture before `gain`; and the sum.
    """
    half, maximum, total, scale = part
    values = from_half(half, scale)
    mixed, highest, whole, normed, source = torch.ops.attention_residuals.extend(
        local, partial_sum, folded, [values, maximum, total], norm, eps, norm_eps, gain, dtype
    )
    share = scale * torch.exp(maximum - highest) * total / whole
    if norm is None:
        normed = (mixed if local or gain != 1.0 else values).to(dtype)
    return normed, highest, whole, share, source


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
    _, _, _, normed, source = torch.ops.attention_residuals.extend(
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
    shares: Sequence[Tensor | None],
    carried: Sequence[Tensor | None],
    gains: Sequence[float],
    eps: float,
    elsewhere: bool = False,
) -> tuple[list[Tensor], Tensor, list[Tensor]]:
    """Gradients of N sources and of `folded` from R reads that had these sources among theirs.

    With w the weights of a read over *all* its sources, g its `grad` and its delta `sum w <g, v>`, the gradient of a
    logit is `gain w (<g, v> - delta)`: what a read knows of its other sources is its maximum, its total and its delta.

    Args:
        running: empty, or for each source a gradient from elsewhere, to be added before the one rounding.
        grads: R gradients `[..., D]` of the mixtures, all in the type of the sources or all in the compute type.
        maxima, totals: R tensors of T numbers, over all sources of the read.
        deltas: R tensors of T numbers, or None where `sources` are all there were; empty if that is so for all reads.
        mixtures: empty, or for each delta that is None the mixture `[..., D]` in the compute type, contiguous and times
            the gain, to make it of.
        shares: empty, or with each of `mixtures` that it is a part in float16 instead, of the sources that are not at
            hand, and how much of it is in the mixture: T numbers.
        carried: empty, or for each read what `sums` had for it in an earlier call with other sources.
        elsewhere: `deltas` leave out the sources at hand, and None is 0.

    Returns:
        N gradients `[..., D]`; sums `[P, R, D]`, P as large as the implementation likes, whose sum over P is the
        gradient of `folded`, `carried` included; and for the reads that came with a mixture, in order, the delta `[T]`,
        with a part the share of the sources at hand in it.
    """
    with exact_precision(folded):
        logits, rstd = loops.score(sources, folded, eps)
        weights = torch.exp(logits - torch.stack([one.reshape(-1) for one in maxima]))
        weights /= torch.stack([one.reshape(-1) for one in totals])
        grad_rows = torch.stack([loops.rows(grad) for grad in grads])
        grad = loops.weight_gradients(sources, grad_rows)
        own, made = (weights * grad).sum(0), []
        delta = own.clone()
        for r, given in enumerate(deltas):
            if given is not None:
                delta[r] = own[r] + given.reshape(-1) if elsewhere else given.reshape(-1)
        for r, mixture in enumerate(mixtures):
            if mixture is None:
                continue
            if shares:
                delta[r] += row_products(grads[r], mixture.to(folded.dtype)) * _numbers(shares[r])
            else:
                delta[r] = row_products(grads[r], mixture) / gains[r]
            made.append(own[r].clone() if shares else delta[r].clone())
        scaled = weights * folded.new_tensor(gains).view(-1, 1)
        results, grad_folded = loops.input_gradients(
            sources, folded, (logits, rstd), scaled, scaled * (grad - delta), grad_rows, running
        )
        for sums, earlier in zip(grad_folded, carried, strict=False):
            if earlier is not None:
                sums += earlier.sum(0)
        return results, grad_folded.unsqueeze(0), made


def _numbers(share: Tensor | None) -> Tensor:
    assert share is not None, "a part without its share"
    return share.reshape(-1)


def norm_backward(grad: Tensor, mixed: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """From the gradient `[..., D]` of an RMSNorm of `mixed` with `weight [D]`, both in the compute type.

    Returns:
        The gradient of `mixed`, in the type of `grad`; its inner products `[T]` with `mixed`; the gradient of `weight`.
    """
    with exact_precision(mixed):
        values, incoming = loops.rows(mixed), loops.rows(grad)
        rstd = torch.rsqrt(values.square().mean(-1, keepdim=True) + eps)
        scaled = incoming * rstd
        along = torch.linalg.vecdot(scaled * weight, values).unsqueeze(-1) * rstd.square() / values.shape[-1]
        grad_mixed = (scaled * weight - values * along).to(grad.dtype).contiguous().view(grad.shape)
        return grad_mixed, row_products(grad_mixed, mixed), (scaled * values).sum(0)


def extend_halves_backward(
    grad: Tensor,
    local: Sequence[Tensor],
    folded: Tensor,
    half: Tensor,
    share: Tensor,
    maximum: Tensor,
    total: Tensor,
    norm: Tensor | None,
    eps: float,
    norm_eps: float,
    gain: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What a read from a part tells its sources, of the gradient `[..., D]` of its result; the mixture is made again.

    Args:
        local, folded, norm, eps, norm_eps, gain: as for `extend_halves`; the source is among `local`.
        half, share, maximum, total: the part's numbers, and what `extend_halves` gave.

    Returns:
        The gradient of the mixture `[..., D]`, an empty tensor if that is `grad`; the delta `[T]` of the read; what the
        local sources have in it `[T]`; and the gradient of `norm`, if there is one.
    """
    with exact_precision(half):
        mixed = from_half(half, share)
        if local:
            weights = torch.exp(loops.score(local, folded, eps)[0] - maximum) / total
            mixed = mixed + loops.mix(local, weights).view(mixed.shape)
        mixed = mixed * gain
        grad_mixed, grad_weight = grad.new_empty(0), mixed.new_empty(0)
        if norm is None:
            products = torch.ops.attention_residuals.row_products(grad, mixed)
        else:
            grad_mixed, products, grad_weight = torch.ops.attention_residuals.norm_backward(grad, mixed, norm, norm_eps)
            grad = grad_mixed
        delta = products / gain
        of_part = torch.ops.attention_residuals.row_products(grad, half.to(mixed.dtype)) * share.reshape(-1)
        return grad_mixed, delta, delta - of_part, grad_weight


def row_products(grad: Tensor, mixed: Tensor) -> Tensor:
    """Inner products `[T]` of the rows of two tensors `[..., D]`, in the type of `mixed`, the compute type."""
    with exact_precision(mixed):
        return torch.linalg.vecdot(loops.rows(grad), loops.rows(mixed))


def _mix_shapes(
    sources: Sequence[Tensor], folded: Tensor, eps: float, gain: float, wide: bool
) -> tuple[list[Tensor], Tensor, Tensor]:
    first, queries = sources[0], folded.shape[0]
    kind = folded.dtype if wide else first.dtype
    tokens = first.numel() // first.shape[-1]
    mixed = [first.new_empty(first.shape, dtype=kind) for _ in range(queries)]
    return mixed, folded.new_empty(queries, tokens), folded.new_empty(queries, tokens)


def _mix_halves_shapes(
    sources: Sequence[Tensor], folded: Tensor, eps: float, whole: int
) -> tuple[list[Tensor], Tensor, Tensor, Tensor]:
    first = sources[0]
    _, maximum, total = _mix_shapes(sources, folded, eps, 1.0, True)
    kinds = [first.dtype if r == whole else torch.float16 for r in range(folded.shape[0])]
    return [first.new_empty(first.shape, dtype=kind) for kind in kinds], maximum, total, torch.empty_like(total)


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
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    values, maximum, total = part
    normed = values.new_empty(0 if norm is None else values.shape, dtype=dtype)
    mixed = values.new_empty(values.shape if local or gain != 1.0 else 0)
    source = values.new_empty(0 if partial_sum is None else values.shape, dtype=dtype)
    return mixed, torch.empty_like(maximum), torch.empty_like(total), normed, source


def _extend_halves_shapes(
    local: Sequence[Tensor],
    partial_sum: Tensor | None,
    folded: Tensor,
    part: Sequence[Tensor],
    norm: Tensor | None,
    eps: float,
    norm_eps: float,
    gain: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    half, maximum, total, scale = part
    source = half.new_empty(0 if partial_sum is None else half.shape, dtype=dtype)
    statistics = torch.empty_like(maximum), torch.empty_like(total), torch.empty_like(scale)
    return half.new_empty(half.shape, dtype=dtype), *statistics, source


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
    shares: Sequence[Tensor | None],
    carried: Sequence[Tensor | None],
    gains: Sequence[float],
    eps: float,
    elsewhere: bool = False,
) -> tuple[list[Tensor], Tensor, list[Tensor]]:
    tokens = sources[0].numel() // sources[0].shape[-1]
    pieces = 1 if sources[0].device.type == "cpu" or folded.dtype == torch.float64 else sum_pieces(tokens)
    made = [folded.new_empty(tokens) for one in mixtures if one is not None]
    return [source.new_empty(source.shape) for source in sources], folded.new_empty(pieces, *folded.shape), made


def sum_pieces(tokens: int) -> int:
    """In how many pieces a GPU's kernels give sums over tokens, each of one program and, up to the most, 32 tokens."""
    return min(-(-tokens // 32), 512)


def _norm_backward_shapes(grad: Tensor, mixed: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    return grad.new_empty(grad.shape), _row_products_shapes(grad, weight), weight.new_empty(weight.shape)


def _extend_halves_backward_shapes(
    grad: Tensor,
    local: Sequence[Tensor],
    folded: Tensor,
    half: Tensor,
    share: Tensor,
    maximum: Tensor,
    total: Tensor,
    norm: Tensor | None,
    eps: float,
    norm_eps: float,
    gain: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    grad_mixed = grad.new_empty(0 if norm is None else grad.shape)
    grad_weight = folded.new_empty(0 if norm is None else norm.shape)
    return grad_mixed, _row_products_shapes(grad, folded), _row_products_shapes(grad, folded), grad_weight


def _row_products_shapes(grad: Tensor, mixed: Tensor) -> Tensor:
    return mixed.new_empty(grad.numel() // grad.shape[-1])


def fold_rows(queries: Sequence[Tensor], key_weights: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """Queries times key weights, R vectors `[D]` each, as rows `[R, D]` of type `dtype`; without gradients."""
    return torch.stack(list(queries)).to(dtype) * torch.stack(list(key_weights)).to(dtype)


def _fold_rows_shapes(queries: Sequence[Tensor], key_weights: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    return queries[0].new_empty((len(queries), *queries[0].shape), dtype=dtype)


for _plain, _shapes in (
    (mix, _mix_shapes),
    (mix_halves, _mix_halves_shapes),
    (extend, _extend_shapes),
    (extend_halves, _extend_halves_shapes),
    (advance, _advance_shapes),
    (mix_backward, _mix_backward_shapes),
    (norm_backward, _norm_backward_shapes),
    (extend_halves_backward, _extend_halves_backward_shapes),
    (fold_rows, _fold_rows_shapes),
    (row_products, _row_products_shapes),
):
    LIBRARY.impl(_plain.__name__, _plain, "CompositeExplicitAutograd")
    torch.library.register_fake(f"attention_residuals::{_plain.__name__}", _shapes, lib=LIBRARY)
