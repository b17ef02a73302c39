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
def _exponents(wide, kind: tl.constexpr):
    """Of float32 numbers that `kind` can tell: the bits of the power of two at or below; see `ops/splitting.py`."""
    least: tl.constexpr = 113 << 23 if kind == tl.float16 else 1 << 23
    return tl.maximum(wide.to(tl.int32, bitcast=True) & 0x7F800000, least)


@triton.jit
def _steps(kind: tl.constexpr):
    """Of a rest in such a power of two: half the distance to the next number is 127 of them."""
    steps: tl.constexpr = 127.0 * 2**11 if kind == tl.float16 else 127.0 * 2**8
    return steps


@triton.jit
def _kept(rounded, rest, mask, kind: tl.constexpr, in_two: tl.constexpr):
    """Numbers in float32, which `_keep_in_two` may have stored."""
    values = tl.load(rounded, mask=mask, other=0.0).to(tl.float32)
    if in_two:
        power = _exponents(values, kind).to(tl.float32, bitcast=True)
        values += tl.load(rest, mask=mask, other=0).to(tl.float32) * (1 / _steps(kind)) * power
    return values


@triton.jit
def _keep_in_two(values, rounded, rest, mask, kind: tl.constexpr):
    """Stores numbers rounded to `kind`, and what that lost."""
    narrow = values.to(kind)
    tl.store(rounded, narrow, mask=mask)
    wide = narrow.to(tl.float32)
    # The exponents of a number and of its reciprocal add up to twice the bias, 127.
    reciprocal = ((254 << 23) - _exponents(wide, kind)).to(tl.float32, bitcast=True)
    steps = (values - wide) * reciprocal * _steps(kind)
    tl.store(rest, tl.floor(steps + 0.5).to(tl.int8), mask=mask)


@triton.jit(do_not_specialize=["tokens", "count", "queries", "eps", "gain"])
def mix_kernel(
    sources, folded, outputs, maximum, total, tokens, count, queries, eps, gain,
    width: tl.constexpr, kind: tl.constexpr, packed: tl.constexpr, out: tl.constexpr, in_two: tl.constexpr,
    tile_tokens: tl.constexpr, tile_queries: tl.constexpr, tile_width: tl.constexpr,
):  # fmt: skip
    """`mix`: a pass over the sources for every `tile_queries` reads; after the first one they are in the cache."""
    t, row = _tile(tl.program_id(0), tokens, tile_tokens)
    d = tl.arange(0, tile_width)
    mask = row[:, None] & (d < width)[None, :]
    for first in range(0, queries, tile_queries):
        r = first + tl.arange(0, tile_queries)
        wanted = (r < queries)[:, None] & (d < width)[None, :]
        query = tl.load(folded + r[:, None] * width + d[None, :], mask=wanted, other=0.0)
        highest = tl.full([tile_tokens, tile_queries], float("-inf"), tl.float32)
        weight = tl.zeros([tile_tokens, tile_queries], tl.float32)
        values = tl.zeros([tile_tokens, tile_queries, tile_width], tl.float32)
        for n in range(count):
            v = tl.load(_rows(sources, n, t, d, width, kind, packed), mask=mask, other=0.0).to(tl.float32)
            rstd = tl.rsqrt(tl.sum(v * v, 1) / width + eps)
            logit = tl.sum(v[:, None, :] * query[None, :, :], 2) * rstd[:, None]
            higher = tl.maximum(highest, logit)
            kept = tl.exp(highest - higher)
            exponential = tl.exp(logit - higher)
            values = values * kept[:, :, None] + exponential[:, :, None] * v[:, None, :]
            weight = weight * kept + exponential
            highest = higher
        values = values * (gain / weight)[:, :, None]
        known = row[:, None] & (r < queries)[None, :]
        at = r[None, :] * tokens + t[:, None]
        tl.store(maximum + at, highest, mask=known)
        tl.store(total + at, weight, mask=known)
        if in_two:
            # One after the other: what all of them together need beside their sums does not fit the registers.
            for q in tl.static_range(tile_queries):
                if first + q < queries:
                    mine = tl.sum(tl.where((r == first + q)[None, :, None], values, 0.0), 1)
                    to = tl.multiple_of(tl.load(outputs + first + q), 16).to(tl.pointer_type(out))
                    rest = tl.multiple_of(tl.load(outputs + queries + first + q), 16).to(tl.pointer_type(tl.int8))
                    offset = t[:, None] * width + d[None, :]
                    _keep_in_two(mine, to + offset, rest + offset, mask, out)
        else:
            base = tl.multiple_of(tl.load(outputs + r, mask=r < queries, other=0), 16).to(tl.pointer_type(out))
            to = base[None, :, None] + t[:, None, None] * width + d[None, None, :]
            tl.store(to, values.to(out), mask=known[:, :, None] & (d < width)[None, None, :])


