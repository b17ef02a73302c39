"""A bar for what takes long, on standard error, so that results can be piped."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # what measures without a bar must not need it
    from rich.console import Console


class Work:
    """Says what is going on; one bar at a time."""

    def __init__(self, console: "Console"):
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        self._task = self._progress.add_task("", visible=False, total=None)
        self._title = ""

    @contextmanager
    def shown(self) -> Iterator["Work"]:
        """Show the bar while the body runs."""
        with self._progress:
            yield self

    def title(self, text: str) -> None:
        """What the next stages are stages of."""
        self._title = text

    @contextmanager
    def stage(self, text: str, total: int) -> Iterator[None]:
        """A bar of `total` steps while the body runs."""
        self._progress.reset(self._task, total=total, description=f"{self._title}: {text}", visible=True)
        yield
        self._progress.update(self._task, visible=False)

    def advance(self) -> None:
        """One step of the stage is done."""
        self._progress.advance(self._task)
