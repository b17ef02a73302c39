"""`steps`: step times of pipelines on gloo ranks of this machine, those of one layout in turns."""

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from attention_residuals.bench.distributed.parity import mean_loss, vary_depth
from attention_residuals.bench.distributed.spawning import on_ranks
from attention_residuals.bench.distributed.writing import Findings, paragraphs
from attention_residuals.bench.networks import MODELS, decoder_config, residual_of
from attention_residuals.bench.progress import Work
from attention_residuals.bench.results import Column, Table, Value
from attention_residuals.bench.timing import Quartiles
from attention_residuals.distributed.cuts import Cuts, Transport
from attention_residuals.distributed.layout import PipelineConfig, Schedule
from attention_residuals.distributed.pipeline import Pipeline, build_chunks
from attention_residuals.errors import InputError, require_positive
from attention_residuals.models import DecoderConfig, build_decoder

CHUNKS = {Schedule.GPIPE: 1, Schedule.ONE_F_ONE_B: 1, Schedule.INTERLEAVED_1F1B: 2}
"""A rank."""

WARM_UP_STEPS = 2
STANDARD = MODELS[0]


@dataclass(frozen=True)
class Settings:
    """The model, its batch, and how often.

    Args:
        block: sublayers of a block of Block.
        tokens: of a sequence; a micro-batch is one sequence.
        rounds: in each of which everything runs once.

    Raises:
        InputError: a number below 1, more chunks than sublayers, or fewer micro-batches than ranks.
    """

    ranks: tuple[int, ...] = (1, 2, 4)
    layers: int = 8
    width: int = 64
    block: int = 4
    tokens: int = 64
    micro_batches: int = 8
    rounds: int = 9

    def __post_init__(self) -> None:
        require_positive(self, "layers", "width", "block", "tokens", "micro_batches", "rounds")
        for ranks in self.ranks:
            if ranks < 1:
                raise InputError(f"ranks has {ranks}; each must be at least 1")
            if self.micro_batches % ranks:
                raise InputError(f"micro_batches is {self.micro_batches}; take a multiple of every number of ranks")
            Cuts.even(self.config(STANDARD).sublayers, ranks, max(CHUNKS.values()))

    def config(self, model: str) -> DecoderConfig:
        """One of `MODELS`."""
        return decoder_config(self.width, self.layers, residual_of(model, self.block))


@dataclass(frozen=True)
class Entry:
    """What is timed; schedule and transport are None for a single process."""

    model: str
    schedule: Schedule | None = None
    transport: Transport | None = None


def run_steps(settings: Settings, work: Work) -> Findings:
    """A row for every number of ranks, schedule, residual and transport."""
    rows: list[dict[str, Value]] = []
    single: float | None = None
    for ranks in settings.ranks:
        entries = step_entries(ranks)
        job = partial(_times, settings, ranks)
        seconds, computing = on_ranks(ranks, job, settings.rounds, f"timing on {ranks} ranks", work)[0]
        if ranks == 1:
            single = statistics.median(seconds[0])
        rows += [_row(ranks, entry, entries, seconds, computing, single) for entry in entries]
    columns = [
        Column("ranks", "ranks", "d"),
        Column("schedule", "schedule"),
        Column("model", "residual"),
        Column("transport", "transport"),
        Column("seconds", "step, median, ms", ",.1f", factor=1e3),
        Column("low", "quartiles, ms", ",.1f", factor=1e3, until="high"),
        Column("ratio", "x standard, same layout", ".3f"),
        Column("ratio_low", "quartiles", ".3f", until="ratio_high"),
        Column("cpu_ratio", "CPU x standard", ".3f"),
        Column("cpu_ratio_low", "quartiles", ".3f", until="cpu_ratio_high"),
        Column("single", "x single process", ".2f"),
    ]
    title = (
        f"{settings.layers} layers, width {settings.width}, Block of {settings.block} sublayers, "
        f"{settings.micro_batches} micro-batches of {settings.tokens} tokens, float32, {settings.rounds} rounds"
    )
    return Findings([Table(title, columns, rows)], _notes())


