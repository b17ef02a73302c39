"""Studies that train every arm at one size and then look inside: `dynamics` and `depth`."""

import dataclasses
import math
import warnings
from dataclasses import dataclass, field
from typing import ClassVar, final

from attention_residuals.errors import InputError, require_positive
from attention_residuals.experiments.arms import residual_of
from attention_residuals.experiments.studies.plan import PlannedRun, States, Study
from attention_residuals.models import BYTE_VOCABULARY, Decoder, DecoderConfig
from attention_residuals.models.meta import without_values
from attention_residuals.train import AdamW, Cosine, Muon, Optimizer, Schedule, TextConfig, TrainConfig

LOOKS = 12
"""Validations of a run, each with a probe."""
LOOKS_A_CHECKPOINT = 3

POSTNORM_RATE = 1e-3


@dataclass(frozen=True)
class ArmStudy(Study):
    """Every arm with every seed: equal initial weights in all shared parameters, equal batches in equal order.

    Args:
        arms: names of residual streams (`experiments/arms.py`); others are held against the first.
        layers: of the decoder; every other size follows from it.
        seeds: of initial weights and of the order of batches.
        tokens: training tokens a run.
        batch_sequences, sequence_tokens: what one optimiser step learns from.
        data: paths of text; none: Python's own library.
        optimizer, schedule: equal for all arms, but for `learning_rates`.
        learning_rates: peak rates of arms, by name, that do not learn at the optimiser's.
        device: where to train.

    Raises:
        InputError: a name that is none, or twice; fewer tokens than one step; a rate that is not positive.
    """

    analyses: ClassVar[tuple[str, ...]]

    arms: tuple[str, ...]
    layers: int = 12
    seeds: tuple[int, ...] = (0, 1)
    tokens: int = 900_000
    batch_sequences: int = 4
    sequence_tokens: int = 256
    data: tuple[str, ...] = ()
    optimizer: Optimizer = field(default_factory=AdamW)
    schedule: Schedule = field(default_factory=Cosine)
    learning_rates: dict[str, float] = field(default_factory=dict)
    device: str = "cpu"

    def __post_init__(self) -> None:
        require_positive(self, "layers", "batch_sequences", "sequence_tokens")
        for kind, values in (("model", self.arms), ("seed", self.seeds)):
            if not values:
                raise InputError(f"no {kind} named; name at least one")
            if len(set(values)) < len(values):
                raise InputError(f"a {kind} is named twice in {', '.join(map(str, values))}; name each once")
        for arm in self.arms:
            residual_of(arm)
        for arm in self.learning_rates:
            residual_of(arm)
            self._optimizer(arm)
        if self.steps < 1:
            step_tokens = self.batch_sequences * self.sequence_tokens
            raise InputError(f"{self.tokens} tokens are less than one step of {step_tokens}; ask for more --tokens")

    @property
    def text(self) -> TextConfig:
        """What to train on, bytes as tokens."""
        return TextConfig(self.data, sequence_tokens=self.sequence_tokens)

    @property
    def steps(self) -> int:
        """Optimiser steps a run."""
        return self.tokens // (self.batch_sequences * self.sequence_tokens)

    def runs(self, ended: States) -> list[PlannedRun]:
        return [
            PlannedRun(
                name=f"{arm}-seed{seed}",
                config=self._config(arm, seed),
                labels={"arm": arm, "seed": seed},
                analyses=self.analyses,
            )
            for seed in self.seeds
            for arm in self.arms
        ]

    def describe(self) -> list[str]:
        seeds = ", ".join(map(str, self.seeds))
        size = (
            f"{len(self.arms)} models of {self.layers} layers, seeds {seeds}: {len(self.arms) * len(self.seeds)} runs "
            f"of {self.steps:,} steps of {self.batch_sequences} x {self.sequence_tokens} tokens on {self.device}."
        )
        lines = [size]
        for arm in self.arms:
            with warnings.catch_warnings(record=True) as caught, without_values():
                warnings.simplefilter("always")
                stream = Decoder(self._model(arm)).stream
            rate = f"; peak rate {self.learning_rates[arm]:g}" if arm in self.learning_rates else ""
            lines += [f"{arm}: {stream.describe()}{rate}", *(f"  note: {warning.message}" for warning in caught)]
        return lines

    def _model(self, arm: str) -> DecoderConfig:
        return DecoderConfig.from_depth(self.layers, vocab_size=BYTE_VOCABULARY, residual=residual_of(arm))

    def _optimizer(self, arm: str) -> Optimizer:
        if arm not in self.learning_rates:
            return self.optimizer
        assert isinstance(self.optimizer, AdamW | Muon), "an optimiser with one rate for most of a network"
        return dataclasses.replace(self.optimizer, learning_rate=self.learning_rates[arm])

    def _config(self, arm: str, seed: int) -> TrainConfig:
        every = math.ceil(self.steps / LOOKS)
        return TrainConfig(
            name=arm,
            model=self._model(arm),
            text=self.text,
            steps=self.steps,
            seed=seed,
            batch_sequences=self.batch_sequences,
            optimizer=self._optimizer(arm),
            schedule=self.schedule,
            evaluate_every_steps=every,
            checkpoint_every_steps=LOOKS_A_CHECKPOINT * every,
            keep_checkpoints=1,
            probe_every_steps=every,
            device=self.device,
        )


@final
@dataclass(frozen=True)
class DynamicsStudy(ArmStudy):
    """Loss, sizes and gradients along the depth (arXiv 2603.15031, Figure 5), with post-norm as the control.

    At the rate that suits the others a deep post-norm network learns nothing, and a network that has learned nothing is
    no control: it has a rate of its own.
    """

    kind: ClassVar[str] = "dynamics"
    analyses: ClassVar[tuple[str, ...]] = ("dynamics",)

    arms: tuple[str, ...] = ("standard", "block", "full", "postnorm")
    learning_rates: dict[str, float] = field(default_factory=lambda: {"postnorm": POSTNORM_RATE})


@final
@dataclass(frozen=True)
class DepthStudy(ArmStudy):
    """Depth weights, mixing matrices, their ranks, and what each source is worth (Figures 8 and 9)."""

    kind: ClassVar[str] = "depth"
    analyses: ClassVar[tuple[str, ...]] = ("depth",)

    arms: tuple[str, ...] = ("standard", "highway", "mhc", "block", "full")
    seeds: tuple[int, ...] = (0,)
