"""Reads over depth in Triton: what the operators of `ops/operators.py` do, on a GPU.

T tokens, N sources, R queries, width D. Tensors that come in lists stay where they are: a kernel gets a table of
their addresses (`tables.py`), so their number is nothing it is compiled for, nor are T, eps, gain and strides. D and
the types are. A program takes a tile of tokens over all of D. Sums are carried in float32; addresses in 64 bits.
"""

# Triton compiles what looks like Python: it has no `and` of its own, and types of its own.
# ruff: noqa: SIM102
# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false, reportIndexIssue=false
# pyright: reportAttributeAccessIssue=false, reportGeneralTypeIssues=false, reportOptionalOperand=false
# pyright: reportInvalidTypeForm=false, reportAssignmentType=false

import triton
import triton.language as tl

from attention_residuals.ops.gpu.table_kernel import write_table_kernel as write_table_kernel

FIELDS = tl.constexpr(5)
"""Numbers a strided tensor has in a table: address, stride of outer rows, inner rows, their stride, stride along D."""


@triton.jit
def _rows(table, n, t, d, width: tl.constexpr, kind: tl.constexpr, packed: tl.constexpr):
    """Pointers to the rows `t` of tensor `n`. `packed`: all contiguous and aligned, so that loads are wide."""
    if packed:
        address = tl.multiple_of(tl.load(table + n), 16)
        return address.to(tl.pointer_type(kind)) + t[:, None] * width + d[None, :]
    entry = table + n * FIELDS
    outer, inner, inner_stride, stride = tl.load(entry + 1), tl.load(entry + 2), tl.load(entry + 3), tl.load(entry + 4)
    offset = (t // inner) * outer + (t % inner) * inner_stride
    return tl.load(entry).to(tl.pointer_type(kind)) + offset[:, None] + d[None, :] * stride


@triton.jit
def _numbers(table, n, t, mask, other):
    """Numbers `t` of the contiguous float32 tensor `n`."""
    return tl.load(tl.load(table + n).to(tl.pointer_type(tl.float32)) + t, mask=mask, other=other)


@triton.jit
def _tile(program, tokens, tile_tokens: tl.constexpr):
    t = program.to(tl.int64) * tile_tokens + tl.arange(0, tile_tokens)
    return t, t < tokens


@triton.jit
def _scale(bound):
    """A power of two, by which numbers up to `bound`, no square beyond float32, are in the range of float16."""
    power = tl.minimum(tl.maximum(bound.to(tl.int32, bitcast=True) & 0x7F800000, 67 << 23), 191 << 23)
    return (power - (14 << 23)).to(tl.float32, bitcast=True)


@triton.jit
def _reciprocal(power):
    """Of a power of two: the exponents of both add up to twice the bias, 127."""
    return ((254 << 23) - power.to(tl.int32, bitcast=True)).to(tl.float32, bitcast=True)


@triton.jit(do_not_specialize=["tokens", "count", "queries", "whole", "eps", "gain"])
def mix_kernel(
    sources, folded, outputs, maximum, total, scale, tokens, count, queries, whole, eps, gain,
    width: tl.constexpr, kind: tl.constexpr, packed: tl.constexpr, out: tl.constexpr, halved: tl.constexpr,
    tile_tokens: tl.constexpr, tile_queries: tl.constexpr, tile_width: tl.constexpr,
):  # fmt: skip
    """`mix`: a pass over the sources for every `tile_queries` reads; after the first one they are in the cache.

    `halved`: `mix_halves`, mixture `whole` being rounded to the type of the sources.
    """
    t, row = _tile(tl.program_id(0), tokens, tile_tokens)
    d = tl.arange(0, tile_width)
    mask = row[:, None] & (d < width)[None, :]
    for first in range(0, queries, tile_queries):
        r = first + tl.arange(0, tile_queries)
        wanted = (r < queries)[:, None] & (d < width)[None, :]
        query = tl.load(folded + r[:, None] * width + d[None, :], mask=wanted, other=0.0)
        highest = tl.full([tile_tokens, tile_queries], float("-inf"), tl.float32)
        weight = tl.zeros([tile_tokens, tile_queries], tl.float32)
        longest = tl.zeros([tile_tokens], tl.float32)
        values = tl.zeros([tile_tokens, tile_queries, tile_width], tl.float32)
        for n in range(count):
            v = tl.load(_rows(sources, n, t, d, width, kind, packed), mask=mask, other=0.0).to(tl.float32)
            squares = tl.sum(v * v, 1)
            rstd = tl.rsqrt(squares / width + eps)
            logit = tl.sum(v[:, None, :] * query[None, :, :], 2) * rstd[:, None]
            higher = tl.maximum(highest, logit)
            kept = tl.exp(highest - higher)
            exponential = tl.exp(logit - higher)
            values = values * kept[:, :, None] + exponential[:, :, None] * v[:, None, :]
            weight = weight * kept + exponential
            if halved:
                longest = tl.maximum(longest, squares)
            highest = higher
        values = values * (gain / weight)[:, :, None]
        known = row[:, None] & (r < queries)[None, :]
        at = r[None, :] * tokens + t[:, None]
        tl.store(maximum + at, highest, mask=known)
        tl.store(total + at, weight, mask=known)
        if halved:
            power = _scale(tl.sqrt(longest))
            tl.store(scale + at, power[:, None] + tl.zeros_like(weight), mask=known)
            half = (values * _reciprocal(power)[:, None, None]).to(tl.float16)
            rounded = (half.to(tl.float32) * power[:, None, None]).to(out)
            is_whole = (r == whole)[None, :, None]
            result = tl.where(is_whole, rounded.to(tl.int16, bitcast=True), half.to(tl.int16, bitcast=True))
        else:
            result = values.to(out)
        base = tl.multiple_of(tl.load(outputs + r, mask=r < queries, other=0), 16)
        to = base.to(tl.pointer_type(result.dtype))[None, :, None] + t[:, None, None] * width + d[None, None, :]
        tl.store(to, result, mask=known[:, :, None] & (d < width)[None, None, :])


@triton.jit(do_not_specialize=["tokens", "count", "eps", "norm_eps", "gain"])
def extend_kernel(
    sources, partial_sum, folded, part, part_maximum, part_total, scale, norm, mixed, normed, added,
    maximum, total, share, tokens, count, eps, norm_eps, gain,
    width: tl.constexpr, kind: tl.constexpr, packed: tl.constexpr, halved: tl.constexpr,
    has_norm: tl.constexpr, has_sum: tl.constexpr, has_mixed: tl.constexpr,
    tile_tokens: tl.constexpr, tile_width: tl.constexpr,
):  # fmt: skip
    """`extend`: one pass over the local sources, from where `part` ends, and the norm while the mixture is at hand.

    `has_sum`: the one source is the output added to the partial sum, and stored in `added`. `has_mixed`: the mixture
    is stored. `halved`: `extend_halves`.
    """
    t, row = _tile(tl.program_id(0), tokens, tile_tokens)
    d = tl.arange(0, tile_width)
    mask = row[:, None] & (d < width)[None, :]
    at = t[:, None] * width + d[None, :]
    query = tl.load(folded + d, mask=d < width, other=0.0)
    highest = tl.load(part_maximum + t, mask=row, other=0.0)
    weight = tl.load(part_total + t, mask=row, other=1.0)
    values = tl.load(part + at, mask=mask, other=0.0).to(tl.float32)
    of_part = tl.full([tile_tokens], 1.0, tl.float32)  # in `values`, which begin as the part
    if halved:
        of_part = tl.load(scale + t, mask=row, other=1.0)
        values = values * of_part[:, None]
    begun = weight
    for n in range(count):
        v = tl.load(_rows(sources, n, t, d, width, kind, packed), mask=mask, other=0.0).to(tl.float32)
        if has_sum:
            before = tl.load(_rows(partial_sum, 0, t, d, width, kind, packed), mask=mask, other=0.0)
            rounded = (before.to(tl.float32) + v).to(kind)
            tl.store(added + at, rounded, mask=mask)
            v = rounded.to(tl.float32)
        rstd = tl.rsqrt(tl.sum(v * v, 1) / width + eps)
        logit = tl.sum(v * query[None, :], 1) * rstd
        higher = tl.maximum(highest, logit)
        exponential = tl.exp(logit - higher)
        weight = begun * tl.exp(highest - higher)
        begun = weight + exponential
        kept = weight / begun
        values = values * kept[:, None] + v * (exponential / begun)[:, None]
        of_part = of_part * kept
        highest = higher
    values = values * gain
    tl.store(maximum + t, highest, mask=row)
    tl.store(total + t, begun, mask=row)
    if halved:
        tl.store(share + t, of_part, mask=row)
    if has_norm:
        rstd = tl.rsqrt(tl.sum(values * values, 1) / width + norm_eps)
        weight_of_norm = tl.load(norm + d, mask=d < width, other=0.0)
        tl.store(normed + at, (values * rstd[:, None] * weight_of_norm[None, :]).to(kind), mask=mask)
    if has_mixed:
        tl.store(mixed + at, values.to(mixed.dtype.element_ty), mask=mask)


@triton.jit
def _scores(
    sources, grads, folded, maxima, totals, weights, products, rstds, slopes, count, queries, eps, t, at, d, row, mask,
    width: tl.constexpr, kind: tl.constexpr, grad_kind: tl.constexpr, packed: tl.constexpr,
):  # fmt: skip
    """Of every source and read: weight, product with the gradient, inverse RMS, and the logit times that over D."""
    for n in range(count):
        v = tl.load(_rows(sources, n, t, d, width, kind, packed), mask=mask, other=0.0).to(tl.float32)
        rstd = tl.rsqrt(tl.sum(v * v, 1) / width + eps)
        for r in range(queries):
            g = tl.load(_rows(grads, r, t, d, width, grad_kind, packed), mask=mask, other=0.0).to(tl.float32)
            query = tl.load(folded + r * width + d, mask=d < width, other=0.0)
            logit = tl.sum(v * query[None, :], 1) * rstd
            weight = tl.exp(logit - _numbers(maxima, r, t, row, 0.0)) / _numbers(totals, r, t, row, 1.0)
            to = (at * count + n) * queries + r
            tl.store(weights + to, weight)
            tl.store(products + to, tl.sum(v * g, 1))
            tl.store(rstds + to, rstd)
            tl.store(slopes + to, logit * rstd / width)


@triton.jit
def _products_of_mixtures(
    mixtures, shares, grads, gains, offsets, queries, t, at, d, row, mask,
    width: tl.constexpr, grad_kind: tl.constexpr, packed: tl.constexpr, halved: tl.constexpr,
):  # fmt: skip
    """What the mixtures give to the offsets of the reads that came with one; `halved`: their parts."""
    for r in range(queries):
        offset = tl.zeros_like(row.to(tl.float32))
        address = tl.load(mixtures + r)
        if address != 0:
            mixture = tl.multiple_of(address, 16).to(tl.pointer_type(tl.float16 if halved else tl.float32))
            h = tl.load(mixture + t[:, None] * width + d[None, :], mask=mask, other=0.0).to(tl.float32)
            g = tl.load(_rows(grads, r, t, d, width, grad_kind, packed), mask=mask, other=0.0).to(tl.float32)
            if halved:
                offset = tl.sum(g * h, 1) * _numbers(shares, r, t, row, 0.0)
            else:
                offset = tl.sum(g * h, 1) / tl.load(gains + r).to(tl.float64, bitcast=True).to(tl.float32)
        tl.store(offsets + at * queries + r, offset)


@triton.jit
def _shares_of_gradients(
    weights, products, rstds, offsets, deltas, made, adds_own, gains, count, queries, t, at, row,
    has_mixtures: tl.constexpr, tile_tokens: tl.constexpr, tile_queries: tl.constexpr,
):  # fmt: skip
    """From `_scores`: in `weights` what a read's gradient, in `products` what its query has of a source's gradient."""
    for first in range(0, queries, tile_queries):
        r = first + tl.arange(0, tile_queries)
        inside = (r < queries)[None, :]
        known = row[:, None] & inside
        own = tl.zeros([tile_tokens, tile_queries], tl.float32)
        for n in range(count):
            where = (at[:, None] * count + n) * queries + r[None, :]
            own += tl.load(weights + where, mask=inside, other=0.0) * tl.load(products + where, mask=inside, other=0.0)
        address = tl.load(deltas + r, mask=r < queries, other=0)[None, :]
        delta = tl.load(address.to(tl.pointer_type(tl.float32)) + t[:, None], mask=known & (address != 0), other=0.0)
        if has_mixtures:
            delta += tl.load(offsets + at[:, None] * queries + r[None, :], mask=inside, other=0.0)
        adds = (tl.load(adds_own + r, mask=r < queries, other=0) != 0)[None, :]
        delta += tl.where(adds, own, 0.0)
        address = tl.load(made + r, mask=r < queries, other=0)[None, :]
        to = address.to(tl.pointer_type(tl.float32)) + t[:, None]
        tl.store(to, tl.where(adds, own, delta), mask=known & (address != 0))
        gain = tl.load(gains + r, mask=r < queries, other=0).to(tl.float64, bitcast=True).to(tl.float32)
        for n in range(count):
            where = (at[:, None] * count + n) * queries + r[None, :]
            weight = tl.load(weights + where, mask=inside, other=0.0) * gain[None, :]
            product = tl.load(products + where, mask=inside, other=0.0)
            along_query = weight * (product - delta) * tl.load(rstds + where, mask=inside, other=0.0)
            tl.store(weights + where, weight, mask=inside)
            tl.store(products + where, tl.where(known, along_query, 0.0), mask=inside)


@triton.jit
def _begin_sums(sums, carried, program, queries, d, width: tl.constexpr, tile_queries: tl.constexpr):
    """The sums of earlier calls, or zeros."""
    for first in range(0, queries, tile_queries):
        r = first + tl.arange(0, tile_queries)
        known = (r < queries)[:, None] & (d < width)[None, :]
        address = tl.load(carried + r, mask=r < queries, other=0)[:, None]
        before = address.to(tl.pointer_type(tl.float32)) + program.to(tl.int64) * width + d[None, :]
        tl.store(
            sums + r[:, None] * width + d[None, :], tl.load(before, mask=known & (address != 0), other=0.0), mask=known
        )


@triton.jit
def _add_to_sums(
    sums, along_query, sources, count, queries, t, at, d, mask,
    width: tl.constexpr, kind: tl.constexpr, packed: tl.constexpr, tile_queries: tl.constexpr,
):  # fmt: skip
    """Adds what a tile of tokens gives to the gradients of the queries."""
    for first in range(0, queries, tile_queries):
        r = first + tl.arange(0, tile_queries)
        to = sums + r[:, None] * width + d[None, :]
        known = (r < queries)[:, None] & (d < width)[None, :]
        sum_of_tile = tl.load(to, mask=known, other=0.0)
        for n in range(count):
            v = tl.load(_rows(sources, n, t, d, width, kind, packed), mask=mask, other=0.0).to(tl.float32)
            where = (at[:, None] * count + n) * queries + r[None, :]
            weight = tl.load(along_query + where, mask=(r < queries)[None, :], other=0.0)
            sum_of_tile += tl.sum(weight[:, :, None] * v[:, None, :], 0)
        tl.store(to, sum_of_tile, mask=known)


@triton.jit(do_not_specialize=["tokens", "count", "queries", "group", "eps"])
def mix_backward_kernel(
    sources, running, grads, results, folded, maxima, totals, deltas, made, mixtures, shares, carried, adds_own, gains,
    scratch, partial, tokens, count, queries, group, eps,
    width: tl.constexpr, kind: tl.constexpr, grad_kind: tl.constexpr, packed: tl.constexpr,
    has_running: tl.constexpr, has_mixtures: tl.constexpr, halved: tl.constexpr,
    single: tl.constexpr, tile_tokens: tl.constexpr, tile_queries: tl.constexpr, tile_width: tl.constexpr,
):  # fmt: skip
    """`mix_backward` of `group` tokens, whole tiles of them; `partial[program]` gets the sum for the queries.

    All inner products of a tile come first, then what is made of these numbers, then the sums of rows.
    `scratch [programs, 4 N R + R, tile_tokens]` is for the numbers. `single`: R = 1, whose gradient stays at hand.
    """
    queries = 1 if single else queries
    program = tl.program_id(0)
    d = tl.arange(0, tile_width)
    inside = d < width
    at = tl.arange(0, tile_tokens)
    numbers = count * queries * tile_tokens
    weights = scratch + program.to(tl.int64) * (4 * numbers + queries * tile_tokens)
    products, rstds, slopes, offsets = (
        weights + numbers,
        weights + 2 * numbers,
        weights + 3 * numbers,
        weights + 4 * numbers,
    )
    sums = partial + program.to(tl.int64) * queries * width
    _begin_sums(sums, carried, program, queries, d, width, tile_queries)
    tl.debug_barrier()
    grad_query = tl.zeros([tile_width], tl.float32)
    if single:
        grad_query = tl.load(sums + d, mask=inside, other=0.0)
    begin = program.to(tl.int64) * group
    for start in range(0, group, tile_tokens):
        t = begin + start + at
        row = t < tokens
        mask = row[:, None] & inside[None, :]
        _scores(
            sources, grads, folded, maxima, totals, weights, products, rstds, slopes, count, queries, eps,
            t, at, d, row, mask, width, kind, grad_kind, packed,
        )  # fmt: skip
        if has_mixtures:
            _products_of_mixtures(
                mixtures, shares, grads, gains, offsets, queries, t, at, d, row, mask, width, grad_kind, packed, halved
            )
        tl.debug_barrier()
        _shares_of_gradients(
            weights, products, rstds, offsets, deltas, made, adds_own, gains, count, queries, t, at, row,
            has_mixtures, tile_tokens, tile_queries,
        )  # fmt: skip
        tl.debug_barrier()
        for n in range(count):
            v = tl.load(_rows(sources, n, t, d, width, kind, packed), mask=mask, other=0.0).to(tl.float32)
            result = tl.zeros([tile_tokens, tile_width], tl.float32)
            if has_running:
                if tl.load(running + n * (1 if packed else FIELDS)) != 0:
                    more = tl.load(_rows(running, n, t, d, width, kind, packed), mask=mask, other=0.0)
                    result += more.to(tl.float32)
            along_source = tl.zeros([tile_tokens], tl.float32)
            for r in range(queries):
                g = tl.load(_rows(grads, r, t, d, width, grad_kind, packed), mask=mask, other=0.0).to(tl.float32)
                query = tl.load(folded + r * width + d, mask=inside, other=0.0)
                where = (at * count + n) * queries + r
                along_query = tl.load(products + where)
                result += g * tl.load(weights + where)[:, None] + query[None, :] * along_query[:, None]
                along_source -= along_query * tl.load(slopes + where)
                if single:
                    grad_query += tl.sum(v * along_query[:, None], 0)
            result += v * along_source[:, None]
            to = tl.multiple_of(tl.load(results + n), 16).to(tl.pointer_type(kind)) + t[:, None] * width + d[None, :]
            tl.store(to, result.to(kind), mask=mask)
        if not single:
            _add_to_sums(sums, products, sources, count, queries, t, at, d, mask, width, kind, packed, tile_queries)
        tl.debug_barrier()
    if single:
        tl.store(sums + d, grad_query, mask=inside)


@triton.jit
def _mixture_again(
    part, share, sources, folded, maximum, total, count, eps, gain, t, d, row, mask,
    width: tl.constexpr, kind: tl.constexpr, packed: tl.constexpr,
):  # fmt: skip
    """A mixture from its part, of which `share` is in it, and the local sources."""
    values = tl.load(part + t[:, None] * width + d[None, :], mask=mask, other=0.0).to(tl.float32)
    values = values * tl.load(share + t, mask=row, other=0.0)[:, None]
    query = tl.load(folded + d, mask=d < width, other=0.0)
    for n in range(count):
        v = tl.load(_rows(sources, n, t, d, width, kind, packed), mask=mask, other=0.0).to(tl.float32)
        rstd = tl.rsqrt(tl.sum(v * v, 1) / width + eps)
        logit = tl.sum(v * query[None, :], 1) * rstd
        weight = tl.exp(logit - tl.load(maximum + t, mask=row, other=0.0)) / tl.load(total + t, mask=row, other=1.0)
        values += v * weight[:, None]
    return values * gain


@triton.jit(do_not_specialize=["tokens", "count", "group", "eps", "norm_eps", "gain"])
def norm_backward_kernel(
    grad, mixed, share, sources, folded, maximum, total, weight, grad_mixed, products, beside, partial,
    tokens, count, group, eps, norm_eps, gain,
    width: tl.constexpr, kind: tl.constexpr, packed: tl.constexpr, halved: tl.constexpr, has_norm: tl.constexpr,
    tile_tokens: tl.constexpr, tile_width: tl.constexpr,
):  # fmt: skip
    """`norm_backward` of `group` tokens, whole tiles of them; `partial[program]` gets the sum for the weight.

    `halved`: `extend_halves_backward`, `mixed` being the part; without a norm of one tile.
    """
    program = tl.program_id(0)
    d = tl.arange(0, tile_width)
    grad_weight = tl.zeros([tile_width], tl.float32)
    group = group if has_norm else tile_tokens
    begin = program.to(tl.int64) * group
    for start in range(0, group, tile_tokens):
        t = begin + start + tl.arange(0, tile_tokens)
        row = t < tokens
        mask = row[:, None] & (d < width)[None, :]
        at = t[:, None] * width + d[None, :]
        if halved:
            h = _mixture_again(
                mixed, share, sources, folded, maximum, total, count, eps, gain, t, d, row, mask, width, kind, packed
            )
        else:
            h = tl.load(mixed + at, mask=mask, other=0.0)
        result = tl.load(_rows(grad, 0, t, d, width, kind, packed), mask=mask, other=0.0)
        if has_norm:
            rstd = tl.rsqrt(tl.sum(h * h, 1) / width + norm_eps)
            incoming = result.to(tl.float32) * rstd[:, None]
            grad_weight += tl.sum(incoming * h, 0)
            incoming = incoming * tl.load(weight + d, mask=d < width, other=0.0)[None, :]
            result = (incoming - h * (tl.sum(incoming * h, 1) * rstd * rstd / width)[:, None]).to(kind)
            tl.store(grad_mixed + at, result, mask=mask)
        product = tl.sum(result.to(tl.float32) * h, 1)
        if halved:
            product = product / gain
            half = tl.load(mixed + at, mask=mask, other=0.0).to(tl.float32)
            of_part = tl.sum(result.to(tl.float32) * half, 1) * tl.load(share + t, mask=row, other=0.0)
            tl.store(beside + t, product - of_part, mask=row)
        tl.store(products + t, product, mask=row)
    if has_norm:
        tl.store(partial + program.to(tl.int64) * width + d, grad_weight, mask=d < width)


@triton.jit(do_not_specialize=["tokens"])
def row_products_kernel(
    grad, mixed, products, tokens,
    width: tl.constexpr, kind: tl.constexpr, packed: tl.constexpr,
    tile_tokens: tl.constexpr, tile_width: tl.constexpr,
):  # fmt: skip
    """`row_products`."""
    t, row = _tile(tl.program_id(0), tokens, tile_tokens)
    d = tl.arange(0, tile_width)
    mask = row[:, None] & (d < width)[None, :]
    g = tl.load(_rows(grad, 0, t, d, width, kind, packed), mask=mask, other=0.0).to(tl.float32)
    h = tl.load(mixed + t[:, None] * width + d[None, :], mask=mask, other=0.0)
    tl.store(products + t, tl.sum(g * h, 1), mask=row)


@triton.jit(do_not_specialize=["tokens", "count", "queries", "eps"])
def slice_scores_kernel(
    sources, folded, scores, tokens, count, queries, eps,
    width: tl.constexpr, kind: tl.constexpr, packed: tl.constexpr, tile_width: tl.constexpr,
):  # fmt: skip
    """For few tokens, D in slices: `scores [slices, T, N, 1 + R]`, sums of squares and inner products of a slice."""
    t = tl.program_id(0).to(tl.int64)
    piece = tl.program_id(1)
    d = piece * tile_width + tl.arange(0, tile_width)
    inside = d < width
    to = scores + (piece.to(tl.int64) * tokens + t) * count * (1 + queries)
    rows = t + tl.zeros([1], tl.int64)
    for n in range(count):
        v = tl.load(_rows(sources, n, rows, d, width, kind, packed), mask=inside[None, :], other=0.0).to(tl.float32)
        tl.store(to + n * (1 + queries) + tl.zeros([1], tl.int32), tl.sum(v * v, 1))
        for r in range(queries):
            query = tl.load(folded + r * width + d, mask=inside, other=0.0)
            tl.store(to + n * (1 + queries) + 1 + r + tl.zeros([1], tl.int32), tl.sum(v * query[None, :], 1))


@triton.jit(do_not_specialize=["tokens", "count", "queries", "slices", "whole", "eps", "gain"])
def slice_mix_kernel(
    sources, scores, outputs, maximum, total, scale, tokens, count, queries, slices, whole, eps, gain,
    width: tl.constexpr, kind: tl.constexpr, packed: tl.constexpr, out: tl.constexpr, halved: tl.constexpr,
    tile_slices: tl.constexpr, tile_width: tl.constexpr,
):  # fmt: skip
    """The reads of a slice of D, from the scores of all slices."""
    t = tl.program_id(0).to(tl.int64)
    piece = tl.program_id(1)
    d = piece * tile_width + tl.arange(0, tile_width)
    inside = d < width
    rows = t + tl.zeros([1], tl.int64)
    every = tl.arange(0, tile_slices)
    scored = scores + (every.to(tl.int64) * tokens + t) * count * (1 + queries)
    for r in range(queries):
        highest = tl.full([1], float("-inf"), tl.float32)
        weight = tl.zeros([1], tl.float32)
        longest = tl.zeros([1], tl.float32)
        values = tl.zeros([1, tile_width], tl.float32)
        for n in range(count):
            at = scored + n * (1 + queries)
            squares = tl.sum(tl.load(at, mask=every < slices, other=0.0), 0)
            product = tl.sum(tl.load(at + 1 + r, mask=every < slices, other=0.0), 0)
            logit = product * tl.rsqrt(squares / width + eps)
            v = tl.load(_rows(sources, n, rows, d, width, kind, packed), mask=inside[None, :], other=0.0).to(tl.float32)
            higher = tl.maximum(highest, logit)
            kept = tl.exp(highest - higher)
            exponential = tl.exp(logit - higher)
            values = values * kept[:, None] + exponential[:, None] * v
            weight = weight * kept + exponential
            if halved:
                longest = tl.maximum(longest, squares)
            highest = higher
        if piece == 0:
            tl.store(maximum + r * tokens + rows, highest)
            tl.store(total + r * tokens + rows, weight)
        base = tl.multiple_of(tl.load(outputs + r), 16)
        values = values * (gain / weight)[:, None]
        at = rows[:, None] * width + d[None, :]
        wanted = inside[None, :]
        if halved:
            power = _scale(tl.sqrt(longest))
            if piece == 0:
                tl.store(scale + r * tokens + rows, power)
            half = (values * _reciprocal(power)[:, None]).to(tl.float16)
            tl.store(base.to(tl.pointer_type(tl.float16)) + at, half, mask=wanted & (r != whole))
            values = half.to(tl.float32) * power[:, None]
            wanted = wanted & (r == whole)
        tl.store(base.to(tl.pointer_type(out)) + at, values.to(out), mask=wanted)
