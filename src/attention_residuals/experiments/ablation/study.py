"""Which runs an ablation needs: a learning rate found on the baseline, then every arm with paired seeds."""

from dataclasses import dataclass, field
from typing import ClassVar, final

from attention_residuals.errors import InputError
from attention_residuals.experiments.arms import RIVALS
from attention_residuals.experiments.studies.common import (
    Common,
    Tuning,
    arm_name,
    count_parameters,
    describe_arms,
    require_arms,
    thin_decoder,
    tune,
    with_arm,
)
from attention_residuals.experiments.studies.plan import PlannedRun, States, Study
from attention_residuals.experiments.studies.tuning import RATES, START
from attention_residuals.models import DecoderConfig

LAYERS = 10
FEATURES_A_HEAD = 8
"""At least so many for each head of a multi-head read; the paper's had 73."""


def default_arms(layers: int) -> tuple[str, ...]:
    """The paper's Table 4 and Figure 6: Full and its variants, all block sizes, S = 4 and its variants, two rivals."""
    sublayers = 2 * layers
    sizes = [2**power for power in range(1, sublayers.bit_length()) if 2**power < sublayers]
    full = ["full", *(f"full+{name}" for name in ("dynamic", "static", "sigmoid", "nonorm", "window8"))]
    blocks = [*(f"block{size}" for size in sizes), f"block{sublayers}"]
    four = [f"block4+{name}" for name in ("nonorm", f"heads{read_heads(thin_decoder(layers).width)}")]
    return ("standard", *full, *blocks, *four, "denseformer", "mhc")


def all_arms(layers: int) -> tuple[str, ...]:
    """Those by default, and every other rival there is."""
    known = default_arms(layers)
    return (*known, *(name for name in RIVALS if name not in known))


def read_heads(width: int) -> int:
    """Heads of a multi-head read: the paper's 16, or what leaves enough features to each."""
    fitting = [heads for heads in (16, 8, 4, 2) if width % heads == 0 and width // heads >= FEATURES_A_HEAD]
    return fitting[0] if fitting else 1


@final
@dataclass(frozen=True)
class Ablation(Study):
    """Many residual streams at one size.

    Args:
        arms: residual streams, the first being the baseline; by default the paper's at the default depth.
        layers: the depth; widths follow (`thin_decoder`).
        seeds: of the compared runs.
        learning_rate: the peak rate of all runs; None: found on the baseline.
        common: what all runs share.
    """

    kind: ClassVar[str] = "ablate"

    arms: tuple[str, ...] = field(default_factory=lambda: default_arms(LAYERS))
    layers: int = LAYERS
    seeds: tuple[int, ...] = (1, 2, 3)
    learning_rate: float | None = None
    common: Common = field(default_factory=Common)

    def __post_init__(self) -> None:
        self.common.require_seeds(self.seeds)
        if self.learning_rate is not None and not self.learning_rate > 0:
            raise InputError(f"learning rate is {self.learning_rate}; it must be a positive number, such as 0.01")
        require_arms(self.arms, self._baseline)

    @property
    def _baseline(self) -> DecoderConfig:
        return thin_decoder(self.layers)

    def runs(self, ended: States) -> list[PlannedRun]:
        if self.learning_rate is not None:
            return self._compared(self.learning_rate)
        tuning = self._tune(ended)
        return [*tuning.runs, *([] if tuning.rate is None else self._compared(tuning.rate))]

    def to_come(self, ended: States) -> list[PlannedRun]:
        waiting = self.learning_rate is None and self._tune(ended).rate is None
        return self._compared(RATES[START]) if waiting else []

    def describe(self) -> list[str]:
        model = self._baseline
        tokens = self.common.steps(model) * self.common.step_tokens
        rate = (
            f"learning rate {self.learning_rate:g} for all"
            if self.learning_rate
            else f"learning rate found on {self.arms[0]} with seed {self.common.tuning_seed}"
        )
        setting = (
            f"Ablation at {model.layers} layers of {model.width} features, {count_parameters(model):,} parameters, "
            f"{tokens:,} tokens a run; {rate}; seeds {', '.join(map(str, self.seeds))}."
        )
        return [
            setting,
            f"{len(self.arms)} arms, of which {self.arms[0]} is the baseline:",
            *describe_arms(self.arms, model),
        ]

    def _tune(self, ended: States) -> Tuning:
        return tune(self.common, f"L{self.layers}", with_arm(self._baseline, self.arms[0]), ended)

    def _compared(self, rate: float) -> list[PlannedRun]:
        return [self._run(arm, seed, rate) for seed in self.seeds for arm in self.arms]

    def _run(self, arm: str, seed: int, rate: float) -> PlannedRun:
        name, model = f"{arm}-seed{seed}", with_arm(self._baseline, arm)
        steps = self.common.steps(with_arm(self._baseline, self.arms[0]))
        config = self.common.run(name, model, steps=steps, seed=seed, learning_rate=rate)
        labels = {"part": "compare", "arm": arm, "seed": seed, "stream": arm_name(arm, self.layers)}
        return PlannedRun(name, config, {**labels, "layers": self.layers, "learning_rate": rate})
