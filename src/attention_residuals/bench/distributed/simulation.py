"""`simulation`: the share of a step that transport takes in long pipelines, on paper."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from attention_residuals.bench.distributed.models import KINDS, MODELS, Hardware, Sizes, load_of
from attention_residuals.bench.distributed.writing import Findings, paragraphs
from attention_residuals.bench.progress import Work
from attention_residuals.bench.results import Column, Table, Value
from attention_residuals.distributed.cuts import Cuts
from attention_residuals.distributed.layout import Schedule
from attention_residuals.distributed.simulation import Step, Wires, simulate
from attention_residuals.errors import InputError, require_positive

WIRES = {
    Wires.LINKS: "links between neighbours",
    Wires.PORTS: "one port a rank",
    Wires.BLOCKING: "no overlap",
}
SINGLE = (Schedule.GPIPE, Schedule.ONE_F_ONE_B)
GIGA = 1e9


@dataclass(frozen=True)
class Settings:
    """What is simulated.

    Args:
        ranks, chunks: P and V, every combination.
        gigabytes: a second, of one direction of a wire.
        micro_batches: of a step, a rank.

    Raises:
        InputError: a number that is not above 0.
    """

    ranks: tuple[int, ...] = (8, 16, 32, 64)
    chunks: tuple[int, ...] = (2, 4)
    gigabytes: tuple[float, ...] = (50.0, 400.0)
    micro_batches: int = 2
    hardware: Hardware = Hardware()

    def __post_init__(self) -> None:
        require_positive(self, "micro_batches")
        require_positive(self.hardware, "tokens")
        for name, values in (("ranks", self.ranks), ("chunks", self.chunks), ("gigabytes", self.gigabytes)):
            for value in values:
                if not value > 0:
                    raise InputError(f"{name} has {value}; each must be above 0")
        if min(self.ranks) < 2 or min(self.chunks) < 2:
            raise InputError("ranks and chunks must be at least 2: a pipeline has two ranks, interleaving two chunks")
        if not self.hardware.flops > 0:
            raise InputError(f"flops is {self.hardware.flops}; it must be above 0")


def run_simulation(settings: Settings, work: Work) -> Findings:
    """A table for each model and kind of wire, and one of the schedules with one chunk a rank."""
    tables = []
    for sizes in MODELS:
        for wires, words in WIRES.items():
            layouts = [
                (Schedule.INTERLEAVED_1F1B, ranks, chunks)
                for ranks, chunks in itertools.product(settings.ranks, settings.chunks)
            ]
            title = f"{sizes.name}, interleaved-1f1b, {words}"
            tables.append(_table(title, sizes, layouts, tuple(KINDS), wires, settings, work))
    layouts = [(schedule, ranks, 1) for schedule, ranks in itertools.product(SINGLE, settings.ranks)]
    title = f"{MODELS[-1].name}, one chunk a rank, {WIRES[Wires.LINKS]}"
    tables.append(_table(title, MODELS[-1], layouts, ("standard", "naive"), Wires.LINKS, settings, work))
    return Findings(tables, _notes(settings))


def _table(
    title: str,
    sizes: Sizes,
    layouts: Sequence[tuple[Schedule, int, int]],
    kinds: Sequence[str],
    wires: Wires,
    settings: Settings,
    work: Work,
) -> Table:
    fitting = [layout for layout in layouts if layout[1] * layout[2] <= sizes.sublayers]
    rows: list[dict[str, Value]] = []
    with work.stage(title, len(fitting)):
        for schedule, ranks, chunks in fitting:
            cuts = Cuts.even(sizes.sublayers, ranks, chunks)
            rows += _rows(sizes, cuts, schedule, kinds, wires, settings)
            work.advance()
    share = [Column(f"{kind}_exposed", f"exposed, {kind}, %", ".2f", factor=100) for kind in kinds]
    raw = [Column(f"{kind}_raw", f"raw, {kind}, %", ".2f", factor=100) for kind in kinds if kind != "received"]
    over = [Column(f"{kind}_over", f"{kind} over standard, %", ".2f", factor=100) for kind in (kinds[1], kinds[-1])]
    columns = [
        Column("schedule", "schedule"),
        Column("ranks", "P", "d"),
        Column("chunks", "V", "d"),
        Column("gigabytes", "GB/s", "g"),
        Column("bubble", "bubble, %", ".1f", factor=100),
        *share,
        *raw,
        *dict.fromkeys(over),
    ]
    return Table(title, columns, rows)


def _rows(
    sizes: Sizes, cuts: Cuts, schedule: Schedule, kinds: Sequence[str], wires: Wires, settings: Settings
) -> Iterator[dict[str, Value]]:
    """A row for each speed of the wires; what is sent stands side by side."""
    micro_batches = settings.micro_batches * cuts.ranks
    loads = {kind: load_of(sizes, cuts, kind, settings.hardware) for kind in kinds}
    still = replace(loads[kinds[0]], received=(0,) * cuts.chunks)
    ideal = simulate(still, cuts.ranks, micro_batches, schedule)
    for gigabytes in settings.gigabytes:
        row: dict[str, Value] = {
            "schedule": schedule.value,
            "ranks": cuts.ranks,
            "chunks": cuts.chunks // cuts.ranks,
            "gigabytes": gigabytes,
            "bubble": ideal.bubble,
            "seconds": ideal.seconds,
        }
        steps = {
            kind: simulate(load, cuts.ranks, micro_batches, schedule, gigabytes * GIGA, wires)
            for kind, load in loads.items()
        }
        for kind, step in steps.items():
            row |= _of(kind, step, ideal, steps["standard"])
        yield row


def _of(kind: str, step: Step, ideal: Step, standard: Step) -> dict[str, Value]:
    return {
        f"{kind}_seconds": step.seconds,
        f"{kind}_exposed": step.exposed(ideal),
        f"{kind}_raw": step.raw_transport,
        f"{kind}_over": step.seconds / standard.seconds - 1,
    }


def _notes(settings: Settings) -> list[str]:
    hardware = settings.hardware
    return paragraphs(f"""
Simulated, not measured (`distributed/simulation.py`). Ranks run their actions in the order of torch's schedules, each
as soon as the rank is free and its input has come.

{MODELS[0].describe()}

{MODELS[1].describe()}

A micro-batch is {hardware.tokens:,} tokens; a step has {settings.micro_batches} x P of them. A rank computes
{hardware.flops / 1e12:g} TFLOP/s: 2 FLOP a parameter and token forward, 4 backward, evenly over sublayers; embedding,
head, optimiser, recomputing and the reads over depth themselves take no time here.

Every tensor is tokens x width x {hardware.number_bytes} bytes; how many cross a cut follows from positions
(`Cuts.crossing`), and as many gradients come back. No latency, no other traffic on the wires; GB/s is one direction.

Links: a rank has a link to each neighbour, one transfer at a time in each direction. One port: one transfer out of a
rank and one into it at a time. No overlap: a rank computes nothing while it sends.

Bubble: the share of the ranks' time without computing when wires take no time. Exposed: the share of the step that goes
when wires take no time. Raw: seconds in which the rank that sends longest does so, over the step, hidden or not. Over
standard: how much longer the step is than with the standard residual on the same wires.

Standard is the one tensor of the standard residual; naive, received and cached are Block's whole state, the paper's
cross-stage caching, and what the receiver has neither received nor made.
""")
