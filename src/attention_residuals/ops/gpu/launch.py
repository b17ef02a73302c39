"""The operators of `ops/operators.py` as launches of Triton kernels; arguments and results as there.

Sources in bfloat16, float16 or float32. Up to two leading dimensions of any strides are read in place, more are copied.
"""

# Triton adds parameters of its own to a kernel.
# pyright: reportCallIssue=false

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton.language as tl
from torch import Tensor

from attention_residuals.ops.gpu import kernels
from attention_residuals.ops.gpu.tables import Table, is_packed, on_device, readable
from attention_residuals.ops.operators import sum_pieces

KINDS = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}

TILE_ELEMENTS = 4096
"""Numbers in a tile of a source: 16 a thread."""
QUERIES_AT_ONCE = 4
MOST_SUMS = 16384
"""Numbers in the sums for those queries: 32 a thread, with more of them registers spill."""
MOST_WARPS = 16
"""They get 128 registers a thread, too few for two sums of a gradient of queries."""
EXTEND_WARPS = 8
"""At most: 16 would get 64 registers a thread."""
FEW_TOKENS = 64
"""Up to so many, D is split over programs: one token a program would leave most of a GPU idle."""
SLICE = 1024


@dataclass(frozen=True)
class Tile:
    """How much of `[T, D]` a program takes at once."""

    tokens: int
    width: int
    warps: int


def aligned(tensor: Tensor) -> Tensor:
    """The tensor, or a copy that begins at a multiple of 16 bytes and has no gaps."""
    return tensor if tensor.is_contiguous() and tensor.data_ptr() % 16 == 0 else tensor.clone().contiguous()


def power_of_two(number: int) -> int:
    """The least that is not below `number`; the sides of a tile are such."""
    return 1 << (number - 1).bit_length()


