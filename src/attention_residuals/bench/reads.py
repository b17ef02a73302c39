"""`read`, `block` and `full`: reads by themselves, without a network around them."""

from collections.abc import Sequence

import torch
from torch import Tensor

from attention_residuals.bench.contest import Contest, Entry
from attention_residuals.bench.floors import block_units, full_units, read_units
from attention_residuals.bench.problems import (
    EPS,
    Computation,
    Problem,
    Verdict,
    differentiate,
    draw_incoming,
    draw_leaves,
    draw_vectors,
    expected_results,
    judge,
)
from attention_residuals.bench.progress import Work
from attention_residuals.bench.request import Request, Shape
from attention_residuals.bench.results import Table
from attention_residuals.bench.rivals import compiled, einsum_listing, fla_naive, unstacked
from attention_residuals.ops import Ahead, attn_res, attn_res_reference, open_group
from attention_residuals.streams import AttnRes, AttnResStream, Sublayers
from attention_residuals.streams.two_phase import FULL_GROUP_SUBLAYERS

FORWARD, BOTH = "forward", "forward + backward"

READ_ENTRIES = ("attn_res", "einsum", "einsum-compiled", "unstacked-compiled", "fla-naive")
GROUP_ENTRIES = ("two-phase", "single-reads")


def run_read(request: Request, work: Work) -> list[Table]:
    """One read of N sources, against other implementations."""
    return [table for shape in request.shapes for table in _contest_of_read(request, shape).run(request.budget, work)]


def run_block(request: Request, work: Work) -> list[Table]:
    """The S reads of one block over N closed sources, in two phases and one by one."""
    return [table for shape in request.shapes for table in _contest_of_block(request, shape).run(request.budget, work)]


def run_full(request: Request, work: Work) -> list[Table]:
    """All reads of Full over L sublayers, in two phases and one by one."""
    return [table for shape in request.shapes for table in _contest_of_full(request, shape).run(request.budget, work)]


def read_problem(sources: int, tokens: int, width: int, dtype: torch.dtype) -> Problem:
    """One read."""
    query, key_weight = draw_vectors(1, width, dtype)
    vectors = [vector.detach()[0].requires_grad_() for vector in (query, key_weight)]

    def oracle(leaves: list[Tensor], vectors: list[Tensor]) -> list[Tensor]:
        return [attn_res_reference(leaves, *vectors, eps=EPS)[0]]

    leaves, incoming = draw_leaves(sources, tokens, width, dtype), draw_incoming(1, tokens, width, dtype)
    return Problem(leaves, vectors, incoming, oracle, source_reads=sources)


def block_problem(sources: int, reads: int, tokens: int, width: int, dtype: torch.dtype) -> Problem:
    """A block in the midst of a network.

    Leaves: N closed sources, then the S - 1 outputs that the block's own reads see. Outputs: the S mixtures; the
    sources again, whose incoming gradients are those of later blocks; and the last partial sum, likewise.
    """
    leaves = draw_leaves(sources + reads - 1, tokens, width, dtype)
    incoming = draw_incoming(reads + sources + 1, tokens, width, dtype)
    count = sources * reads + reads - 1
    return Problem(leaves, list(draw_vectors(reads, width, dtype)), incoming, _block_by_formula(sources), count)


def _contest_of_read(request: Request, shape: Shape) -> Contest:
    sources, tokens, width = shape
    problem = read_problem(sources, tokens, width, request.torch_dtype)
    torch._dynamo.reset()  # a shape's code must not count towards the next one's limit of recompilations
    computations: dict[str, Computation | str] = {
        "attn_res": single_read,
        "einsum": einsum_listing,
        "einsum-compiled": compiled(einsum_listing),
        "unstacked-compiled": compiled(unstacked),
    }
    if request.wants("fla-naive"):
        computations["fla-naive"] = fla_naive()
    title = f"read: {sources} sources, {_tokens((tokens, width))}, {request.dtype}"
    return _contest(title, request, problem, computations, "attn_res", read_units(sources))


def _contest_of_block(request: Request, shape: Shape) -> Contest:
    sources, reads, tokens, width = shape
    problem = block_problem(sources, reads, tokens, width, request.torch_dtype)
    computations: dict[str, Computation | str] = {
        "two-phase": block_in_two_phases(sources),
        "single-reads": block_one_by_one(sources),
    }
    title = f"block: {reads} reads over {sources} closed sources, {_tokens((tokens, width))}, {request.dtype}"
    return _contest(title, request, problem, computations, "two-phase", block_units(sources, reads))


def full_problem(
    sublayers: int, tokens: int, width: int, dtype: torch.dtype
) -> tuple[Problem, AttnResStream, AttnResStream]:
    """All reads of Full, and the streams that do them in two phases and one by one; their parameters are its vectors.

    Leaves: the embedding, then the outputs of the sublayers. Outputs: the mixtures, that of the output read last.
    """
    streams = {
        name: AttnRes(Sublayers(1), two_phase=name == "two-phase", key_eps=EPS).build(sublayers, width, pre_norm=False)
        for name in GROUP_ENTRIES
    }
    ours, single = (streams[name].to(dtype) for name in GROUP_ENTRIES)
    assert isinstance(ours, AttnResStream) and isinstance(single, AttnResStream)
    single.queries, single.key_norms = ours.queries, ours.key_norms
    keys = [*map(str, range(1, sublayers)), ours.OUTPUT]
    vectors: list[Tensor] = [named[key] for named in (ours.queries, ours.key_norms) for key in keys]
    with torch.no_grad():
        for vector, value in zip(vectors, torch.cat(draw_vectors(sublayers, width, dtype)), strict=True):
            vector.copy_(value)
    leaves = draw_leaves(sublayers + 1, tokens, width, dtype)
    incoming = draw_incoming(sublayers, tokens, width, dtype)
    count = sum(range(2, sublayers + 2))
    return Problem(leaves, vectors, incoming, _full_by_formula, count), ours, single


