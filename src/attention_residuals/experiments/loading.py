"""Text for a command, with a bar for each stage of its preparation."""

from rich.console import Console
from rich.progress import Progress, TaskID

from attention_residuals.train import TextConfig, TokenData, load_text


def load_data(config: TextConfig, console: Console) -> TokenData:
    """The text of `config`, from the cache if it was prepared before."""
    with Progress(console=console, transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def show(stage: str, done: int, total: int | None) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total)
            bars.update(tasks[stage], completed=done, total=total)

        return load_text(config, show)
