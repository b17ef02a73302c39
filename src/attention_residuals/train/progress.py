"""A progress bar per run, with loss, tokens per second and time left."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn


class TrainingProgress:
    """Bars for runs that take turns, and one line above them per validation, which is all that a log file gets."""

    def __init__(self, progress: Progress, names: Sequence[str], steps: int):
        self._progress = progress
        width = max(len(name) for name in names)
        self._tasks: dict[str, TaskID] = {
            name: progress.add_task(name.ljust(width), total=steps, loss="-", speed="-") for name in names
        }

    def start_at(self, name: str, step: int) -> None:
        """Begin the bar of the run `name` after `step` steps, for a run that goes on."""
        self._progress.update(self._tasks[name], completed=step)

    def advance(self, records: Mapping[str, Mapping[str, float]]) -> None:
        """Show one step of every run; the records, by name of the run, are what `training_steps` yields."""
        for name, record in records.items():
            speed = f"{record['tokens'] / record['seconds']:,.0f}"
            self._progress.update(self._tasks[name], advance=1, loss=f"{record['loss']:.3f}", speed=speed)
        validated = {name: record["validation_loss"] for name, record in records.items() if "validation_loss" in record}
        if validated:
            tokens = next(iter(records.values()))["tokens"]
            losses = ", ".join(f"{name} {loss:.4f}" for name, loss in validated.items())
            self._progress.console.print(f"{tokens:>11,} tokens, validation loss: {losses}", highlight=False)


@contextmanager
def training_progress(console: Console, names: Sequence[str], steps: int) -> Iterator[TrainingProgress]:
    """Show bars for the runs `names` of `steps` steps each while the body runs."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]}"),
        TextColumn("{task.fields[speed]} tokens/s"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        yield TrainingProgress(progress, names, steps)
