"""Everything a tuning is asked for, as one frozen config."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from attention_residuals.errors import InputError, require_positive
from attention_residuals.models import Role
from attention_residuals.retrofit.tuning.parts import Part, read_parts
from attention_residuals.train.schedules import Cosine, Schedule

DEPTH_RATE = 4e-4
"""Of depth queries: the best of a few tried on a model of 135 million parameters; ten times as much ruined it."""

NORM_RATE = 1e-3
LORA_RATE = 3e-4
WHOLE_RATE = 2e-5
"""Of everything else where the whole model is trained, its norms included."""


@dataclass(frozen=True)
class TuneConfig:
    """One tuning. Rates are peaks, to be multiplied by the schedule.

    Args:
        train: parts joined by a plus, see `Part`.
        steps: optimiser steps in all.
        batch_sequences: sequences a step learns from.
        depth_rate: of queries and key norms, which are never decayed: their size is the temperature of the softmax.
        norm_rate: of the model's norms; None: 1e-3, or with `all` that of the rest.
        rate: of all others; None: 3e-4 for low-rank matrices, 2e-5 with `all`.
        weight_decay: of matrices alone, decoupled.
        betas: of AdamW.
        clip_norm: norm that the gradient of all trained parameters together is clipped to.
        schedule: see there.
        seed: of the order of batches and the start of low-rank matrices.
        evaluate_every_steps: steps between validations, all over the same `evaluation_tokens`; one comes before the
            first step and one after the last.
        save_every_steps: steps between adapters and states on disk; 0: at the end alone.
        lora_rank, lora_targets, lora_alpha: see `add_lora`.
        recompute: activation checkpoints, to save memory.

    Raises:
        InputError: a count below 1, a rate that is not positive, a part that does not exist.
    """

    train: str = "queries"
    steps: int = 100
    batch_sequences: int = 1
    depth_rate: float = DEPTH_RATE
    norm_rate: float | None = None
    rate: float | None = None
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.95)
    clip_norm: float = 1.0
    schedule: Schedule = field(default_factory=Cosine)
    seed: int = 0
    evaluate_every_steps: int = 20
    evaluation_tokens: int = 8192
    save_every_steps: int = 0
    lora_rank: int = 8
    lora_targets: tuple[str, ...] = ()
    lora_alpha: float | None = None
    recompute: bool = False

    def __post_init__(self) -> None:
        read_parts(self.train)
        require_positive(self, "steps", "batch_sequences", "evaluate_every_steps", "evaluation_tokens", "lora_rank")
        if self.save_every_steps != 0:
            require_positive(self, "save_every_steps")
        for name in ("depth_rate", "norm_rate", "rate", "clip_norm", "lora_alpha"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise InputError(f"{name} is {value}; it must be a positive number")
        if not (math.isfinite(self.weight_decay) and self.weight_decay >= 0):
            raise InputError(f"weight_decay is {self.weight_decay}; it must be at least 0, for example 0.01")

    @property
    def parts(self) -> frozenset[Part]:
        """What is trained."""
        return read_parts(self.train)

    def rate_of(self, role: Role) -> float:
        """The peak rate of a role."""
        return self._rates().get(role, self._rest())

    def decay_of(self, role: Role) -> float:
        """The weight decay of a role."""
        return self.weight_decay if role is Role.MATRIX else 0.0

    def _rest(self) -> float:
        usual = WHOLE_RATE if Part.ALL in self.parts else LORA_RATE
        return usual if self.rate is None else self.rate

    def _rates(self) -> Mapping[Role, float]:
        norms = self._rest() if Part.ALL in self.parts else NORM_RATE
        return {
            Role.DEPTH_QUERY: self.depth_rate,
            Role.DEPTH_NORM: self.depth_rate,
            Role.NORM: norms if self.norm_rate is None else self.norm_rate,
        }
