"""`volumes`: what crosses each cut and what a rank keeps: enumerated, by the paper, and counted on gloo ranks."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from attention_residuals.bench.distributed.parity import MICRO_BATCHES, UNIT_BYTES, Case, find_whole, run_case
from attention_residuals.bench.distributed.spawning import on_ranks
from attention_residuals.bench.distributed.writing import Findings, paragraphs
from attention_residuals.bench.progress import Work
from attention_residuals.bench.results import Column, Table, Value
from attention_residuals.distributed.cuts import Transport
from attention_residuals.distributed.layout import Schedule
from attention_residuals.distributed.orders import order
from attention_residuals.distributed.volumes import Passage, Sum, closed_form, most_held, walk
from attention_residuals.models import SUBLAYERS_PER_LAYER

LAYOUTS = ((2, 2), (4, 2), (2, 4))
"""Ranks and chunks a rank; each chunk is two sublayers, attention and MLP of one layer."""

BLOCKS = {2: "a chunk", 4: "two chunks", 3: "3 sublayers"}
FIGURE_3 = {Transport.NAIVE: 19, Transport.RECEIVED: 13}
"""Of 4 ranks with 2 chunks each, a block over two chunks; the embedding is counted."""

STEPS = 2
"""The first one makes connections."""


def run_volumes(work: Work) -> Findings:
    """Every layout, block and transport: the three ways to know what is sent have to agree."""
    cases = volume_cases()
    counted: dict[Case, list[Any]] = {}
    for ranks in sorted({case.ranks for case in cases}):
        own = [case for case in cases if case.ranks == ranks]
        found = on_ranks(ranks, partial(_counts, own), len(own), f"counting on {ranks} ranks", work)
        counted |= {case: [of_rank[n] for of_rank in found] for n, case in enumerate(own)}
    rows = [_row(case, counted[case]) for case in cases]
    columns = [
        Column("ranks", "P", "d"),
        Column("chunks", "V", "d"),
        Column("block", "a block is"),
        Column("transport", "transport"),
        Column("embeddings", "embedding", "d"),
        Column("blocks", "closed blocks", "d"),
        Column("sums", "open sums", "d"),
        Column("paper", "the paper"),
        Column("enumerated", "enumerated, B", ",d"),
        Column("states", "counted states, B", ",d"),
        Column("gradients", "counted gradients, B", ",d"),
        Column("held", "blocks held, rank by rank"),
        Column("status", "status"),
    ]
    title = f"Sends over all cuts in one step, interleaved-1f1b, a tensor {UNIT_BYTES:,} B over all micro-batches"
    notes = paragraphs("""
Enumerated: a walk through the network with the set of sums that each rank has. Counted: bytes of the tensors that torch
hands to the process group, by cut; equal is a row whose counts are the enumeration cut by cut, forward and back.

The paper: Eq. 7 and 8 count closed blocks without the embedding where each chunk is whole blocks; its Figure 3 counts
the embedding. It has nothing on `cached`, which also leaves out what the receiver made.

Held: the most blocks that a rank keeps for its later chunks at a time, over all micro-batches in flight, until its last
chunk has taken them; what a backward still needs lives on in the graph. Counted, and equal is a row where the order of
the schedule says the same.
""")
    return Findings([Table(title, columns, rows)], notes, all(row["status"] == "equal" for row in rows))


def volume_cases() -> list[Case]:
    """All of them."""
    return [
        Case(
            ranks * chunks,
            block,
            tuple(SUBLAYERS_PER_LAYER * chunk for chunk in range(ranks * chunks)),
            ranks,
            Schedule.INTERLEAVED_1F1B,
            transport,
        )
        for ranks, chunks in LAYOUTS
        for block in BLOCKS
        for transport in Transport
    ]


def _counts(cases: Sequence[Case], rank: int, tick: Callable[[], None]) -> list[Any]:
    """The job of a rank."""
    rows = []
    for case in cases:
        found = run_case(case, rank, find_whole(case), STEPS)
        sends = found.counted
        row = {"right": found.right, "most_held": found.most_held, "other": sends.other}
        rows.append({**row, "states": sends.states, "gradients": sends.gradients})
        tick()
    return rows


def _row(case: Case, of_ranks: Sequence[dict[str, Any]]) -> dict[str, Value]:
    passages = walk(case.chunks, case.block, case.transport)
    chunks = len(case.cuts) // case.ranks
    sent = [one for passage in passages for one in passage.sent]
    embeddings = sum(one.block == 0 for one in sent)
    blocks = sum(_is_closed(one, case.block) for one in sent) - embeddings
    held = [
        most_held(passages, case.ranks, order(case.schedule, rank, case.ranks, chunks, MICRO_BATCHES))
        for rank in range(case.ranks)
    ]
    paper, agrees = _paper(case, blocks, embeddings)
    words = [
        *([] if agrees else ["not the paper's"]),
        *([] if all(one["right"] for one in of_ranks) else ["wrong gradients"]),
        *([] if _by_cut(of_ranks, "states") == _enumerated(passages) else ["other states"]),
        *([] if _by_cut(of_ranks, "gradients") == _enumerated(passages) else ["other gradients"]),
        *([] if held == [one["most_held"] for one in of_ranks] else ["other blocks held"]),
        *([] if not any(one["other"] for one in of_ranks) else ["sent beside the stages"]),
    ]
    return {
        "ranks": case.ranks,
        "chunks": chunks,
        "block": BLOCKS[case.block or 0],
        "transport": case.transport.value,
        "embeddings": embeddings,
        "blocks": blocks,
        "sums": len(sent) - blocks - embeddings,
        "paper": paper,
        "enumerated": sum(_enumerated(passages).values()),
        "states": sum(_by_cut(of_ranks, "states").values()),
        "gradients": sum(_by_cut(of_ranks, "gradients").values()),
        "held": ", ".join(str(one["most_held"]) for one in of_ranks),
        "status": ", ".join(words) or "equal",
    }


def _paper(case: Case, blocks: int, embeddings: int) -> tuple[str | None, bool]:
    """What the paper says of a case, and whether that is what was enumerated."""
    chunks = len(case.cuts) // case.ranks
    if case.block == SUBLAYERS_PER_LAYER:
        form = closed_form(case.ranks, chunks, 1, case.transport)
        equation = {Transport.NAIVE: "Eq. 7", Transport.RECEIVED: "Eq. 8"}.get(case.transport)
        return (None, True) if form is None else (f"{equation}: {form}", form == blocks)
    figure = FIGURE_3.get(case.transport)
    if (case.ranks, chunks, case.block) == (4, 2, 2 * SUBLAYERS_PER_LAYER) and figure is not None:
        return f"Figure 3: {figure}", figure == blocks + embeddings
    return None, True


def _is_closed(one: Sum, block: int | None) -> bool:
    return one.block == 0 or one.outputs == block


def _enumerated(passages: Sequence[Passage]) -> dict[int, int]:
    """Bytes by the chunk behind the cut."""
    return {chunk: len(passage.sent) * UNIT_BYTES for chunk, passage in enumerate(passages) if chunk}


def _by_cut(of_ranks: Sequence[dict[str, Any]], way: str) -> dict[int, int]:
    """What all ranks together sent; JSON has made text of the numbers of chunks."""
    total: dict[int, int] = {}
    for of_rank in of_ranks:
        for chunk, count in of_rank[way].items():
            total[int(chunk)] = total.get(int(chunk), 0) + count
    return dict(sorted(total.items()))
