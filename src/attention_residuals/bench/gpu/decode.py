"""Reads of a few tokens: what counts is the start of kernels, so many reads make one CUDA graph where that works."""

import statistics
import time

import torch

from attention_residuals.bench.gpu import rivals
from attention_residuals.bench.gpu.mechanics import capture
from attention_residuals.bench.gpu.moving import on_device
from attention_residuals.bench.gpu.schedule import Clock, describe_error
from attention_residuals.bench.gpu.settings import Settings
from attention_residuals.bench.problems import Computation, Problem, expected_results, judge
from attention_residuals.bench.reads import read_problem, single_read
from attention_residuals.bench.results import Column, Table, Value
from attention_residuals.bench.timing import LEAST_ROUNDS

READS = 50
"""Reads in a graph."""


def decode_table(
    shape: tuple[int, int, int], settings: Settings, failure: str | None, clock: Clock, allowances: rivals.Allowances
) -> Table:
    """Microseconds a read of `shape` (N, T, D), replayed and called."""
    count, tokens, width = shape
    problem = on_device(read_problem(count, tokens, width, torch.bfloat16), settings.device)
    computations = {"attn_res": failure or single_read, **rivals.single_rivals(width)}
    rows: list[dict[str, Value]] = []
    for name, computation in computations.items():
        row: dict[str, Value] = {"implementation": name, "status": computation if isinstance(computation, str) else ""}
        if not isinstance(computation, str):
            with allowances.counted(name) as refusal:
                row |= (
                    {"status": refusal or "no time was left"}
                    if refusal or clock.over
                    else _row(computation, problem, settings)
                )
        rows.append(row)
    columns = [
        Column("implementation", "implementation"),
        Column("microseconds", "in a graph, µs a read", ".2f"),
        Column("called_microseconds", "called one by one, µs", ".1f"),
        Column("status", "status"),
    ]
    title = f"decode: {count} sources of {tokens} x {width:,}, bfloat16, forward"
    return Table(title, columns, rows, {"reads": READS})


def _row(computation: Computation, problem: Problem, settings: Settings) -> dict[str, Value]:
    try:
        verdict = judge(computation, problem, expected_results(problem))
        if not verdict.right:
            return {"status": verdict.words}
        with torch.no_grad():
            row: dict[str, Value] = {"status": verdict.words, "called_microseconds": _called(computation, problem)}
            if settings.on_gpu:
                row["microseconds"] = _replayed(computation, problem, settings.rounds)
        return row
    except Exception as error:  # of code that is not ours, or that cannot be captured
        return {"status": f"failed: {describe_error(error)}"}


def _replayed(computation: Computation, problem: Problem, rounds: int) -> float:
    """Median over replays of a graph of `READS` reads."""
    replay, _ = capture(lambda: [computation(problem.leaves, problem.vectors)[0] for _ in range(READS)])
    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    seconds = []
    for _ in range(max(rounds, LEAST_ROUNDS)):
        begun.record()
        replay()
        ended.record()
        ended.synchronize()
        seconds.append(begun.elapsed_time(ended) / 1e3)
    return 1e6 * statistics.median(seconds) / READS


def _called(computation: Computation, problem: Problem) -> float:
    """Of calls one after the other, the device waited for at the end."""
    for waited in (False, True):  # the first time round everything is warmed up
        begun = time.perf_counter()
        for _ in range(READS):
            computation(problem.leaves, problem.vectors)
        if problem.leaves[0].is_cuda:
            torch.cuda.synchronize()
        if waited:
            return 1e6 * (time.perf_counter() - begun) / READS
    raise AssertionError
