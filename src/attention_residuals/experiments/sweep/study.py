"""Which runs a sweep needs: one learning rate found in its middle, then baseline and arm in every cell."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar, final

from attention_residuals.configs import to_plain
from attention_residuals.errors import InputError
from attention_residuals.experiments.compute import training_operations
from attention_residuals.experiments.studies.common import (
    Common,
    Tuning,
    arm_name,
    count_parameters,
    describe_arms,
    require_arms,
    require_distinct,
    tune,
    with_arm,
)
from attention_residuals.experiments.studies.plan import PlannedRun, States, Study
from attention_residuals.experiments.studies.tuning import RATES, START
from attention_residuals.models import BYTE_VOCABULARY, DecoderConfig

PARAMETERS = 120_000
WIDTH_RATIOS = (2.5, 5.0, 10.0)
HEAD_RATIOS = (0.3, 0.5, 0.7)
MLP_SHARES = (1.5, 4.5)
"""Within these multiples of the width the MLP takes up what rounding leaves of the parameters."""


@dataclass(frozen=True)
class Cell:
    """One shape of the grid: features a layer, and heads a layer."""

    width_ratio: float
    head_ratio: float

    @property
    def name(self) -> str:
        """Of its runs."""
        return f"d{self.width_ratio:g}-h{self.head_ratio:g}"


def shape(cell: Cell, parameters: int) -> DecoderConfig:
    """The decoder of a cell with about `parameters` in its sublayers.

    A layer has about 12 width^2 of them, so depth follows from the ratio of width to depth. Every head has keys of its
    own and an even width of about width / heads; the MLP, 8/3 of the width at first, takes up what rounding leaves.

    Raises:
        InputError: a ratio that is not positive, or one that no decoder of this size can have.
    """
    if not (cell.width_ratio > 0 and cell.head_ratio > 0):
        raise InputError(f"ratios are {cell.width_ratio:g} and {cell.head_ratio:g}; they must be positive numbers")
    layers = max(1, round((parameters / (12 * cell.width_ratio**2)) ** (1 / 3)))
    width = max(2, 2 * round(cell.width_ratio * layers / 2))
    heads = max(1, int(cell.head_ratio * layers + 0.5))
    head_dim = max(2, 2 * round(width / (2 * heads)))
    mlp = round((parameters / layers - 4 * width * heads * head_dim) / (3 * width))
    low, high = (share * width for share in MLP_SHARES)
    if not low <= mlp <= high:
        raise InputError(
            f"width / layers {cell.width_ratio:g} with heads / layers {cell.head_ratio:g} cannot have about "
            f"{parameters:,} parameters ({layers} layers of {width} features, {heads} heads); choose other ratios"
        )
    return DecoderConfig(BYTE_VOCABULARY, layers, width, heads, heads, head_dim, mlp)


@final
@dataclass(frozen=True)
class Sweep(Study):
    """A grid of shapes at fixed compute.

    Args:
        arms: the baseline, and one other residual stream.
        width_ratios, head_ratios: features a layer and heads a layer of the cells.
        parameters: in the sublayers of every cell, about.
        seeds: of the runs in every cell.
        common: what all runs share; `tokens_per_parameter` is that of the middle cell, whose compute all cells take.
    """

    kind: ClassVar[str] = "sweep"

    arms: tuple[str, ...] = ("standard", "full")
    width_ratios: tuple[float, ...] = WIDTH_RATIOS
    head_ratios: tuple[float, ...] = HEAD_RATIOS
    parameters: int = PARAMETERS
    seeds: tuple[int, ...] = (1, 2, 3)
    common: Common = field(default_factory=Common)

    def __post_init__(self) -> None:
        if len(self.arms) != 2:
            raise InputError(f"arms are {' '.join(self.arms)}; name two, the baseline first")
        for kind, ratios in (("ratio", self.width_ratios), ("head ratio", self.head_ratios)):
            require_distinct(kind, ratios)
            if list(ratios) != sorted(ratios):
                raise InputError(f"{kind}s are {', '.join(map(str, ratios))}; name them in rising order")
        self.common.require_seeds(self.seeds)
        for cell in self._cells():
            require_arms(self.arms, self._model(cell))

    @property
    def operations(self) -> float:
        """Of every run: those of the middle cell at the tokens a parameter that were asked for."""
        model = self._model(self._middle)
        tokens = self.common.steps(model) * self.common.step_tokens
        return training_operations(to_plain(model), self.common.text.sequence_tokens, tokens)

    @property
    def _middle(self) -> Cell:
        middles = (ratios[len(ratios) // 2] for ratios in (self.width_ratios, self.head_ratios))
        return Cell(*middles)

    def runs(self, ended: States) -> list[PlannedRun]:
        tuning = self._tune(ended)
        return [*tuning.runs, *([] if tuning.rate is None else self._compared(tuning.rate))]

    def to_come(self, ended: States) -> list[PlannedRun]:
        return self._compared(RATES[START]) if self._tune(ended).rate is None else []

    def describe(self) -> list[str]:
        middle = self._model(self._middle)
        setting = (
            f"Sweep of {len(self.width_ratios)} x {len(self.head_ratios)} shapes of about {self.parameters:,} "
            f"parameters in their sublayers, {self.operations:.3g} operations a run; {self.arms[1]} against "
            f"{self.arms[0]} on seeds {', '.join(map(str, self.seeds))}."
        )
        shapes = [
            f"{cell.name}: {model.layers} layers of {model.width} features, {model.heads} heads of {model.head_dim}, "
            f"MLP of {model.mlp_width}, {count_parameters(model):,} parameters, {self._steps(model):,} steps"
            for cell in self._cells()
            for model in [self._model(cell)]
        ]
        rate = (
            f"One learning rate for all, found on {self.arms[0]} at {middle.layers} layers with seed "
            f"{self.common.tuning_seed}."
        )
        return [setting, *describe_arms(self.arms, middle), *shapes, rate]

    def _cells(self) -> Iterator[Cell]:
        yield from (Cell(width, heads) for width in self.width_ratios for heads in self.head_ratios)

    def _model(self, cell: Cell) -> DecoderConfig:
        return shape(cell, self.parameters)

    def _steps(self, model: DecoderConfig) -> int:
        return self.common.steps_for(self.operations, model)

    def _tune(self, ended: States) -> Tuning:
        return tune(self.common, self._middle.name, with_arm(self._model(self._middle), self.arms[0]), ended)

    def _compared(self, rate: float) -> list[PlannedRun]:
        return [self._run(cell, arm, seed, rate) for seed in self.seeds for cell in self._cells() for arm in self.arms]

    def _run(self, cell: Cell, arm: str, seed: int, rate: float) -> PlannedRun:
        shaped = self._model(cell)
        name, model = f"{cell.name}-{arm}-seed{seed}", with_arm(shaped, arm)
        config = self.common.run(name, model, steps=self._steps(shaped), seed=seed, learning_rate=rate)
        labels = {"part": "compare", "arm": arm, "seed": seed, "stream": arm_name(arm, model.layers)}
        labels |= {"width_ratio": cell.width_ratio, "head_ratio": cell.head_ratio, "learning_rate": rate}
        return PlannedRun(name, config, {**labels, "layers": model.layers, "width": model.width, "heads": model.heads})
