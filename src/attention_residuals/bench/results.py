"""What a benchmark gives: tables of plain values, for people and for files. Knows no torch."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Value: TypeAlias = str | float | int | None
"""A cell; None is nothing to show."""


@dataclass(frozen=True)
class Column:
    """One column.

    Args:
        key: of its values.
        heading: with the unit.
        form: how a number is written; empty for text.
        factor: from what is kept (seconds, bytes) to what is shown.
        until: key of a second value; the two are shown as a range.
    """

    key: str
    heading: str
    form: str = ""
    factor: float | None = None
    until: str | None = None

    def cell(self, row: dict[str, Value]) -> str:
        """The value of `row` in this column, as text."""
        first = self._text(row.get(self.key))
        return first if self.until is None or first == "-" else f"{first} to {self._text(row.get(self.until))}"

    def _text(self, value: Value) -> str:
        if value is None:
            return "-"
        if isinstance(value, str):
            return value
        return format(value if self.factor is None else value * self.factor, self.form)


@dataclass(frozen=True)
class Table:
    """A titled table; `facts` hold for all of its rows, and are what a reader needs to check its numbers."""

    title: str
    columns: Sequence[Column]
    rows: list[dict[str, Value]]
    facts: dict[str, Value] = field(default_factory=dict)

    def cells(self) -> list[list[str]]:
        """The rows as text."""
        return [[column.cell(row) for column in self.columns] for row in self.rows]

    def markdown(self) -> list[str]:
        """The lines of a table in Markdown, numbers to the right."""
        headings = [column.heading for column in self.columns]
        rules = ["---:" if column.form else "---" for column in self.columns]
        return [f"| {' | '.join(cells)} |" for cells in (headings, rules, *self.cells())]

    def plain(self) -> dict[str, Any]:
        """For JSON: values unrounded, in seconds, bytes and bytes a second."""
        return {"title": self.title, "facts": self.facts, "rows": self.rows}


@dataclass(frozen=True)
class Half:
    """The tables of one process: all that was measured under one setting of the allocator."""

    allocator: str
    machine: dict[str, Value]
    tables: list[Table]
