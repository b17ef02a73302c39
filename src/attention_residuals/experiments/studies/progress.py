"""One bar over a whole study, with the time left, and a line for each run at work."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from attention_residuals.experiments.studies.plan import PlannedRun
from attention_residuals.experiments.studies.state import RunState


class StudyProgress:
    """Shows a study's runs; work is counted in floating-point operations, so that large runs weigh what they cost."""

    def __init__(self, progress: Progress):
        self._progress = progress
        self._whole = progress.add_task("all runs", total=1.0, note="")
        self._tasks: dict[str, TaskID] = {}
        self._told: set[str] = set()
        self._begun: tuple[float, float] | None = None

    def show(self, planned: Sequence[PlannedRun], states: Mapping[str, RunState], running: Sequence[str]) -> None:
        """Bring the bars up to date; one line above them for each run that has ended."""
        done = sum(_share(run, states[run.name]) * run.cost for run in planned)
        total = sum(run.cost for run in planned)
        ended = sum(states[run.name].ended for run in planned)
        note = f"{ended} of {len(planned)} runs, {self._time_left(done, total)}"
        self._progress.update(self._whole, completed=done, total=total, note=note)
        for run in planned:
            self._show_run(run, states[run.name], run.name in running)

    def _show_run(self, run: PlannedRun, state: RunState, running: bool) -> None:
        if running and run.name not in self._tasks:
            self._tasks[run.name] = self._progress.add_task(run.name, total=run.config.steps, note="")
        if run.name in self._tasks and not state.ended:
            note = f"{state.step:,} of {run.config.steps:,} steps"
            self._progress.update(self._tasks[run.name], completed=state.step, note=note, visible=running)
        if state.ended and run.name not in self._told:
            self._told.add(run.name)
            if run.name in self._tasks:
                self._progress.remove_task(self._tasks.pop(run.name))
                self._progress.console.print(f"{run.name}: {_result(state)}", highlight=False, markup=False)

    def _time_left(self, done: float, total: float) -> str:
        now = time.monotonic()
        if self._begun is None:
            self._begun = (now, done)
        begun, done_then = self._begun
        if done <= done_then:
            return "time left unknown"
        seconds = (now - begun) * (total - done) / (done - done_then)
        return f"about {_words(seconds)} left"


@contextmanager
def study_progress(console: Console) -> Iterator[StudyProgress]:
    """Show bars while the body runs."""
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), TextColumn("{task.fields[note]}"))
    with Progress(*columns, console=console) as progress:
        yield StudyProgress(progress)


def _share(run: PlannedRun, state: RunState) -> float:
    return 1.0 if state.ended else state.step / run.config.steps


def _result(state: RunState) -> str:
    if state.final is None:
        return f"stopped: {state.stopped}"
    return f"validation loss {state.final['validation_loss']:.4f} nats a token"


def _words(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f"{max(1, minutes)} min"
