"""Numbers along the depth as shapes: how they grow, how they spread, whether they repeat."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Period:
    """How much of the logarithms of some numbers is explained by their place in a period, the mean apart.

    `explained`: share of the variance between places (eta squared). `by_chance`: what it would be on average if places
    meant nothing. `p_value`: of the F test against that. `autocorrelation`: at the lag of one period.
    """

    explained: float
    by_chance: float
    p_value: float
    autocorrelation: float


def growth(values: Sequence[float]) -> float:
    """Last over first; infinite where the first is zero."""
    return values[-1] / values[0] if values[0] else math.inf


def spread(values: Sequence[float]) -> float:
    """Largest over smallest; infinite where that is zero."""
    return max(values) / min(values) if min(values) else math.inf


def variation(values: Sequence[float]) -> float:
    """Coefficient of variation: standard deviation over mean."""
    return statistics.pstdev(values) / statistics.fmean(values)


def slope(values: Sequence[float]) -> float:
    """Exponent of growth with depth: of the least-squares line through log(value) against log(place), places from 1.

    Not a number where a value is zero.
    """
    if min(values) == 0:
        return math.nan
    places = [math.log(n) for n in range(1, len(values) + 1)]
    return statistics.linear_regression(places, [math.log(value) for value in values]).slope


def block_means(values: Sequence[float], block: int) -> list[float]:
    """Geometric mean of each run of `block` values."""
    return [statistics.geometric_mean(values[begin : begin + block]) for begin in range(0, len(values), block)]


def period(values: Sequence[float], length: int) -> Period | None:
    """Whether values repeat with a period; None where there are too few values, a zero, or a period of one value."""
    from scipy.stats import f

    within = len(values) - length
    if length < 2 or within < length or min(values) == 0:
        return None
    logs = [math.log(value) for value in values]
    mean = statistics.fmean(logs)
    total = sum((value - mean) ** 2 for value in logs)
    groups = [logs[place::length] for place in range(length)]
    between = sum(len(group) * (statistics.fmean(group) - mean) ** 2 for group in groups)
    if total == 0:
        return None
    lagged = sum((a - mean) * (b - mean) for a, b in zip(logs, logs[length:], strict=False))
    remaining = max(total - between, 1e-12 * total)
    ratio = (between / (length - 1)) / (remaining / within)
    chance = (length - 1) / (len(logs) - 1)
    return Period(between / total, chance, float(f.sf(ratio, length - 1, within)), lagged / total)


def per_layer(values: Sequence[float], sublayers_per_layer: int = 2) -> list[float]:
    """Norms of sublayers as norms of layers: roots of sums of squares."""
    return [
        math.sqrt(sum(value**2 for value in values[begin : begin + sublayers_per_layer]))
        for begin in range(0, len(values), sublayers_per_layer)
    ]


def after_layers(values: Sequence[float], sublayers_per_layer: int = 2) -> list[float]:
    """Of numbers of sublayers those of the last in each layer."""
    return list(values[sublayers_per_layer - 1 :: sublayers_per_layer])


def layer_means(values: Sequence[float], sublayers_per_layer: int = 2) -> list[float]:
    """Of numbers of sublayers the mean in each layer."""
    return [
        statistics.fmean(values[begin : begin + sublayers_per_layer])
        for begin in range(0, len(values), sublayers_per_layer)
    ]