def _contest_of_full(request: Request, shape: Shape) -> Contest:
    sublayers, tokens, width = shape
    problem, ours, single = full_problem(sublayers, tokens, width, request.torch_dtype)
    computations: dict[str, Computation | str] = {"two-phase": walk(ours), "single-reads": walk(single)}
    title = f"full: {sublayers} reads, {_tokens((tokens, width))}, {request.dtype}"
    return _contest(title, request, problem, computations, "two-phase", full_units(sublayers, FULL_GROUP_SUBLAYERS))


def _contest(
    title: str,
    request: Request,
    problem: Problem,
    computations: dict[str, Computation | str],
    reference: str,
    units: tuple[int, int],
) -> Contest:
    expected: list[Tensor] = []

    def entry(name: str, computation: Computation | str) -> Entry:
        if isinstance(computation, str):
            return Entry(name, absent=computation)

        def forward() -> None:
            with torch.no_grad():
                computation(problem.leaves, problem.vectors)

        def both() -> None:
            differentiate(computation, problem)

        def verdict() -> Verdict:
            if not expected:
                expected.extend(expected_results(problem))
            return judge(computation, problem, expected)

        return Entry(name, {FORWARD: forward, BOTH: both}, verdict, ours=name in ("attn_res", *GROUP_ENTRIES))

    unit = problem.unit_bytes
    return Contest(
        title,
        [entry(name, computation) for name, computation in computations.items() if request.wants(name)],
        reference,
        floor_bytes={FORWARD: units[0] * unit, BOTH: sum(units) * unit},
        facts={"unit_bytes": unit, "floor_units_forward": units[0], "floor_units_backward": units[1]},
    )


def single_read(leaves: list[Tensor], vectors: list[Tensor]) -> list[Tensor]:
    """`attn_res` of all leaves."""
    return [attn_res(leaves, *vectors, eps=EPS)]


def block_in_two_phases(count: int) -> Computation:
    """The reads of a block over `count` closed sources as a group."""

    def run(leaves: list[Tensor], vectors: list[Tensor]) -> list[Tensor]:
        group = open_group(leaves[:count], vectors[0].unbind(), vectors[1].unbind(), eps=EPS)
        mixtures, partial_sum = [group.read(0, (), 1.0)], None
        for n, output in enumerate(leaves[count:]):
            group, partial_sum = group.publish(output, partial_sum, Ahead(n + 1, 1.0, None))
            mixtures.append(group.read(n + 1, (partial_sum,), 1.0))
        return block_outputs(mixtures, group.common, partial_sum)

    return run


def block_one_by_one(count: int, read: Computation = single_read) -> Computation:
    """The same by single reads; `read` is one of them, and their gradients are added by autograd."""

    def run(leaves: list[Tensor], vectors: list[Tensor]) -> list[Tensor]:
        common = [leaf.view_as(leaf) for leaf in leaves[:count]]
        mixtures, partial_sum = read(common, [vectors[0][0], vectors[1][0]]), None
        for n, output in enumerate(leaves[count:], 1):
            partial_sum = output if partial_sum is None else partial_sum + output
            mixtures += read([*common, partial_sum], [vectors[0][n], vectors[1][n]])
        return block_outputs(mixtures, common, partial_sum)

    return run


def _block_by_formula(count: int) -> Computation:
    def run(leaves: list[Tensor], vectors: list[Tensor]) -> list[Tensor]:
        common = [leaf.view_as(leaf) for leaf in leaves[:count]]
        mixtures, partial_sum = [], None
        for n in range(len(leaves) - count + 1):
            if n:
                partial_sum = leaves[count] if partial_sum is None else partial_sum + leaves[count + n - 1]
            sources = common if partial_sum is None else [*common, partial_sum]
            mixtures.append(attn_res_reference(sources, vectors[0][n], vectors[1][n], eps=EPS)[0])
        return block_outputs(mixtures, common, partial_sum)

    return run


def block_outputs(mixtures: list[Tensor], common: Sequence[Tensor], partial_sum: Tensor | None) -> list[Tensor]:
    """What a block answers: its mixtures, the closed sources for later blocks, and its sum."""
    assert partial_sum is not None, "a block of one read has no partial sum"
    return [*mixtures, *common, partial_sum]


def walk(stream: AttnResStream) -> Computation:
    """All reads of a stream whose sublayers' outputs are the leaves; its parameters are the vectors."""

    def run(leaves: list[Tensor], vectors: list[Tensor]) -> list[Tensor]:
        state, mixtures = stream.start(leaves[0]), []
        for i, output in enumerate(leaves[1:]):
            if i:
                mixtures.append(stream.read(state, i))
            state = stream.write(state, i, output)
        return [*mixtures, stream.finish(state)]

    return run


def _full_by_formula(leaves: list[Tensor], vectors: list[Tensor]) -> list[Tensor]:
    reads = len(leaves) - 1
    pairs = zip(vectors[:reads], vectors[reads:], strict=True)
    return [attn_res_reference(leaves[: n + 2], *pair, eps=EPS)[0] for n, pair in enumerate(pairs)]


def _tokens(shape: Sequence[int]) -> str:
    return f"{shape[0]:,} tokens of width {shape[1]:,}"