def tile(width: int, queries: int = 1) -> Tile:
    """The tile for rows of `width` numbers, with `queries` sums at hand.

    A thread has 16 numbers of a tile; with several sums and 16 warps 32, as it would get too few registers for its own.
    """
    padded = power_of_two(width)
    tokens = min(32, max(1, TILE_ELEMENTS // (padded * queries)))
    warps = min(MOST_WARPS, max(1, tokens * padded * queries // 512))
    if queries > 1 and warps > 8:
        warps = max(8, min(MOST_WARPS, tokens * padded * queries // 1024))
    return Tile(tokens, padded, warps)


def at_once(queries: int, width: int) -> int:
    """How many of `queries` a program takes at once."""
    return min(QUERIES_AT_ONCE, power_of_two(queries), max(1, MOST_SUMS // power_of_two(width)))


def groups(tokens: int, tile_tokens: int) -> tuple[int, int]:
    """How many programs share `tokens`, and how many each takes; the last ones may get none."""
    programs = sum_pieces(tokens)
    return programs, -(-tokens // (programs * tile_tokens)) * tile_tokens


def empty(shape: Sequence[int], dtype: torch.dtype, like: Tensor) -> Tensor:
    """Memory for results and between kernels, where `like` is."""
    return torch.empty(tuple(shape), dtype=dtype, device=like.device)


def mix(
    sources: Sequence[Tensor], folded: Tensor, eps: float, gain: float, wide: bool
) -> tuple[list[Tensor], Tensor, Tensor]:
    dtype = folded.dtype if wide else sources[0].dtype
    mixed = [empty(sources[0].shape, dtype, folded) for _ in folded]
    return mixed, *_mix(sources, folded, mixed, eps, gain, KINDS[dtype])


def mix_halves(
    sources: Sequence[Tensor], folded: Tensor, eps: float, whole: int
) -> tuple[list[Tensor], Tensor, Tensor, Tensor]:
    first, queries = sources[0], len(folded)
    kinds = [first.dtype if r == whole else torch.float16 for r in range(queries)]
    mixed = [empty(first.shape, kind, folded) for kind in kinds]
    scale = empty((queries, first.numel() // first.shape[-1]), folded.dtype, folded)
    return mixed, *_mix(sources, folded, mixed, eps, 1.0, KINDS[first.dtype], scale, whole), scale


def _mix(
    sources: Sequence[Tensor],
    folded: Tensor,
    mixed: Sequence[Tensor],
    eps: float,
    gain: float,
    out: tl.dtype,
    scale: Tensor | None = None,
    whole: int = -1,
) -> tuple[Tensor, Tensor]:
    """Writes the mixtures, in halves if there is a `scale` to write too, and gives the statistics."""
    first, (queries, width) = sources[0], folded.shape
    tokens = first.numel() // width
    maximum, total = (empty((queries, tokens), folded.dtype, folded) for _ in range(2))
    if not tokens:
        return maximum, total
    sources = [readable(source) for source in sources]
    table = Table(all(map(is_packed, sources)))
    table.rows(sources)
    table.addresses(mixed)
    rows, outputs = table.on(first.device)
    folded = folded.contiguous()
    meta = {"width": width, "kind": KINDS[first.dtype], "packed": table.packed}
    results = {"out": out, "halved": scale is not None}
    with on_device(first.device):
        if tokens <= FEW_TOKENS and width > SLICE:
            slices = -(-width // SLICE)
            scores = empty((slices, tokens, len(sources), 1 + queries), folded.dtype, folded)
            kernels.slice_scores_kernel[(tokens, slices)](
                rows, folded, scores, tokens, len(sources), queries, eps, **meta, tile_width=SLICE, num_warps=4
            )
            kernels.slice_mix_kernel[(tokens, slices)](
                rows, scores, outputs, maximum, total, scale, tokens, len(sources), queries, slices, whole, eps, gain,
                **meta, **results, tile_slices=power_of_two(slices), tile_width=SLICE, num_warps=4,
            )  # fmt: skip
        else:
            some = at_once(queries, width)
            size = tile(width, some)
            kernels.mix_kernel[(-(-tokens // size.tokens),)](
                rows, folded, outputs, maximum, total, scale, tokens, len(sources), queries, whole, eps, gain,
                **meta, **results, tile_tokens=size.tokens, tile_queries=some, tile_width=size.width,
                num_warps=size.warps,
            )  # fmt: skip
    return maximum, total


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
    values = part[0]
    mixed = empty(values.shape if local or gain != 1.0 else (0,), folded.dtype, values)
    normed = empty((0,) if norm is None else values.shape, dtype, values)
    source = empty((0,) if partial_sum is None else values.shape, dtype, values)
    results = mixed, normed, source
    maximum, total, _ = _extend(local, partial_sum, folded, part, norm, eps, norm_eps, gain, dtype, results)
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
    half = part[0]
    result, nothing = empty(half.shape, dtype, half), empty((0,), dtype, half)
    source = empty((0,) if partial_sum is None else half.shape, dtype, half)
    results = (result, nothing, source) if norm is None else (nothing, result, source)
    statistics = _extend(local, partial_sum, folded, part, norm, eps, norm_eps, gain, dtype, results)
    return result, *statistics, source


def _extend(
    local: Sequence[Tensor],
    partial_sum: Tensor | None,
    folded: Tensor,
    part: Sequence[Tensor],
    norm: Tensor | None,
    eps: float,
    norm_eps: float,
    gain: float,
    dtype: torch.dtype,
    results: tuple[Tensor, Tensor, Tensor],
) -> tuple[Tensor, Tensor, Tensor]:
    """Writes mixture, normed mixture and source, each if it is not empty, and gives the statistics and the share."""
    values, part_maximum, part_total, *scales = (one.contiguous() for one in part)
    width = folded.shape[-1]
    tokens, halved = values.numel() // width, bool(scales)
    maximum, total = (empty(part_maximum.shape, folded.dtype, values) for _ in range(2))
    share = empty(part_maximum.shape if halved else (0,), folded.dtype, values)
    if not tokens:
        return maximum, total, share
    local = [readable(one) for one in local]
    sums = [] if partial_sum is None else [readable(partial_sum)]
    table = Table(all(map(is_packed, [*local, *sums])))
    table.rows(local)
    table.rows(sums)
    rows, sum_rows = table.on(values.device)
    size = tile(width)
    mixed, normed, source = results
    with on_device(values.device):
        kernels.extend_kernel[(-(-tokens // size.tokens),)](
            rows, sum_rows, folded.contiguous(), values, part_maximum, part_total, scales[0] if halved else None,
            norm if norm is None else norm.contiguous(), mixed, normed, source, maximum, total, share,
            tokens, len(local), eps, norm_eps, gain,
            width=width, kind=KINDS[dtype], packed=table.packed, halved=halved,
            has_norm=norm is not None, has_sum=partial_sum is not None, has_mixed=mixed.numel() > 0,
            tile_tokens=size.tokens, tile_width=size.width, num_warps=min(EXTEND_WARPS, size.warps),
        )  # fmt: skip
    return maximum, total, share


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
    first, (queries, width) = sources[0], folded.shape
    tokens, count = first.numel() // width, len(sources)
    results = [empty(source.shape, source.dtype, source) for source in sources]
    nothing: list[Tensor | None] = [None] * queries
    deltas, mixtures, shares = list(deltas) or nothing, list(mixtures) or nothing, list(shares) or nothing
    made = [None if one is None else empty((tokens,), folded.dtype, folded) for one in mixtures]
    told = [one for one in made if one is not None]
    if not tokens:
        return results, folded.new_zeros(1, queries, width), told
    sources = [readable(source) for source in sources]
    grads = [readable(grad) for grad in grads]
    running = [None if grad is None else readable(grad) for grad in running]
    lists = [*sources, *grads, *(grad for grad in running if grad is not None)]
    mixtures = [None if mixture is None else aligned(mixture) for mixture in mixtures]
    adds_own = [
        share is not None or (mixture is None and (elsewhere or delta is None))
        for delta, mixture, share in zip(deltas, mixtures, shares, strict=True)
    ]
    table = Table(all(map(is_packed, lists)))
    for tensors in (sources, running, grads):
        table.rows(tensors)
    table.addresses(results)
    lists_of_numbers = [
        [None if one is None else one.contiguous() for one in numbers]
        for numbers in (maxima, totals, deltas, made, mixtures, shares, carried or nothing)
    ]
    for numbers in lists_of_numbers:
        table.addresses(numbers)
    table.integers(adds_own)
    table.floats(gains)
    rows, running_rows, grad_rows, to, *numbers_at = table.on(first.device)
    size = tile(width)
    programs, group = groups(tokens, size.tokens)
    scratch = empty((programs, 4 * count * queries + queries, size.tokens), folded.dtype, folded)
    sums = empty((programs, queries, width), folded.dtype, folded)
    with on_device(first.device):
        kernels.mix_backward_kernel[(programs,)](
            rows, running_rows, grad_rows, to, folded.contiguous(), *numbers_at, scratch, sums,
            tokens, count, queries, group, eps,
            width=width, kind=KINDS[first.dtype], grad_kind=KINDS[grads[0].dtype], packed=table.packed,
            has_running=any(grad is not None for grad in running), has_mixtures=bool(told),
            halved=any(share is not None for share in shares), single=queries == 1,
            tile_tokens=size.tokens, tile_queries=1 if size.warps == MOST_WARPS else at_once(queries, width),
            tile_width=size.width, num_warps=size.warps,
        )  # fmt: skip
    return results, sums, told


def norm_backward(grad: Tensor, mixed: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    width = weight.shape[0]
    tokens = grad.numel() // width
    grad_mixed = empty(grad.shape, grad.dtype, grad)
    products = empty((tokens,), weight.dtype, mixed)
    if not tokens:
        return grad_mixed, products, torch.zeros_like(weight)
    grad = readable(grad)
    rows, packed = _one(grad)
    size = tile(width)
    programs, group = groups(tokens, size.tokens)
    partial = empty((programs, width), weight.dtype, mixed)
    with on_device(grad.device):
        kernels.norm_backward_kernel[(programs,)](
            rows, mixed.contiguous(), None, None, None, None, None, weight.contiguous(), grad_mixed, products, None,
            partial, tokens, 0, group, 0.0, eps, 1.0,
            width=width, kind=KINDS[grad.dtype], packed=packed, halved=False, has_norm=True,
            tile_tokens=size.tokens, tile_width=size.width, num_warps=size.warps,
        )  # fmt: skip
    return grad_mixed, products, partial.sum(0)


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
    width = folded.shape[-1]
    tokens = grad.numel() // width
    grad_mixed = empty((0,) if norm is None else grad.shape, grad.dtype, grad)
    delta, beside = (empty((tokens,), folded.dtype, folded) for _ in range(2))
    if not tokens:
        return grad_mixed, delta, beside, folded.new_zeros(0 if norm is None else width)
    grad, local = readable(grad), [readable(one) for one in local]
    table = Table(all(map(is_packed, [grad, *local])))
    table.rows([grad])
    table.rows(local)
    rows, local_rows = table.on(grad.device)
    size = tile(width)
    programs, group = (-(-tokens // size.tokens), size.tokens) if norm is None else groups(tokens, size.tokens)
    partial = empty((0,) if norm is None else (programs, width), folded.dtype, folded)
    with on_device(grad.device):
        kernels.norm_backward_kernel[(programs,)](
            rows, half.contiguous(), share, local_rows, folded.contiguous(), maximum, total,
            norm if norm is None else norm.contiguous(), grad_mixed, delta, beside, partial,
            tokens, len(local), group, eps, norm_eps, gain,
            width=width, kind=KINDS[grad.dtype], packed=table.packed, halved=True, has_norm=norm is not None,
            tile_tokens=size.tokens, tile_width=size.width, num_warps=size.warps,
        )  # fmt: skip
    return grad_mixed, delta, beside, partial if norm is None else partial.sum(0)


def row_products(grad: Tensor, mixed: Tensor) -> Tensor:
    width = grad.shape[-1]
    tokens = grad.numel() // width
    products = empty((tokens,), mixed.dtype, mixed)
    if not tokens:
        return products
    grad, mixed = readable(grad), mixed.contiguous()
    rows, packed = _one(grad)
    size = tile(width)
    with on_device(grad.device):
        kernels.row_products_kernel[(-(-tokens // size.tokens),)](
            rows, mixed, products, tokens,
            width=width, kind=KINDS[grad.dtype], packed=packed,
            tile_tokens=size.tokens, tile_width=size.width, num_warps=size.warps,
        )  # fmt: skip
    return products


def _one(tensor: Tensor) -> tuple[Tensor, bool]:
    """The table of one tensor, and whether it is packed."""
    table = Table(is_packed(tensor))
    table.rows([tensor])
    return table.on(tensor.device)[0], table.packed
