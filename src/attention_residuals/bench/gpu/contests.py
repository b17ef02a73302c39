"""Contests of `bench/contest.py` on a GPU: judged, then timed on its clock, against a copy in the same rounds."""

import gc
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from attention_residuals.bench.contest import COPY, Contest, Entry, Measured, judge_entry
from attention_residuals.bench.gpu.rivals import Allowances
from attention_residuals.bench.gpu.schedule import Clock
from attention_residuals.bench.gpu.turns import Stopwatch, bandwidth, device_seconds
from attention_residuals.bench.problems import Verdict
from attention_residuals.bench.results import Column, Table
from attention_residuals.bench.timing import Task

COPIED_BYTES = {"cuda": 2**29, "cpu": 2**20}


@dataclass(frozen=True)
class GpuMeasured(Measured):
    """What a contest found on a GPU, with the bytes that its copy copied."""

    copied: int = 0

    @property
    def bandwidth(self) -> float:
        """Bytes a second of that copy."""
        return bandwidth(list(self.seconds[COPY]), self.copied)


@dataclass(frozen=True)
class GpuContest(Contest):
    """A contest on `device`; `allowances` say how long each rival may prepare itself."""

    device: str = "cuda"
    rounds: int = 40

    def run_on_gpu(self, clock: Clock, allowances: Allowances) -> list[Table]:
        """Judge and time; a table for each phase. Entries for which no time was left have a row that says so."""
        verdicts = {entry.name: self._prepared(entry, clock, allowances) for entry in self.entries}
        tasks = {
            (entry.name, phase): task
            for entry in self.entries
            if verdicts[entry.name].right
            for phase, task in entry.phases.items()
        }
        peaks = {key: peak_bytes(task) if self.device == "cuda" else None for key, task in tasks.items()}
        copied = COPIED_BYTES[self.device]
        source = torch.ones(copied, dtype=torch.int8, device=self.device)
        target = torch.empty_like(source)
        every: Mapping[tuple[str, str], Task] = {COPY: lambda: target.copy_(source), **tasks}
        seconds, queued = device_seconds(every, self.rounds, clock, Stopwatch(self.device))
        measured = GpuMeasured(verdicts, peaks, seconds, copied)
        tables = [self._table(phase, measured) for phase in self.floor_bytes]  # also if every entry is absent
        for table in tables:
            for row in table.rows:
                row["queued_seconds"] = queued.get((str(row["implementation"]), str(row["phase"])))
        del source, target, every, tasks
        free_memory(self.device)
        return tables

    def _prepared(self, entry: Entry, clock: Clock, allowances: Allowances) -> Verdict:
        if entry.absent is None and clock.over:
            return Verdict(False, None, "not measured: no time was left")
        with allowances.counted(entry.name) as refusal:
            return Verdict(False, None, refusal) if refusal else judge_entry(replace(entry, ours=False))

    def _columns(self) -> list[Column]:
        shown = [replace(one, form=",.4f") if "ms" in one.heading else one for one in super()._columns()]
        return [*shown[:-1], Column("queued_seconds", "queueing, ms", ",.3f", factor=1e3), shown[-1]]


def peak_bytes(task: Task) -> int:
    """The most bytes a call holds beyond what was there."""
    task()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    task()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def free_memory(device: str) -> None:
    """Give memory back between contests, of which each has its own tensors."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
