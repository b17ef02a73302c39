"""The arms of a tuning study: what each trains, and the rates that are tried."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

Rates: TypeAlias = dict[str, float]
"""Fields of `TuneConfig`."""

STEP = 3.0
"""Factor between neighbouring rates."""

QUERIES, NORMS, LORA, ALL, PLAIN = "queries", "norms", "lora", "all", "all, no depth"
QUERIES_NORMS, QUERIES_LORA = "queries+norms", "queries+lora"


@dataclass(frozen=True)
class Arm:
    """One thing to train.

    Args:
        name: for tables.
        train: parts, see `Part`.
        start: the middle of the rates that are tried; of arms of two parts a factor on the best rates of each.
        rates: fields of `TuneConfig` for such a number, given the best number of each arm before.
        depth: whether the model is converted.
    """

    name: str
    train: str
    start: float
    rates: Callable[[float, Mapping[str, float]], Rates]
    depth: bool = True


SMALL_ARMS = (
    Arm(QUERIES, "queries", 3e-3, lambda x, _: {"depth_rate": x}),
    Arm(NORMS, "norms", 3e-3, lambda x, _: {"norm_rate": x}),
    Arm(LORA, "lora", 3e-3, lambda x, _: {"rate": x}),
    Arm(QUERIES_NORMS, "queries+norms", 1.0, lambda x, b: {"depth_rate": x * b[QUERIES], "norm_rate": x * b[NORMS]}),
    Arm(QUERIES_LORA, "queries+lora", 1.0, lambda x, b: {"depth_rate": x * b[QUERIES], "rate": x * b[LORA]}),
    Arm(ALL, "all", 1e-3, lambda x, b: {"rate": x, "depth_rate": b[QUERIES]}),
    Arm(PLAIN, "all", 1e-3, lambda x, _: {"rate": x}, depth=False),
)
"""In order: an arm may use the best of those before it."""

LARGE_ARMS = (
    Arm(QUERIES, "queries", 4e-4, lambda x, _: {"depth_rate": x}),
    Arm(NORMS, "norms", 1e-3, lambda x, _: {"norm_rate": x}),
    Arm(QUERIES_NORMS, "queries+norms", 1.0, lambda x, b: {"depth_rate": x * b[QUERIES], "norm_rate": x * b[NORMS]}),
)
"""Of a pretrained model; the start rates are those of a probe of 40 steps."""

LORA_AS_QUERIES: dict[str, Any] = {"lora_rank": 1, "lora_targets": ("o_proj",)}
"""A rank of 1 beside the output matrix of attention has 2 D parameters a layer, and so have two queries."""


def ladder(start: float, count: int) -> list[float]:
    """So many rates around a start, rounded to two digits."""
    return [float(f"{start * STEP ** (n - count // 2):.2g}") for n in range(count)]
