"""Checks as jobs that processes share: most of their time is the compiler's. What one compiles, all find on disk."""

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from functools import partial

import torch

from attention_residuals.bench.gpu import mechanics
from attention_residuals.bench.gpu.calls import kernels_on
from attention_residuals.bench.gpu.checks import OPERATOR_CHECKS, Inputs
from attention_residuals.bench.gpu.moving import on_device
from attention_residuals.bench.gpu.rivals import single_rivals
from attention_residuals.bench.gpu.schedule import Clock, describe_error
from attention_residuals.bench.gpu.settings import Settings
from attention_residuals.bench.problems import Computation, Problem, differentiate, expected_results, judge
from attention_residuals.bench.reads import (
    block_in_two_phases,
    block_problem,
    full_problem,
    read_problem,
    single_read,
    walk,
)


@dataclass(frozen=True)
class Found:
    """What a check found: of what, for which shape, and whether it is right."""

    check: str
    dtype: str
    width: int
    right: bool
    words: str
    worst: float | None = None


@dataclass(frozen=True)
class Job:
    """All checks of one kind for one width and type."""

    kind: str
    dtype: torch.dtype
    width: int
    settings: Settings
    rival: str = ""
    shape: tuple[int, ...] = ()

    def found(self, check: str, right: bool, words: str, worst: float | None = None) -> Found:
        """A finding of this job."""
        return Found(check, str(self.dtype).removeprefix("torch."), self.width, right, words, worst)


def jobs(settings: Settings) -> list[Job]:
    """Every check, the widest first: they take longest."""
    every = [
        Job(kind, dtype, width, settings)
        for width in sorted(settings.widths, reverse=True)
        for dtype in settings.dtypes
        for kind in ("operators", "groups", "same bits")
    ]
    width = settings.widths[len(settings.widths) // 2]
    kinds = ("variants", "CUDA graph", "fullgraph") if settings.on_gpu else ()
    once = [Job(kind, dtype, width, settings) for kind in kinds for dtype in (torch.bfloat16, torch.float32)]
    return [*once, *every]


def preparations(settings: Settings) -> list[Job]:
    """Every rival at every shape of a read once, so that what it compiles is on disk before its turn comes."""
    return [
        Job("rival", torch.bfloat16, shape[2], settings, name, shape)
        for shape in settings.reads
        for name, computation in single_rivals(shape[2]).items()
        if not isinstance(computation, str) and name != "einsum"
    ]


def run_job(job: Job) -> list[Found]:
    """Do it; what fails is a finding."""
    try:
        with kernels_on(job.settings.device):
            return KINDS[job.kind](job)
    except Exception as error:  # a kernel that does not compile is a finding like another
        return [job.found(job.kind, False, describe_error(error))]


def run_jobs(todo: Sequence[Job], processes: int, clock: Clock) -> Iterator[list[Found]]:
    """Findings as they come; jobs that have none when the time is over are findings of their own."""
    if processes == 0:
        for job in todo:
            yield [job.found(job.kind, False, "not checked: no time was left")] if clock.over else run_job(job)
        return
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(processes, len(todo)), mp_context=context)
    pending: dict[Future[list[Found]], Job] = {pool.submit(run_job, job): job for job in todo}
    try:
        while pending and not clock.over:
            done, _ = wait(pending, timeout=clock.left, return_when=FIRST_COMPLETED)
            for future in done:
                job = pending.pop(future)
                error = future.exception()
                yield future.result() if error is None else [job.found(job.kind, False, describe_error(error))]
        for job in pending.values():
            yield [job.found(job.kind, False, "not checked: no time was left")]
    finally:
        running = list((getattr(pool, "_processes", None) or {}).values())
        pool.shutdown(wait=not pending, cancel_futures=True)
        for process in running if pending else ():
            process.terminate()


def _operators(job: Job) -> list[Found]:
    found = []
    for name, check in OPERATOR_CHECKS.items():
        worst, where = 0.0, ""
        try:
            for count in job.settings.counts:
                for tokens in job.settings.tokens:
                    where = f"{count} sources, {tokens} tokens"
                    inputs = Inputs(job.settings.device, job.dtype, count, tokens, job.width)
                    check(inputs)
                    if not inputs.gauge.right:
                        raise mechanics.WrongError(f"{inputs.gauge.worst:.3g} times the error allowed")
                    worst = max(worst, inputs.gauge.worst)
        except Exception as error:
            found.append(job.found(name, False, f"{where}: {describe_error(error)}"))
        else:
            found.append(job.found(name, True, "right", worst))
    return found


def _groups(job: Job) -> list[Found]:
    """Single reads, blocks and Full through the public functions, with every gradient."""
    found, tokens, device = [], job.settings.tokens[-1], job.settings.device
    for count in job.settings.counts:
        cases: dict[str, tuple[Problem, Computation]] = {
            "block": (block_problem(count, 3, tokens, job.width, job.dtype), block_in_two_phases(count)),
        }
        if count > 1:  # one source has no weights to learn, and errors of nothing are relative to nothing
            cases["attn_res"] = (read_problem(count, tokens, job.width, job.dtype), single_read)
        if count == job.settings.counts[0]:
            problem, ours, _ = full_problem(10, tokens, job.width, job.dtype)
            ours.to(device)
            cases["full"] = (problem, walk(ours))
        for name, (problem, computation) in cases.items():
            here = on_device(problem, device)
            verdict = judge(computation, here, expected_results(here))
            found.append(job.found(f"{name}, {count} sources", verdict.right, verdict.words))
    return found


def _mechanics(check: Callable[..., str], job: Job) -> list[Found]:
    return [job.found(job.kind, True, check(job.settings.device, job.dtype, job.width))]


def _variants(job: Job) -> list[Found]:
    words = mechanics.count_variants(job.settings.device, job.dtype, job.width, job.settings.sweep)
    return [job.found(job.kind, True, words)]


def _rival(job: Job) -> list[Found]:
    computation = single_rivals(job.width)[job.rival]
    assert not isinstance(computation, str), computation
    count, tokens, width = job.shape
    differentiate(computation, on_device(read_problem(count, tokens, width, job.dtype), job.settings.device))
    return [job.found(job.rival, True, f"prepared for {job.shape[0]} sources")]


KINDS: dict[str, Callable[[Job], list[Found]]] = {
    "operators": _operators,
    "groups": _groups,
    "variants": _variants,
    "rival": _rival,
    "same bits": partial(_mechanics, mechanics.same_bits),
    "CUDA graph": partial(_mechanics, mechanics.cuda_graph),
    "fullgraph": partial(_mechanics, mechanics.compiled_block),
}
