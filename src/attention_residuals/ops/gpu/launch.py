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

KINDS = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}

TILE_ELEMENTS = 4096
"""Numbers in a tile of a source: 16 a thread."""
QUERIES_AT_ONCE = 4
MOST_SUMS = 16384
"""Numbers in the sums for those queries: 32 a thread, with more of them registers spill."""
EXTEND_WARPS = 8
"""At most: 16 would get 64 registers a thread, and what a mixture in two needs would spill."""
GROUP_TOKENS = 32
"""Least tokens whose gradients of queries are added up before they are stored."""
MOST_GROUPS = 512
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
    """The tile for rows of `width` numbers, with `queries` sums at hand."""
    padded = power_of_two(width)
    tokens = min(32, max(1, TILE_ELEMENTS // (padded * queries)))
    return Tile(tokens, padded, min(16, max(1, tokens * padded * queries // 512)))


def at_once(queries: int, width: int) -> int:
    """How many of `queries` a program takes at once."""
    return min(QUERIES_AT_ONCE, power_of_two(queries), max(1, MOST_SUMS // power_of_two(width)))


def groups(tokens: int, tile_tokens: int) -> tuple[int, int]:
    """How many programs share `tokens`, and how many each takes."""
    programs = min(-(-tokens // GROUP_TOKENS), MOST_GROUPS)
    group = -(-tokens // (programs * tile_tokens)) * tile_tokens
    return -(-tokens // group), group


def empty(shape: Sequence[int], dtype: torch.dtype, like: Tensor) -> Tensor:
    """Memory for results and between kernels, where `like` is."""
    return torch.empty(tuple(shape), dtype=dtype, device=like.device)


def mix(
    sources: Sequence[Tensor], folded: Tensor, eps: float, gain: float, wide: bool, in_two: bool = False
) -> tuple[list[Tensor], Tensor, Tensor]:
    first, (queries, width) = sources[0], folded.shape
    tokens = first.numel() // width
    dtype = folded.dtype if wide and not in_two else first.dtype
    mixed = [empty(first.shape, dtype, folded) for _ in range(queries)]
    if in_two:
        mixed += [empty(first.shape, torch.int8, folded) for _ in range(queries)]
    maximum, total = (empty((queries, tokens), folded.dtype, folded) for _ in range(2))
    if not tokens:
        return mixed, maximum, total
    sources = [readable(source) for source in sources]
    table = Table(all(map(is_packed, sources)))
    table.rows(sources)
    table.addresses(mixed)
    rows, outputs = table.on(first.device)
    folded = folded.contiguous()
    meta = {"width": width, "kind": KINDS[first.dtype], "packed": table.packed}
    results = {"out": KINDS[dtype], "in_two": in_two}
    with on_device(first.device):
        if tokens <= FEW_TOKENS and width > SLICE:
            slices = -(-width // SLICE)
            scores = empty((slices, tokens, len(sources), 1 + queries), folded.dtype, folded)
            kernels.slice_scores_kernel[(tokens, slices)](
                rows, folded, scores, tokens, len(sources), queries, eps, **meta, tile_width=SLICE, num_warps=4
            )
            kernels.slice_mix_kernel[(tokens, slices)](
                rows, scores, outputs, maximum, total, tokens, len(sources), queries, slices, eps, gain,
                **meta, **results, tile_slices=power_of_two(slices), tile_width=SLICE, num_warps=4,
            )  # fmt: skip
        else:
            some = at_once(queries, width)
            size = tile(width, some)
            kernels.mix_kernel[(-(-tokens // size.tokens),)](
                rows, folded, outputs, maximum, total, tokens, len(sources), queries, eps, gain,
                **meta, **results, tile_tokens=size.tokens, tile_queries=some, tile_width=size.width,
                num_warps=size.warps,
            )  # fmt: skip
    return mixed, maximum, total


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
    (values, *rests), width = (one.contiguous() for one in (part[0], *part[3:])), folded.shape[-1]
    tokens, in_two, has_mixed = values.numel() // width, bool(rests), bool(local) or gain != 1.0
    mixed = empty(values.shape if has_mixed else (0,), values.dtype, values)
    maximum, total = (empty(part[1].shape, folded.dtype, values) for _ in range(2))
    normed = empty((0,) if norm is None else values.shape, dtype, values)
    rest = empty(values.shape if has_mixed and in_two else (0,), torch.int8, values)
    source = empty((0,) if partial_sum is None else values.shape, dtype, values)
    if not tokens:
        return mixed, maximum, total, normed, rest, source
    local = [readable(one) for one in local]
    sums = [] if partial_sum is None else [readable(partial_sum)]
    table = Table(all(map(is_packed, [*local, *sums])))
    table.rows(local)
    table.rows(sums)
    rows, sum_rows = table.on(values.device)
    size = tile(width)
    with on_device(values.device):
        kernels.extend_kernel[(-(-tokens // size.tokens),)](
            rows, sum_rows, folded.contiguous(), values, rests[0] if in_two else None, part[1], part[2],
            norm if norm is None else norm.contiguous(), mixed, rest, normed, source, maximum, total,
            tokens, len(local), eps, norm_eps, gain,
            width=width, kind=KINDS[dtype], packed=table.packed, in_two=in_two,
            has_norm=norm is not None, has_sum=partial_sum is not None, has_mixed=has_mixed,
            tile_tokens=size.tokens, tile_width=size.width, num_warps=min(EXTEND_WARPS, size.warps),
        )  # fmt: skip
    return mixed, maximum, total, normed, rest, source


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
    first, (queries, width) = sources[0], folded.shape
    tokens, count = first.numel() // width, len(sources)
    results = [empty(source.shape, source.dtype, source) for source in sources]
    made = [empty((tokens,), folded.dtype, folded) for mixture in mixtures[:queries] if mixture is not None]
    in_two = bool(made) and len(mixtures) > queries
    if not tokens:
        return results, torch.zeros_like(folded), made
    sources = [readable(source) for source in sources]
    grads = [readable(grad) for grad in grads]
    running = [None if grad is None else readable(grad) for grad in running]
    lists = [*sources, *grads, *(grad for grad in running if grad is not None)]
    table = Table(all(map(is_packed, lists)))
    to_make = iter(made or [empty((tokens,), folded.dtype, folded) for _ in range(queries)])
    offsets = [next(to_make) if delta is None else delta for delta in deltas or [None] * queries]
    mixtures = [None if mixture is None else aligned(mixture) for mixture in mixtures]
    table.rows(sources)
    table.rows(running)
    table.rows(grads)
    table.addresses(results)
    maxima, totals, offsets = ([one.contiguous() for one in numbers] for numbers in (maxima, totals, offsets))
    for numbers in (maxima, totals, offsets):
        table.addresses(numbers)
    table.addresses(mixtures)
    table.floats(gains)
    rows, running_rows, grad_rows, to, *numbers_at = table.on(first.device)
    size = tile(width)
    programs, group = groups(tokens, size.tokens)
    single = queries == 1
    along = empty((0,) if single else (programs, size.tokens, count, queries), folded.dtype, folded)
    partial = empty((programs, queries, width), folded.dtype, folded)
    with on_device(first.device):
        kernels.mix_backward_kernel[(programs,)](
            rows, running_rows, grad_rows, to, folded.contiguous(), *numbers_at, along, partial,
            tokens, count, queries, group, eps,
            width=width, kind=KINDS[first.dtype], grad_kind=KINDS[grads[0].dtype], packed=table.packed,
            has_running=any(grad is not None for grad in running), has_deltas=bool(deltas),
            has_mixtures=bool(made), in_two=in_two, single=single,
            tile_tokens=size.tokens, tile_queries=at_once(queries, width),
            tile_width=size.width, num_warps=size.warps,
        )  # fmt: skip
    return results, partial.sum(0), made


def norm_backward(
    grad: Tensor, mixed: Tensor, weight: Tensor, eps: float, rest: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    width = weight.shape[0]
    tokens = grad.numel() // width
    grad_mixed = empty(grad.shape, grad.dtype, grad)
    products = empty((tokens,), weight.dtype, mixed)
    if not tokens:
        return grad_mixed, products, torch.zeros_like(weight)
    grad, mixed = readable(grad), mixed.contiguous()
    rows, packed = _one(grad)
    size = tile(width)
    programs, group = groups(tokens, size.tokens)
    partial = empty((programs, width), weight.dtype, mixed)
    with on_device(grad.device):
        kernels.norm_backward_kernel[(programs,)](
            rows, mixed, rest if rest is None else rest.contiguous(), weight.contiguous(), grad_mixed, products,
            partial, tokens, group, eps, width=width, kind=KINDS[grad.dtype], packed=packed, in_two=rest is not None,
            tile_tokens=size.tokens, tile_width=size.width, num_warps=size.warps,
        )  # fmt: skip
    return grad_mixed, products, partial.sum(0)


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