def step_entries(ranks: int) -> list[Entry]:
    """What is timed on so many ranks; where a rank has one chunk all transports are one."""
    if ranks == 1:
        return [Entry(model) for model in MODELS]
    found = []
    for schedule, chunks in CHUNKS.items():
        for model in MODELS:
            several = chunks > 1 and model != STANDARD
            found += [
                Entry(model, schedule, one) for one in ((Transport.NAIVE, Transport.CACHED) if several else (None,))
            ]
    return found


def _times(settings: Settings, ranks: int, rank: int, tick: Callable[[], None]) -> list[Any]:
    """The job of a rank: seconds of each entry between barriers, one a round, and CPU seconds of all ranks."""
    steps = [_step(settings, entry, ranks, rank) for entry in step_entries(ranks)]
    for step in steps:
        for _ in range(WARM_UP_STEPS):
            step()
    seconds: list[list[float]] = [[] for _ in steps]
    computing: list[list[float]] = [[] for _ in steps]
    turns, shuffle = list(range(len(steps))), random.Random(0).shuffle
    for _ in range(settings.rounds):
        shuffle(turns)  # alike on every rank
        for n in turns:
            dist.barrier()
            begun, busy = time.perf_counter(), time.process_time()
            steps[n]()
            computing[n].append(time.process_time() - busy)
            dist.barrier()
            seconds[n].append(time.perf_counter() - begun)
        tick()
    of_all = torch.tensor(computing, dtype=torch.float64)
    dist.all_reduce(of_all)
    return [seconds, of_all.tolist()]


def _step(settings: Settings, entry: Entry, ranks: int, rank: int) -> Callable[[], object]:
    config, generator = settings.config(entry.model), torch.Generator().manual_seed(0)
    shape = (settings.micro_batches, settings.tokens + 1)
    rows = torch.randint(config.vocab_size, shape, generator=generator)
    tokens, targets = rows[:, :-1], rows[:, 1:]
    if entry.schedule is None:
        model = build_decoder(config, seed=0)
        vary_depth(model)

        def plain() -> None:
            model.zero_grad()
            for n in range(settings.micro_batches):
                loss = mean_loss(model(tokens[n : n + 1]), targets[n : n + 1])
                (loss / settings.micro_batches).backward()

        return plain
    cuts, transport = Cuts.even(config.sublayers, ranks, CHUNKS[entry.schedule]), entry.transport or Transport.CACHED
    chunks = build_chunks(config, cuts, rank, transport, seed=0)
    for chunk in chunks.values():
        vary_depth(chunk.part)
    pipeline = Pipeline(
        chunks, PipelineConfig(settings.micro_batches, entry.schedule, transport), (1, settings.tokens), mean_loss
    )

    def step() -> None:
        for chunk in chunks.values():
            chunk.zero_grad()
        pipeline.step(tokens, targets)

    return step


def _row(
    ranks: int,
    entry: Entry,
    entries: Sequence[Entry],
    seconds: Sequence[Sequence[float]],
    computing: Sequence[Sequence[float]],
    single: float | None,
) -> dict[str, Value]:
    own, standard = (entries.index(one) for one in (entry, Entry(STANDARD, entry.schedule)))
    times = Quartiles.of(seconds[own])
    row: dict[str, Value] = {
        "ranks": ranks,
        "schedule": entry.schedule.value if entry.schedule else "one process",
        "model": entry.model,
        "transport": entry.transport.value if entry.transport else None,
        "seconds": times.median,
        "low": times.low,
        "high": times.high,
        "single": None if single is None else times.median / single,
    }
    for key, values in (("ratio", seconds), ("cpu_ratio", computing)):
        ratios = Quartiles.of([a / b for a, b in zip(values[own], values[standard], strict=True)])
        row |= {key: ratios.median, f"{key}_low": ratios.low, f"{key}_high": ratios.high}
    return row


def _notes() -> list[str]:
    return paragraphs("""
A step is forward and backward of all micro-batches, without the optimiser, from a barrier to the next. All entries of
one number of ranks run in the same processes, once a round in a new order; x standard is of the same round.

No claim about speed: the ranks share the cores of one machine, and sublayers are tiny, so that starting kernels and
gloo's messages are most of a step. x single process is of medians that were not taken in turns.

CPU x standard is the ratio of the seconds that all ranks together compute, gloo's threads included; other work on the
machine changes it less.

Where a rank has one chunk all transports send the same, and there is one row.
""")
