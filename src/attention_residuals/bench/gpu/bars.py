"""What the project asks of its kernels on a GPU, held against the tables of a run."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from attention_residuals.bench.gpu.rivals import FAST, FLA, FLASH, LIGER
from attention_residuals.bench.results import Column, Table, Value

Rows = list[dict[str, Value]]


@dataclass(frozen=True)
class Bar:
    """One demand: at most (or at least) `limit`; `find` gives what a table found, None where it says nothing."""

    words: str
    limit: float
    begins: str
    ends: str
    find: Callable[[Rows], float | None]
    at_least: bool = False


def bar_table(tables: Sequence[Table]) -> Table:
    """Each bar against the worst of the tables it is about."""
    columns = [
        Column("bar", "bar"),
        Column("limit", "limit", ".2f"),
        Column("found", "found, the worst", ".2f"),
        Column("status", "status"),
    ]
    return Table("bars", columns, [_row(bar, tables) for bar in BARS])


def _row(bar: Bar, tables: Iterable[Table]) -> dict[str, Value]:
    about = [table for table in tables if table.title.startswith(bar.begins) and table.title.endswith(bar.ends)]
    found = [number for number in (bar.find(table.rows) for table in about) if number is not None]
    row: dict[str, Value] = {"bar": bar.words, "limit": bar.limit, "found": None, "status": "not measured"}
    if found:
        worst = min(found) if bar.at_least else max(found)
        met = worst >= bar.limit if bar.at_least else worst <= bar.limit
        row |= {"found": worst, "status": "met" if met else "not met"}
        if len(found) < len(about):
            row["status"] = f"{row['status']}, in {len(found)} of {len(about)} tables"
    return row


def cell(rows: Rows, name: str, key: str) -> float | None:
    """A number of an implementation's row."""
    value = next((row.get(key) for row in rows if row.get("implementation") == name), None)
    return value if isinstance(value, float | int) else None


def _of(name: str, key: str) -> Callable[[Rows], float | None]:
    return lambda rows: cell(rows, name, key)


def _fastest_of(*names: str) -> Callable[[Rows], float | None]:
    """How many times as long as ours the fastest of these takes."""

    def find(rows: Rows) -> float | None:
        ratios = [ratio for ratio in (cell(rows, name, "ratio") for name in names) if ratio is not None]
        return min(ratios) if ratios else None

    return find


def _ours_by(name: str) -> Callable[[Rows], float | None]:
    def find(rows: Rows) -> float | None:
        ratio = cell(rows, name, "ratio")
        return 1 / ratio if ratio else None

    return find


BARS = (
    Bar("one read forward, times the floor", 1.15, "read: ", ": forward", _of("attn_res", "to_floor")),
    Bar("one read forward + backward, times the floor", 1.25, "read: ", "+ backward", _of("attn_res", "to_floor")),
    Bar("Block training, times the two-phase floor", 1.4, "block: ", "+ backward", _of("two-phase", "to_floor")),
    Bar(f"Block training, times as fast as {FLASH}", 1.8, "block: ", "+ backward", _fastest_of(FLASH), at_least=True),
    Bar(
        "Block training, times as fast as the best single read with autograd",
        2.0,
        "block: ",
        "+ backward",
        _fastest_of("single reads", FLA, FAST, LIGER),
        at_least=True,
    ),
    Bar(f"Full at 48 reads, share of the time of {FLA}", 0.4, "full: ", "+ backward", _ours_by(FLA)),
    Bar("decode, microseconds a read", 5.0, "decode: ", "", _of("attn_res", "microseconds")),
)
