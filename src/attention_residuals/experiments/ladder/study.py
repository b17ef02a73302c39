"""Which runs a ladder needs: at each size a learning rate found on the baseline, then every arm with paired seeds."""

from dataclasses import dataclass, field
from typing import ClassVar, final

from attention_residuals.errors import InputError
from attention_residuals.experiments.studies.common import (
    Common,
    Tuning,
    arm_name,
    count_parameters,
    describe_arms,
    require_arms,
    require_distinct,
    thin_decoder,
    tune,
    with_arm,
)
from attention_residuals.experiments.studies.plan import PlannedRun, States, Study
from attention_residuals.experiments.studies.tuning import RATES, START

LAYERS = (7, 8, 10, 12, 14)
"""44, 73, 123, 219 and 355 thousand parameters outside embedding and head."""


def scaled_layers(scale: float, layers: tuple[int, ...] = LAYERS) -> tuple[int, ...]:
    """Sizes with `scale` times the parameters, which grow with the cube of the depth.

    Raises:
        InputError: a scale that is not positive, or so small that two sizes become one.
    """
    if not scale > 0:
        raise InputError(f"scale is {scale}; it must be a positive number, for example 4")
    found = tuple(max(1, round(depth * scale ** (1 / 3))) for depth in layers)
    if len(set(found)) < len(found):
        raise InputError(f"scale is {scale}, at which two sizes become one; choose a larger one, or name --sizes")
    return found


@final
@dataclass(frozen=True)
class Ladder(Study):
    """A ladder of sizes.

    Args:
        arms: residual streams, the first being the baseline. `block` stands at every size for about 8 blocks.
        layers: the depth of each size, rising; widths follow (`thin_decoder`).
        seeds: of the compared runs. Arms share the initial values of what they have in common, and all batches.
        common: what all runs share.
    """

    kind: ClassVar[str] = "ladder"

    arms: tuple[str, ...] = ("standard", "block", "full")
    layers: tuple[int, ...] = LAYERS
    seeds: tuple[int, ...] = (1, 2, 3)
    common: Common = field(default_factory=Common)

    def __post_init__(self) -> None:
        require_distinct("size", self.layers)
        if list(self.layers) != sorted(self.layers):
            raise InputError(f"sizes are {', '.join(map(str, self.layers))} layers; name them in rising order")
        self.common.require_seeds(self.seeds)
        for layers in self.layers:
            require_arms(self.arms, thin_decoder(layers))

    def runs(self, ended: States) -> list[PlannedRun]:
        """Tuning goes one size ahead of the compared runs, so that no process waits for a rate."""
        tunings = self._tunings(ended)
        planned: list[PlannedRun] = []
        for n, tuning in enumerate(tunings):
            planned += [*tuning.runs, *(self._compared(n - 1, tunings[n - 1].rate) if n else [])]
        return [*planned, *self._compared(len(tunings) - 1, tunings[-1].rate)]

    def to_come(self, ended: States) -> list[PlannedRun]:
        known = {run.name for run in self.runs(ended)}
        trials = [run for n in range(len(self.layers)) for run in self._tune(n, {}, START).runs]
        compared = [run for n in range(len(self.layers)) for run in self._compared(n, RATES[START])]
        tuned = {run.labels["layers"] for run in self.runs(ended) if run.labels["part"] == "tune"}
        trials = [run for run in trials if run.labels["layers"] not in tuned]
        return [run for run in (*trials, *compared) if run.name not in known]

    def describe(self) -> list[str]:
        sizes = [
            f"{layers} layers of {thin_decoder(layers).width} features, {count_parameters(thin_decoder(layers)):,} "
            f"parameters, {self._tokens(layers):,} tokens"
            for layers in self.layers
        ]
        tuning = (
            f"At each size the learning rate is found on {self.arms[0]} (seed {self.common.tuning_seed}), then every "
            f"arm is trained with it on seeds {', '.join(map(str, self.seeds))}."
        )
        return [
            f"Scaling ladder of {', '.join(self.arms)}; baseline: {self.arms[0]}. At the largest size:",
            *describe_arms(self.arms, thin_decoder(self.layers[-1])),
            *(f"Size {n}: {size}." for n, size in enumerate(sizes, 1)),
            tuning,
        ]

    def _tokens(self, layers: int) -> int:
        return self.common.steps(thin_decoder(layers)) * self.common.step_tokens

    def _tunings(self, ended: States) -> list[Tuning]:
        """One for each size up to the first that is still under way: each begins where the one before it ended."""
        found: list[Tuning] = []
        start: int | None = START
        for n in range(len(self.layers)):
            found.append(self._tune(n, ended, start))
            start = found[-1].number
            if start is None:
                break
        return found

    def _tune(self, size: int, ended: States, start: int) -> Tuning:
        layers = self.layers[size]
        return tune(self.common, f"L{layers}", with_arm(thin_decoder(layers), self.arms[0]), ended, start)

    def _compared(self, size: int, rate: float | None) -> list[PlannedRun]:
        if rate is None:
            return []
        layers = self.layers[size]
        return [self._run(layers, arm, seed, rate) for seed in self.seeds for arm in self.arms]

    def _run(self, layers: int, arm: str, seed: int, rate: float) -> PlannedRun:
        baseline = with_arm(thin_decoder(layers), self.arms[0])
        name = f"L{layers}-{arm}-seed{seed}"
        model, steps = with_arm(baseline, arm), self.common.steps(baseline)
        config = self.common.run(name, model, steps=steps, seed=seed, learning_rate=rate)
        labels = {"part": "compare", "layers": layers, "width": model.width, "arm": arm, "seed": seed}
        labels |= {"stream": arm_name(arm, layers), "learning_rate": rate}
        return PlannedRun(name, config, labels)
