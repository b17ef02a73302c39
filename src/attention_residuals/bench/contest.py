"""Implementations of one thing side by side: judged first, then timed in turns, then written as a table."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from attention_residuals.bench.peaks import peak_bytes
from attention_residuals.bench.problems import Verdict
from attention_residuals.bench.progress import Work
from attention_residuals.bench.results import Column, Table, Value
from attention_residuals.bench.timing import (
    Budget,
    Quartiles,
    Task,
    copy_bandwidth,
    copy_task,
    median_interval,
    time_in_turns,
)

MIB = 2**20

LONGEST_ERROR = 200
"""Characters of an error that a table shows."""

COPY = ("copy", "")


@dataclass(frozen=True)
class Entry:
    """One implementation.

    Args:
        name: what the table calls it.
        phases: what is timed, by name; entries of one contest have phases of the same names.
        judge: compares its results with the oracle.
        absent: why it cannot take part, if it cannot.
        ours: an error raised in it is a fault of this package and is not caught.
    """

    name: str
    phases: Mapping[str, Task] = field(default_factory=dict)
    judge: Callable[[], Verdict] | None = None
    absent: str | None = None
    ours: bool = False


@dataclass(frozen=True)
class Contest:
    """Entries, and what they are held against: the entry `reference`, and for each phase a floor in bytes."""

    title: str
    entries: Sequence[Entry]
    reference: str
    floor_bytes: Mapping[str, int] = field(default_factory=dict)
    facts: Mapping[str, Value] = field(default_factory=dict)

    def run(self, budget: Budget, work: Work) -> list[Table]:
        """Judge and time; a table for each phase.

        An entry that is wrong, absent or fails has a row that says so and no times.
        """
        work.title(self.title)
        verdicts = self._judge(work)
        tasks = {
            (entry.name, phase): task
            for entry in self.entries
            if verdicts[entry.name].right
            for phase, task in entry.phases.items()
        }
        peaks = self._peaks(tasks, work)
        measured = Measured(verdicts, peaks, time_in_turns({COPY: copy_task(), **tasks}, budget, work))
        phases = dict.fromkeys(phase for entry in self.entries for phase in entry.phases)
        return [self._table(phase, measured) for phase in phases]

    def _judge(self, work: Work) -> dict[str, Verdict]:
        verdicts = {}
        with work.stage("checking against the oracle", len(self.entries)):
            for entry in self.entries:
                verdicts[entry.name] = judge_entry(entry)
                work.advance()
        return verdicts

    def _peaks(self, tasks: Mapping[tuple[str, str], Task], work: Work) -> dict[tuple[str, str], int | None]:
        peaks = {}
        with work.stage("measuring memory", len(tasks)):
            for key, task in tasks.items():
                task()  # what is made once, such as compiled code, does not count
                peaks[key] = peak_bytes(task)
                work.advance()
        return peaks

    def _table(self, phase: str, measured: "Measured") -> Table:
        facts: dict[str, Value] = {
            **self.facts,
            "copy_bytes_per_second": measured.bandwidth,
            "rounds": len(measured.seconds[COPY]),
        }
        if phase in self.floor_bytes:
            facts["floor_bytes"] = self.floor_bytes[phase]
            facts["floor_seconds"] = self.floor_bytes[phase] / measured.bandwidth
        rows = [self._row(entry.name, phase, measured) for entry in self.entries]
        return Table(f"{self.title}: {phase}", self._columns(), rows, facts)

    def _row(self, name: str, phase: str, measured: "Measured") -> dict[str, Value]:
        verdict, key = measured.verdicts[name], (name, phase)
        row: dict[str, Value] = {"implementation": name, "phase": phase, "status": verdict.words}
        row["largest_error"] = verdict.error
        if not verdict.right:
            return row
        time = Quartiles.of(measured.seconds[key])
        row |= {"seconds_low": time.low, "seconds": time.median, "seconds_high": time.high}
        row["peak_bytes"] = measured.peaks[key]
        if phase in self.floor_bytes:
            row["to_floor"] = time.median * measured.bandwidth / self.floor_bytes[phase]
        if (self.reference, phase) in measured.seconds:
            pairs = zip(measured.seconds[key], measured.seconds[self.reference, phase], strict=True)
            ratios = [mine / other for mine, other in pairs]
            ratio = Quartiles.of(ratios)
            row |= {"ratio_low": ratio.low, "ratio": ratio.median, "ratio_high": ratio.high}
            if interval := median_interval(ratios):
                row |= {"ratio_least": interval[0], "ratio_most": interval[1]}
        return row

    def _columns(self) -> list[Column]:
        floor = [Column("to_floor", "x floor", ".2f")] if self.floor_bytes else []
        return [
            Column("implementation", "implementation"),
            Column("seconds", "median, ms", ",.2f", factor=1e3),
            Column("seconds_low", "quartiles, ms", ",.2f", factor=1e3, until="seconds_high"),
            *floor,
            Column("ratio", f"x {self.reference}", ".3f"),
            Column("ratio_low", "quartiles", ".3f", until="ratio_high"),
            Column("ratio_least", "95 % of the median", ".3f", until="ratio_most"),
            Column("peak_bytes", "peak, MiB", ",.1f", factor=1 / MIB),
            Column("status", "status"),
        ]


@dataclass(frozen=True)
class Measured:
    """What a contest found: by entry, and by entry and phase."""

    verdicts: Mapping[str, Verdict]
    peaks: Mapping[tuple[str, str], int | None]
    seconds: Mapping[tuple[str, str], Sequence[float]]

    @property
    def bandwidth(self) -> float:
        """Bytes a second of a copy in the same rounds."""
        return copy_bandwidth(self.seconds[COPY])


def judge_entry(entry: Entry) -> Verdict:
    """The verdict on an entry: absent, failed, wrong or right."""
    if entry.absent is not None:
        return Verdict(False, None, entry.absent)
    assert entry.judge is not None, f"{entry.name} has no judge"
    if entry.ours:
        return entry.judge()
    try:
        return entry.judge()
    except Exception as error:  # of code that is not ours, of which we know nothing
        text = " ".join(str(error).split())
        return Verdict(False, None, f"failed: {type(error).__name__}: {text[:LONGEST_ERROR]}")