@triton.jit(do_not_specialize=["tokens", "count", "eps", "norm_eps", "gain"])
def extend_kernel(
    sources, partial_sum, folded, part, part_rest, part_maximum, part_total, norm, mixed, rest, normed, added,
    maximum, total, tokens, count, eps, norm_eps, gain,
    width: tl.constexpr, kind: tl.constexpr, packed: tl.constexpr, in_two: tl.constexpr,
    has_norm: tl.constexpr, has_sum: tl.constexpr, has_mixed: tl.constexpr,
    tile_tokens: tl.constexpr, tile_width: tl.constexpr,
):  # fmt: skip
    """`extend`: one pass over the local sources, from where `part` ends, and the norm while the mixture is at hand.

    `has_sum`: the one source is the output added to the partial sum, and stored in `added`. `has_mixed`: the mixture
    is not the part once more, so it is stored.
    """
    t, row = _tile(tl.program_id(0), tokens, tile_tokens)
    d = tl.arange(0, tile_width)
    mask = row[:, None] & (d < width)[None, :]
    at = t[:, None] * width + d[None, :]
    query = tl.load(folded + d, mask=d < width, other=0.0)
    highest = tl.load(part_maximum + t, mask=row, other=0.0)
    weight = tl.load(part_total + t, mask=row, other=1.0)
    values = _kept(part + at, part_rest + at if in_two else part, mask, kind, in_two)
    share = tl.full([tile_tokens], 1.0, tl.float32)  # of the part, of which `values` begin as the mixture
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
        share = weight / begun
        values = values * share[:, None] + v * (exponential / begun)[:, None]
        highest = higher
    values = values * gain
    tl.store(maximum + t, highest, mask=row)
    tl.store(total + t, begun, mask=row)
    if has_norm:
        rstd = tl.rsqrt(tl.sum(values * values, 1) / width + norm_eps)
        scale = tl.load(norm + d, mask=d < width, other=0.0)
        tl.store(normed + at, (values * rstd[:, None] * scale[None, :]).to(kind), mask=mask)
    if has_mixed:
        if in_two:
            _keep_in_two(values, mixed + at, rest + at, mask, kind)
        else:
            tl.store(mixed + at, values, mask=mask)


@triton.jit
def _read_gradient(
    v, rstd, r, folded, grads, maxima, totals, t, d, row, mask,
    width: tl.constexpr, grad_kind: tl.constexpr, packed: tl.constexpr,
):  # fmt: skip
    """Of read `r` and a source `v`: rows (gradient, folded query), weight before the gain, product and logit."""
    g = tl.load(_rows(grads, r, t, d, width, grad_kind, packed), mask=mask, other=0.0).to(tl.float32)
    query = tl.load(folded + r * width + d, mask=d < width, other=0.0)
    logit = tl.sum(v * query[None, :], 1) * rstd
    weight = tl.exp(logit - _numbers(maxima, r, t, row, 0.0)) / _numbers(totals, r, t, row, 1.0)
    return g, query, weight, tl.sum(v * g, 1), logit


@triton.jit
def _deltas_of_sources(
    sources, grads, folded, maxima, totals, deltas, count, queries, eps, t, d, row, mask,
    width: tl.constexpr, kind: tl.constexpr, grad_kind: tl.constexpr, packed: tl.constexpr,
):  # fmt: skip
    """The offsets of reads whose sources these all are."""
    for r in range(queries):
        delta = tl.zeros_like(row.to(tl.float32))
        for n in range(count):
            v = tl.load(_rows(sources, n, t, d, width, kind, packed), mask=mask, other=0.0).to(tl.float32)
            rstd = tl.rsqrt(tl.sum(v * v, 1) / width + eps)
            _, _, weight, product, _ = _read_gradient(
                v, rstd, r, folded, grads, maxima, totals, t, d, row, mask, width, grad_kind, packed
            )
            delta += weight * product
        tl.store(tl.load(deltas + r).to(tl.pointer_type(tl.float32)) + t, delta, mask=row)


@triton.jit
def _deltas_of_mixtures(
    mixtures, grads, deltas, gains, queries, t, d, row, mask,
    width: tl.constexpr, kind: tl.constexpr, grad_kind: tl.constexpr, packed: tl.constexpr, in_two: tl.constexpr,
):  # fmt: skip
    """The offsets of those reads that came with a mixture."""
    for r in range(queries):
        address = tl.load(mixtures + r)
        if address != 0:
            mixture_kind: tl.constexpr = kind if in_two else tl.float32
            mixture = tl.multiple_of(address, 16).to(tl.pointer_type(mixture_kind))
            rest = mixture
            if in_two:
                rest = tl.multiple_of(tl.load(mixtures + queries + r), 16).to(tl.pointer_type(tl.int8))
            at = t[:, None] * width + d[None, :]
            h = _kept(mixture + at, rest + at, mask, kind, in_two)
            g = tl.load(_rows(grads, r, t, d, width, grad_kind, packed), mask=mask, other=0.0).to(tl.float32)
            gain = tl.load(gains + r).to(tl.float64, bitcast=True).to(tl.float32)
            to = tl.load(deltas + r).to(tl.pointer_type(tl.float32)) + t
            tl.store(to, tl.sum(g * h, 1) / gain, mask=row)


