"""`grid`: every schedule x every cut of a small model x residuals x recomputing x transports, on two ranks."""

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from attention_residuals.bench.distributed.parity import ALLOWED, Case, Found, find_whole, larger, run_case
from attention_residuals.bench.distributed.spawning import on_ranks
from attention_residuals.bench.distributed.writing import Findings, paragraphs
from attention_residuals.bench.progress import Work
from attention_residuals.bench.results import Column, Table, Value
from attention_residuals.distributed.cuts import Transport
from attention_residuals.distributed.layout import Schedule
from attention_residuals.errors import InputError
from attention_residuals.models import SUBLAYERS_PER_LAYER

RANKS = 2
LEAST_LAYERS = 2
LEAST_BLOCK = 2


def run_grid(layers: int, block: int, work: Work) -> Findings:
    """A row for every kind of pipeline, each over every place where a network of so many layers can be cut.

    Raises:
        InputError: fewer layers than four chunks take, or blocks of less than two sublayers.
    """
    if layers < LEAST_LAYERS:
        raise InputError(f"layers is {layers}; the grid takes at least {LEAST_LAYERS}, for four chunks")
    if block < LEAST_BLOCK:
        raise InputError(f"block is {block}; the grid takes at least {LEAST_BLOCK}, since blocks of 1 are Full")
    cases = grid_cases(layers, block)
    found = on_ranks(RANKS, partial(_differences, cases), len(cases), "comparing", work)
    rows = _rows(cases, found, block)
    columns = [
        Column("schedule", "schedule"),
        Column("chunks", "chunks", "d"),
        Column("residual", "residual"),
        Column("recompute", "recomputed"),
        Column("transport", "transport"),
        Column("cuts", "cuts", "d"),
        Column("loss", "loss off by", ".1e"),
        Column("gradient", "gradient off by", ".1e"),
        Column("status", "status"),
    ]
    title = f"{len(cases)} pipelines of {RANKS} ranks, {SUBLAYERS_PER_LAYER * layers} sublayers"
    notes = paragraphs(f"""
Each row runs one step at every cut and compares the loss and every gradient with those of the plain model on one
process, in float64; off by is the largest difference of all cuts, entries and ranks, and {ALLOWED:.0e} is allowed.

Chunks are those of a rank. Recomputed: every step lies in an activation checkpoint.

Where a rank has one chunk there is nothing to keep, and the three transports send the same.
""")
    return Findings([Table(title, columns, rows)], notes, all(row["status"] == "right" for row in rows))


def grid_cases(layers: int, block: int) -> list[Case]:
    """All of them; those of one row follow each other."""
    places = range(1, SUBLAYERS_PER_LAYER * layers)
    cases = []
    for schedule in Schedule:
        several = range(2, layers + 1) if schedule is Schedule.INTERLEAVED_1F1B else (1,)
        for chunks, size, recompute, transport in itertools.product(
            several, (None, block, 1), (False, True), Transport
        ):
            for later in itertools.combinations(places, RANKS * chunks - 1):
                cases.append(Case(layers, size, (0, *later), RANKS, schedule, transport, recompute))
    return cases


def _differences(cases: Sequence[Case], rank: int, tick: Callable[[], None]) -> list[Any]:
    """The job of a rank."""
    wholes, rows = {}, []
    for case in cases:
        if case.block not in wholes:
            wholes[case.block] = find_whole(case)
        rows.append(_plain(run_case(case, rank, wholes[case.block])))
        tick()
    return rows


def _plain(found: Found) -> dict[str, Any]:
    return {"loss": found.loss, "gradient": found.gradient, "missing": found.missing, "right": found.right}


def _rows(cases: Sequence[Case], found: Sequence[Sequence[dict[str, Any]]], block: int) -> list[dict[str, Value]]:
    names = {None: "standard", block: f"Block of {block}", 1: "Full"}
    rows: dict[tuple[Any, ...], dict[str, Value]] = {}
    for n, case in enumerate(cases):
        chunks = len(case.cuts) // RANKS
        key = (case.schedule, chunks, case.block, case.recompute, case.transport)
        row = rows.setdefault(
            key,
            {
                "schedule": case.schedule.value,
                "chunks": chunks,
                "residual": names[case.block],
                "recompute": "yes" if case.recompute else "no",
                "transport": case.transport.value,
                "cuts": 0,
                "loss": 0.0,
                "gradient": 0.0,
                "status": "right",
            },
        )
        _add(row, case, [of_rank[n] for of_rank in found])
    return list(rows.values())


def _add(row: dict[str, Value], case: Case, of_ranks: Sequence[dict[str, Any]]) -> None:
    """Add what the ranks found for one cut to its row, in place; the first cut that is wrong is named."""
    row["cuts"] = int(row["cuts"] or 0) + 1
    for of_rank in of_ranks:
        for key in ("loss", "gradient"):
            row[key] = larger(float(row[key] or 0), of_rank[key])
        if not of_rank["right"] and row["status"] == "right":
            row["status"] = f"wrong at {case.cuts} {of_rank['missing']}".rstrip()
