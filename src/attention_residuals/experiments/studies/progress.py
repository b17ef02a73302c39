"""One bar over a whole study, with the time left, and a line for each run at work."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from attention_residuals.experiments.studies.plan import PlannedRun
from attention_residuals.experiments.studies.state import RunState


class StudyProgress:
    """Shows a study's runs; work is counted by effort, so that large runs weigh what they cost."""

    def __init__(self, progress: Progress):
        self._progress = progress
        self._whole = progress.add_task("all runs", total=1.0, note="")
        self._tasks: dict[str, TaskID] = {}
        self._told: set[str] | None = None
        self._begun: tuple[float, float] | None = None

    def show(
        self,
        planned: Sequence[PlannedRun],
        states: Mapping[str, RunState],
        running: Sequence[str],
        to_come: Sequence[PlannedRun] = (),
    ) -> None:
        """Bring the bars up to date, with a line above them for each run that has ended since the first call.

        `to_come` stands for runs that are not planned yet.
        """
        done = sum(_share(run, states[run.name]) * run.effort for run in planned)
        total = sum(run.effort for run in (*planned, *to_come))
        ended = [run.name for run in planned if states[run.name].ended]
        note = f"{len(ended)} of {len(planned) + len(to_come)} runs, {self._time_left(done, total)}"
        self._progress.update(self._whole, completed=done, total=total, note=note)
        for run in planned:
            self._show_run(run, states[run.name], run.name in running)
        if self._told is None:
            self._told = set(ended)  # by earlier commands
        for name in ended:
            if name not in self._told:
                self._told.add(name)
                self._say(f"{name}: {_result(states[name])} ({note})")

    def _show_run(self, run: PlannedRun, state: RunState, running: bool) -> None:
        if running and not state.ended and run.name not in self._tasks:
            self._tasks[run.name] = self._progress.add_task(run.name, total=run.config.steps, note="")
        if run.name not in self._tasks:
            return
        if state.ended:
            self._progress.remove_task(self._tasks.pop(run.name))
        else:
            note = f"{state.step:,} of {run.config.steps:,} steps"
            self._progress.update(self._tasks[run.name], completed=state.step, note=note, visible=running)

    def _say(self, text: str) -> None:
        self._progress.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def _time_left(self, done: float, total: float) -> str:
        now = time.monotonic()
        if self._begun is None:
            self._begun = (now, done)
        begun, done_then = self._begun
        if done >= total:
            return "all done"
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