@triton.jit
def _add_to_sums(
    sums, scratch, sources, count, queries, start, t, d, mask,
    width: tl.constexpr, kind: tl.constexpr, packed: tl.constexpr,
    tile_tokens: tl.constexpr, tile_queries: tl.constexpr,
):  # fmt: skip
    """Adds what a tile of tokens gives to the gradients of the queries; the first one, at `start` 0, begins them."""
    for first in range(0, queries, tile_queries):
        r = first + tl.arange(0, tile_queries)
        at = r[:, None] * width + d[None, :]
        known = (r < queries)[:, None] & (d < width)[None, :]
        sum_of_tile = tl.load(sums + at, mask=known & (start > 0), other=0.0)
        for n in range(count):
            v = tl.load(_rows(sources, n, t, d, width, kind, packed), mask=mask, other=0.0).to(tl.float32)
            where = (tl.arange(0, tile_tokens)[:, None] * count + n) * queries + r[None, :]
            weight = tl.load(scratch + where, mask=(r < queries)[None, :], other=0.0)
            sum_of_tile += tl.sum(weight[:, :, None] * v[:, None, :], 0)
        tl.store(sums + at, sum_of_tile, mask=known)


@triton.jit(do_not_specialize=["tokens", "count", "queries", "group", "eps"])
def mix_backward_kernel(
    sources, running, grads, results, folded, maxima, totals, deltas, mixtures, gains, along, partial,
    tokens, count, queries, group, eps,
    width: tl.constexpr, kind: tl.constexpr, grad_kind: tl.constexpr, packed: tl.constexpr,
    has_running: tl.constexpr, has_deltas: tl.constexpr, has_mixtures: tl.constexpr, in_two: tl.constexpr,
    single: tl.constexpr, tile_tokens: tl.constexpr, tile_queries: tl.constexpr, tile_width: tl.constexpr,
):  # fmt: skip
    """`mix_backward` of `group` tokens, whole tiles of them; `partial[program]` gets the sum for the queries.

    `along [programs, tile_tokens, N, R]` is scratch: the weights of the sources in those gradients. `single`: R = 1,
    whose gradient stays at hand.
    """
    program = tl.program_id(0)
    d = tl.arange(0, tile_width)
    inside = d < width
    scratch = along + program.to(tl.int64) * tile_tokens * count * queries
    sums = partial + program.to(tl.int64) * queries * width
    grad_query = tl.zeros([tile_width], tl.float32)
    begin = program.to(tl.int64) * group
    for start in range(0, group, tile_tokens):
        t = begin + start + tl.arange(0, tile_tokens)
        row = t < tokens
        mask = row[:, None] & inside[None, :]
        if not has_deltas:
            _deltas_of_sources(
                sources, grads, folded, maxima, totals, deltas, count, queries, eps, t, d, row, mask,
                width, kind, grad_kind, packed,
            )  # fmt: skip
            tl.debug_barrier()
        if has_mixtures:
            _deltas_of_mixtures(
                mixtures, grads, deltas, gains, queries, t, d, row, mask, width, kind, grad_kind, packed, in_two
            )
            tl.debug_barrier()
        for n in range(count):
            v = tl.load(_rows(sources, n, t, d, width, kind, packed), mask=mask, other=0.0).to(tl.float32)
            rstd = tl.rsqrt(tl.sum(v * v, 1) / width + eps)
            result = tl.zeros([tile_tokens, tile_width], tl.float32)
            if has_running:
                if tl.load(running + n * (1 if packed else FIELDS)) != 0:
                    more = tl.load(_rows(running, n, t, d, width, kind, packed), mask=mask, other=0.0)
                    result += more.to(tl.float32)
            along_source = tl.zeros([tile_tokens], tl.float32)
            for r in range(queries):
                g, query, weight, product, logit = _read_gradient(
                    v, rstd, r, folded, grads, maxima, totals, t, d, row, mask, width, grad_kind, packed
                )
                weight *= tl.load(gains + r).to(tl.float64, bitcast=True).to(tl.float32)
                grad_logit = weight * (product - _numbers(deltas, r, t, row, 0.0))
                grad_logit = tl.where(row, grad_logit, 0.0)
                along_query = grad_logit * rstd
                along_source -= along_query * logit * rstd / width
                result += g * weight[:, None] + query[None, :] * along_query[:, None]
                if single:
                    grad_query += tl.sum(v * along_query[:, None], 0)
                else:
                    tl.store(scratch + (tl.arange(0, tile_tokens) * count + n) * queries + r, along_query)
            result += v * along_source[:, None]
            to = tl.multiple_of(tl.load(results + n), 16).to(tl.pointer_type(kind)) + t[:, None] * width + d[None, :]
            tl.store(to, result.to(kind), mask=mask)
        if not single:
            tl.debug_barrier()
            _add_to_sums(
                sums, scratch, sources, count, queries, start, t, d, mask,
                width, kind, packed, tile_tokens, tile_queries,
            )  # fmt: skip
            tl.debug_barrier()
    if single:
        tl.store(sums + d, grad_query, mask=inside)


