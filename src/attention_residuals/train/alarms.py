"""Warnings about a run under way, one sentence each. They never stop it: all of this can also end well."""

import math
import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from attention_residuals.errors import InputError, require_positive
from attention_residuals.train.probes import Probe

MAD_TO_DEVIATION = 1.4826
"""A normal distribution's standard deviation over its median absolute deviation."""


@dataclass(frozen=True)
class AlarmLimits:
    """When to warn. A spike must pass both limits: curves that are almost flat have next to no spread.

    Args:
        window_steps: length of the trailing window that a value is held against; half of it must be filled.
        spreads: how many spreads above the trailing median a spike is, for loss and gradient norm.
        loss_rise, norm_rise: and by what share of the median at least.
        top_weight: mean share of the weight of one source from which a read counts as a read of this source alone.
        quiet_steps: an alarm that has spoken keeps quiet for so long.

    Raises:
        InputError: a number of steps below 1, a limit that is not positive, a top weight above 1.
    """

    window_steps: int = 64
    spreads: float = 6.0
    loss_rise: float = 0.1
    norm_rise: float = 2.0
    top_weight: float = 0.95
    quiet_steps: int = 100

    def __post_init__(self) -> None:
        require_positive(self, "window_steps", "quiet_steps")
        for name in ("spreads", "loss_rise", "norm_rise", "top_weight"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} is {getattr(self, name)}; it must be a positive number")
        if self.top_weight > 1:
            raise InputError(
                f"top_weight is {self.top_weight}; weights sum to 1, so choose at most 1, for example 0.95"
            )


@dataclass
class Alarms:
    """Listens to the records and probes of one run, in order; what it says are sentences for people.

    Args:
        vocab_size: number of tokens the model chooses from.
        warmup_steps: steps of warm-up, during which a loss above ln(vocab_size) is no news.
    """

    vocab_size: int
    warmup_steps: int
    limits: AlarmLimits = field(default_factory=AlarmLimits)

    def __post_init__(self) -> None:
        self._losses: deque[float] = deque(maxlen=self.limits.window_steps)
        self._norms: deque[float] = deque(maxlen=self.limits.window_steps)
        self._spoken: dict[str, int] = {}

    def of_record(self, record: Mapping[str, int | float]) -> list[str]:
        """Warnings about one record of `training_steps`; it needs step, loss and gradient_norm."""
        limits, step, loss, norm = self.limits, int(record["step"]), record["loss"], record["gradient_norm"]
        found = {
            "uniform": above_uniform(loss, self.vocab_size) if step > self.warmup_steps else None,
            "loss": spike("loss", loss, self._losses, limits, limits.loss_rise),
            "norm": spike("gradient norm", norm, self._norms, limits, limits.norm_rise),
        }
        self._losses.append(loss)
        self._norms.append(norm)
        return self._say(found, step)

    def of_probe(self, found: Probe, step: int) -> list[str]:
        """Warnings about a probe taken after `step` (1-based)."""
        return self._say(lone_sources(found, self.limits.top_weight), step)

    def _say(self, found: Mapping[str, str | None], step: int) -> list[str]:
        """The sentences of the alarms that have not spoken lately."""
        due = {
            alarm: sentence
            for alarm, sentence in found.items()
            if sentence and step - self._spoken.get(alarm, -self.limits.quiet_steps) >= self.limits.quiet_steps
        }
        self._spoken.update(dict.fromkeys(due, step))
        return [f"step {step}: {sentence}" for sentence in due.values()]


def above_uniform(loss: float, vocab_size: int) -> str | None:
    """A warning if `loss`, in nats a token, is worse than equal odds for every token."""
    uniform = math.log(vocab_size)
    if not loss > uniform:
        return None
    return (
        f"loss {loss:.3f} is above ln({vocab_size}) = {uniform:.3f}, that of equal odds for every token; after warm-up "
        "this points to a rate too high or to a fault in targets or head"
    )


def spike(name: str, value: float, trailing: Sequence[float], limits: AlarmLimits, rise: float) -> str | None:
    """A warning if `value` stands far above the `trailing` values that came before it.

    Far is more than `limits.spreads` spreads, and more than the share `rise` of the median. Median and spread (scaled
    median absolute deviation) are robust, so that one spike does not hide the next.
    """
    known = [each for each in trailing if math.isfinite(each)]
    if 2 * len(known) < limits.window_steps:
        return None
    median = statistics.median(known)
    spread = MAD_TO_DEVIATION * statistics.median(abs(each - median) for each in known)
    if not value - median > max(limits.spreads * spread, rise * abs(median)):
        return None
    return (
        f"{name} {value:.3g} is far above {median:.3g} ± {spread:.2g}, "
        f"median and spread of the {len(known)} steps before"
    )


def lone_sources(found: Probe, limit: float) -> dict[str, str]:
    """A warning for each read that puts at least `limit` of its mean weight on one of several sources, by read."""
    warnings: dict[str, str] = {}
    output_read = len(found.depth_weights) - 1
    for i, weights in enumerate(found.depth_weights):
        top = max(weights)
        share = top / (sum(weights) or 1.0)  # weights of a sigmoid do not sum to 1
        if len(weights) > 1 and share >= limit:
            read = "the output read" if i == output_read else f"the read of sublayer {i}"
            source = found.source_names[weights.index(top)]
            warnings[read] = f"{read} puts {share:.3f} of its weight on '{source}', one of {len(weights)} sources"
    return warnings
