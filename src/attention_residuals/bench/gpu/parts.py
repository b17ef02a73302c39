"""The parts of a run: checks, preparation of rivals, then what is timed, and last the project's bars."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from attention_residuals.bench.contest import Entry
from attention_residuals.bench.floors import block_units, full_units, read_units
from attention_residuals.bench.gpu import rivals
from attention_residuals.bench.gpu.bars import bar_table
from attention_residuals.bench.gpu.contests import GpuContest
from attention_residuals.bench.gpu.decode import decode_table
from attention_residuals.bench.gpu.jobs import Found, jobs, preparations, run_jobs
from attention_residuals.bench.gpu.moving import on_device
from attention_residuals.bench.gpu.schedule import Clock, Part
from attention_residuals.bench.gpu.settings import Settings
from attention_residuals.bench.gpu.steps import step_table
from attention_residuals.bench.gpu.writing import Report
from attention_residuals.bench.problems import Computation, Problem, differentiate, expected_results, judge
from attention_residuals.bench.reads import (
    BOTH,
    FORWARD,
    block_in_two_phases,
    block_one_by_one,
    block_problem,
    full_problem,
    read_problem,
    single_read,
    walk,
)
from attention_residuals.bench.results import Column, Table
from attention_residuals.streams.two_phase import FULL_GROUP_SUBLAYERS

DTYPE = torch.bfloat16
OURS, SINGLE = "attn_res", "single reads"
TWO_PHASE = "two-phase"


@dataclass
class Verdicts:
    """What the checks found; without any nothing is held against anybody."""

    found: list[Found] = field(default_factory=list)

    @property
    def all_right(self) -> bool:
        """Whether every check was."""
        return all(one.right for one in self.found)

    def failure(self, width: int) -> str | None:
        """Why nothing of ours is timed at this width, if so. Many variants are slow to compile, but not wrong."""
        name = str(DTYPE).removeprefix("torch.")
        wrong = [
            one.check
            for one in self.found
            if not one.right and one.dtype == name and one.width == width and one.check != "variants"
        ]
        return f"not timed: {', '.join(wrong[:3])} failed the checks" if wrong else None


@dataclass
class Run:
    """What the parts share."""

    settings: Settings
    report: Report
    verdicts: Verdicts = field(default_factory=Verdicts)
    allowances: rivals.Allowances = field(default_factory=rivals.Allowances)


def check(run: Run, clock: Clock) -> None:
    """Every operator, groups, graphs, the compiler, variants."""
    for found in run_jobs(jobs(run.settings), run.settings.processes, clock):
        run.verdicts.found += found
        run.report.add(_checks_table(run.verdicts.found))


def prepare(run: Run, clock: Clock) -> None:
    """Let rivals compile what they will need, all at once."""
    todo = preparations(run.settings) if run.settings.on_gpu else []
    found = [one for some in (run_jobs(todo, run.settings.processes, clock) if todo else ()) for one in some]
    run.report.add(_table("rivals prepared", found))


def time_reads(run: Run, clock: Clock) -> None:
    """Single reads."""
    for shape in run.settings.reads:
        count, tokens, width = shape
        computations = {OURS: single_read, **rivals.single_rivals(width)}
        problem = read_problem(count, tokens, width, DTYPE)
        title = f"read: {count} sources of {tokens:,} x {width:,}"
        _contest(run, clock, title, problem, computations, OURS, read_units(count))


def time_blocks(run: Run, clock: Clock) -> None:
    """The reads of a block, in two phases, by single reads and by others."""
    for count, reads, tokens, width in run.settings.blocks:
        singles = {
            name: read if isinstance(read, str) else block_one_by_one(count, read)
            for name, read in rivals.single_rivals(width).items()
            if name not in (rivals.FLASH, "einsum-compiled")
        }
        computations = {
            TWO_PHASE: block_in_two_phases(count),
            SINGLE: block_one_by_one(count),
            rivals.FLASH: rivals.flash_block(count, width),
            **singles,
        }
        problem = block_problem(count, reads, tokens, width, DTYPE)
        title = f"block: {reads} reads over {count} closed sources of {tokens:,} x {width:,}"
        _contest(run, clock, title, problem, computations, TWO_PHASE, block_units(count, reads))


def time_full(run: Run, clock: Clock) -> None:
    """All reads of Full."""
    reads, tokens, width = run.settings.full
    problem, ours, single = full_problem(reads, tokens, width, DTYPE)
    ours.to(run.settings.device)
    fla = rivals.single_rivals(width)[rivals.FLA]
    computations: dict[str, Computation | str] = {
        TWO_PHASE: walk(ours),
        SINGLE: walk(single),
        rivals.FLA: fla if isinstance(fla, str) else _full_by(fla),
        rivals.FAST: "left out: it tunes itself for every number of sources, of which Full has as many as reads",
    }
    title = f"full: {reads} reads of {tokens:,} x {width:,}"
    _contest(run, clock, title, problem, computations, TWO_PHASE, full_units(reads, FULL_GROUP_SUBLAYERS))


def time_decode(run: Run, clock: Clock) -> None:
    """Reads of a few tokens."""
    for shape in run.settings.decode:
        run.report.add(decode_table(shape, run.settings, run.verdicts.failure(shape[2]), clock, run.allowances))


def time_steps(run: Run, clock: Clock) -> None:
    """Whole training steps, not compiled and compiled."""
    failure = run.verdicts.failure(run.settings.network[1])
    for compiled in (False, True):
        run.report.add(step_table(run.settings, compiled, failure, clock))


def hold_against_bars(run: Run, clock: Clock) -> None:
    """What the project asks of itself, and what was found."""
    run.report.add(bar_table(run.report.tables))


PARTS: dict[str, Part] = {
    "checks": Part(120, check),
    "prepare": Part(45, prepare),
    "reads": Part(50, time_reads),
    "blocks": Part(30, time_blocks),
    "full": Part(20, time_full),
    "decode": Part(15, time_decode),
    "steps": Part(50, time_steps),
    "bars": Part(5, hold_against_bars),
}
"""In this order; the seconds are what each may take, and what one leaves the whole has."""


def _contest(
    run: Run,
    clock: Clock,
    title: str,
    drawn: Problem,
    computations: Mapping[str, Computation | str],
    reference: str,
    units: tuple[int, int],
) -> None:
    """Run a contest on the device and report its tables."""
    torch._dynamo.reset()
    problem, width = on_device(drawn, run.settings.device), drawn.leaves[0].shape[-1]
    expected = expected_results(problem)
    failure = run.verdicts.failure(width)

    def entry(name: str, computation: Computation | str) -> Entry:
        if name in (OURS, TWO_PHASE, SINGLE) and failure:
            computation = failure
        if isinstance(computation, str):
            return Entry(name, absent=computation)

        def forward() -> None:
            with torch.no_grad():
                computation(problem.leaves, problem.vectors)

        def both() -> None:
            differentiate(computation, problem)

        return Entry(name, {FORWARD: forward, BOTH: both}, lambda: judge(computation, problem, expected))

    unit = problem.unit_bytes
    contest = GpuContest(
        f"{title}, {str(DTYPE).removeprefix('torch.')}",
        [entry(name, computation) for name, computation in computations.items()],
        reference,
        floor_bytes={FORWARD: units[0] * unit, BOTH: sum(units) * unit},
        facts={"unit_bytes": unit},
        device=run.settings.device,
        rounds=run.settings.rounds,
    )
    for table in contest.run_on_gpu(clock, run.allowances):
        run.report.add(table)


def _full_by(read: Computation) -> Computation:
    """All reads of Full by single ones of another implementation."""

    def run(leaves: list[torch.Tensor], vectors: list[torch.Tensor]) -> list[torch.Tensor]:
        sources = [leaf.view_as(leaf) for leaf in leaves]
        reads = len(leaves) - 1
        pairs = zip(vectors[:reads], vectors[reads:], strict=True)
        return [mixed for n, pair in enumerate(pairs) for mixed in read(sources[: n + 2], list(pair))]

    return run


def _checks_table(found: Sequence[Found]) -> Table:
    wrong = sum(not one.right for one in found)
    note = f"{len(found)} done, {wrong} wrong"
    return _table("checks against the formula in float64", found, note)


def _table(title: str, found: Sequence[Found], note: str = "") -> Table:
    columns = [
        Column("check", "check"),
        Column("dtype", "type"),
        Column("width", "D", ",d"),
        Column("worst", "error / allowed", ".2f"),
        Column("words", "found"),
    ]
    rows = [
        {"check": one.check, "dtype": one.dtype, "width": one.width, "worst": one.worst, "words": one.words}
        for one in sorted(found, key=lambda one: (one.right, one.check, one.width, one.dtype))
    ]
    return Table(title, columns, list(rows), {"note": note} if note else {})