@triton.jit(do_not_specialize=["tokens", "group", "eps"])
def norm_backward_kernel(
    grad, mixed, rest, weight, grad_mixed, products, partial, tokens, group, eps,
    width: tl.constexpr, kind: tl.constexpr, packed: tl.constexpr, in_two: tl.constexpr,
    tile_tokens: tl.constexpr, tile_width: tl.constexpr,
):  # fmt: skip
    """`norm_backward` of `group` tokens, whole tiles of them; `partial[program]` gets the sum for the weight."""
    program = tl.program_id(0)
    d = tl.arange(0, tile_width)
    scale = tl.load(weight + d, mask=d < width, other=0.0)
    grad_weight = tl.zeros([tile_width], tl.float32)
    begin = program.to(tl.int64) * group
    for start in range(0, group, tile_tokens):
        t = begin + start + tl.arange(0, tile_tokens)
        row = t < tokens
        mask = row[:, None] & (d < width)[None, :]
        at = t[:, None] * width + d[None, :]
        incoming = tl.load(_rows(grad, 0, t, d, width, kind, packed), mask=mask, other=0.0).to(tl.float32)
        h = _kept(mixed + at, rest + at if in_two else mixed, mask, kind, in_two)
        rstd = tl.rsqrt(tl.sum(h * h, 1) / width + eps)
        incoming = incoming * rstd[:, None]
        grad_weight += tl.sum(incoming * h, 0)
        incoming = incoming * scale[None, :]
        result = (incoming - h * (tl.sum(incoming * h, 1) * rstd * rstd / width)[:, None]).to(kind)
        tl.store(grad_mixed + at, result, mask=mask)
        tl.store(products + t, tl.sum(result.to(tl.float32) * h, 1), mask=row)
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


@triton.jit(do_not_specialize=["tokens", "count", "queries", "slices", "eps", "gain"])
def slice_mix_kernel(
    sources, scores, outputs, maximum, total, tokens, count, queries, slices, eps, gain,
    width: tl.constexpr, kind: tl.constexpr, packed: tl.constexpr, out: tl.constexpr, in_two: tl.constexpr,
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
            highest = higher
        if piece == 0:
            tl.store(maximum + r * tokens + rows, highest)
            tl.store(total + r * tokens + rows, weight)
        to = tl.multiple_of(tl.load(outputs + r), 16).to(tl.pointer_type(out))
        values = values * (gain / weight)[:, None]
        at = rows[:, None] * width + d[None, :]
        if in_two:
            rest = tl.multiple_of(tl.load(outputs + queries + r), 16).to(tl.pointer_type(tl.int8))
            _keep_in_two(values, to + at, rest + at, inside[None, :], out)
        else:
            tl.store(to + at, values.to(out), mask=inside[None, :])


@triton.jit(do_not_specialize=[f"a{n}" for n in range(16)])
def write_table_kernel(
    table,
    a0: tl.int64, a1: tl.int64, a2: tl.int64, a3: tl.int64,
    a4: tl.int64, a5: tl.int64, a6: tl.int64, a7: tl.int64,
    a8: tl.int64, a9: tl.int64, a10: tl.int64, a11: tl.int64,
    a12: tl.int64, a13: tl.int64, a14: tl.int64, a15: tl.int64,
):  # fmt: skip
    """Sixteen numbers into a table, as arguments of a kernel: a copy from the host could not be captured in a graph.

    Their type is given: by default it would follow from their values, and a kernel be compiled for each mixture.
    """
    tl.store(table, a0)
    tl.store(table + 1, a1)
    tl.store(table + 2, a2)
    tl.store(table + 3, a3)
    tl.store(table + 4, a4)
    tl.store(table + 5, a5)
    tl.store(table + 6, a6)
    tl.store(table + 7, a7)
    tl.store(table + 8, a8)
    tl.store(table + 9, a9)
    tl.store(table + 10, a10)
    tl.store(table + 11, a11)
    tl.store(table + 12, a12)
    tl.store(table + 13, a13)
    tl.store(table + 14, a14)
    tl.store(table + 15, a15)
