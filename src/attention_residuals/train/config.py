"""Everything one training run is asked for, as one frozen config."""

import math
from dataclasses import dataclass, field
from enum import Enum

from attention_residuals.distributed.layout import Parallel
from attention_residuals.errors import InputError, require_positive
from attention_residuals.models import BackboneConfig
from attention_residuals.train.optimizers import AdamW, Optimizer
from attention_residuals.train.schedules import Cosine, Schedule
from attention_residuals.train.text import TextConfig


class Precision(Enum):
    """The type that sublayers compute in; weights, optimiser state and the stream are float32 in any case."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    """Under autocast. Slow on processors without bfloat16 arithmetic."""


class Recompute(Enum):
    """Which steps from read to write are computed again in the backward, to save memory; results do not change."""

    NONE = "none"
    ALTERNATE = "alternate"
    """Every other sublayer: half the saving at half the cost."""
    FULL = "full"


@dataclass(frozen=True)
class TrainConfig:
    """One run.

    Args:
        name: what progress and errors call it.
        model, text, optimizer, schedule: see there.
        steps: optimiser steps in all.
        router_bias_rate: by how much the router of a mixture of experts moves its biases each step, towards equal loads
            (arXiv 2408.15664); nothing to other models.
        seed: of initial weights and of the order of batches.
        batch_sequences: sequences an optimiser step learns from.
        accumulate_parts: how many equal parts they are computed in, one after the other, to save memory.
        precision, recompute: see there.
        compile_sublayers: run each sublayer through `torch.compile`; equal ones share one compilation.
        evaluate_every_steps: steps between validations over `evaluation_tokens`; the last one is over
            `final_evaluation_tokens`.
        checkpoint_every_steps: steps between checkpoints, each with a validation; 0 for none.
        keep_checkpoints: how many of the latest to keep, besides the best.
        probe_every_steps: steps between probes of the depth (`probes.jsonl`); 0 for none.
        tensorboard: also write event files (the `tensorboard` extra).
        device: where to train.
        parallel: the processes of the run; one by default.

    Raises:
        InputError: a count below 1, or parts that do not divide the batch.
    """

    model: BackboneConfig
    steps: int
    name: str = "run"
    text: TextConfig = field(default_factory=TextConfig)
    optimizer: Optimizer = field(default_factory=AdamW)
    schedule: Schedule = field(default_factory=Cosine)
    router_bias_rate: float = 1e-3
    seed: int = 0
    batch_sequences: int = 4
    accumulate_parts: int = 1
    precision: Precision = Precision.FLOAT32
    recompute: Recompute = Recompute.NONE
    compile_sublayers: bool = False
    evaluate_every_steps: int = 50
    evaluation_tokens: int = 16_384
    final_evaluation_tokens: int = 131_072
    checkpoint_every_steps: int = 0
    keep_checkpoints: int = 2
    probe_every_steps: int = 0
    tensorboard: bool = False
    device: str = "cpu"
    parallel: Parallel = field(default_factory=Parallel)

    def __post_init__(self) -> None:
        require_positive(self, "steps", "batch_sequences", "accumulate_parts", "evaluate_every_steps")
        require_positive(self, "evaluation_tokens", "final_evaluation_tokens", "keep_checkpoints")
        for name in ("checkpoint_every_steps", "probe_every_steps"):
            if getattr(self, name) < 0:
                raise InputError(f"{name} is {getattr(self, name)}; it must be at least 0, which means never")
        if not (math.isfinite(self.router_bias_rate) and self.router_bias_rate >= 0):
            raise InputError(
                f"router_bias_rate is {self.router_bias_rate}; it must be a number of at least 0, for example 0.001"
            )
        if self.batch_sequences % self.accumulate_parts:
            raise InputError(
                f"accumulate_parts is {self.accumulate_parts}, which does not divide batch_sequences "
                f"{self.batch_sequences}; choose a divisor"
            )

    @property
    def part_sequences(self) -> int:
        """Sequences computed at once."""
        return self.batch_sequences // self.accumulate_parts
