"""What commands print: plain sentences, and the table of parameter groups."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table


def say(console: Console, text: str) -> None:
    """Print plain text as it is: no markup, no wrapping at a log file's imagined width."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def group_table(rows: Sequence[Mapping[str, Any]], name: str) -> Table:
    """The parameter groups of one model, as `Optimizers.describe` gives them."""
    table = Table(title=f"Parameter groups of {name}", title_justify="left")
    for column in ("role", "optimiser", "tensors", "parameters", "peak rate", "weight decay"):
        table.add_column(column, justify="left" if column in ("role", "optimiser") else "right")
    for row in rows:
        table.add_row(
            row["role"],
            row["optimizer"],
            f"{row['tensors']:,}",
            f"{row['parameters']:,}",
            f"{row['learning_rate']:g}",
            f"{row['weight_decay']:g}",
        )
    return table
