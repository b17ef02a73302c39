"""Finding a learning rate on a fixed grid: the best so far and its neighbours, until none of them is better."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from attention_residuals.errors import InputError

RATES = tuple(5e-3 * 2.0**power for power in range(-4, 7))
"""Peak learning rates, a factor of two apart, around the library's default: beyond what any model here wants, on both
sides, since a baseline whose best rate is the last of the grid is not tuned.
"""

START = RATES.index(1e-2)


@dataclass(frozen=True)
class Walk:
    """Which rates (by number) must be tried so far, in order, and the one that none of its neighbours beats."""

    tried: tuple[int, ...]
    chosen: int | None


def walk(losses: Mapping[int, float], start: int = START, rates: Sequence[float] = RATES) -> Walk:
    """Walk downhill from the rate of number `start`, given the losses found so far; infinite where a run stopped.

    The first step takes three runs, each further one takes one more; what is tried once stays in the list.

    Raises:
        InputError: even the smallest rate could not be trained to the end.
    """
    tried: list[int] = []
    here = start
    while True:
        near = [n for n in (here, here - 1, here + 1) if 0 <= n < len(rates)]
        tried += [n for n in near if n not in tried]
        if any(n not in losses for n in near):
            return Walk(tuple(tried), None)
        # Where all stopped, lower rates are the way out.
        best = min(near, key=lambda n: (losses[n], n if math.isinf(losses[n]) else 0))
        if best == here:
            if math.isinf(losses[here]):
                raise InputError(
                    f"the baseline stopped at every learning rate down to {rates[here]:g}; "
                    "look at the logs, and give it other text or a larger model"
                )
            return Walk(tuple(tried), here)
        here = best
