"""What a study is: a frozen config that says which runs it needs, given those that have ended."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

from attention_residuals.configs import to_plain
from attention_residuals.experiments.compute import training_operations
from attention_residuals.experiments.studies.state import RunState
from attention_residuals.train import TrainConfig

OPERATIONS_A_CALL = 2e7
"""What a core could compute while it gets one sublayer under way, forward and backward."""

States: TypeAlias = Mapping[str, RunState]
"""How far each run of a study is, by name."""


@dataclass(frozen=True)
class PlannedRun:
    """One run of a study.

    Args:
        name: of its folder; part of the study's plan for good, so it names everything that tells runs apart.
        config: what to train. It keeps a checkpoint of its last step, which analyses need.
        labels: what tables and figures group by, for example `{"arm": "block", "size": "8 layers", "seed": 0}`.
        analyses: what to find out about the trained model, by name (`studies/analyses.py`).
    """

    name: str
    config: TrainConfig
    labels: dict[str, Any] = field(default_factory=dict)
    analyses: tuple[str, ...] = ()

    @property
    def cost(self) -> float:
        """Floating-point operations of its training; reads over the depth are not counted (`compute.FORMULA`)."""
        return training_operations(to_plain(self.config.model), self.config.text.sequence_tokens, self.tokens)

    @property
    def effort(self) -> float:
        """What its training takes, in operations: those it has, and what small tensors cost whatever their size."""
        return self.cost + self.config.steps * self.config.model.sublayers * OPERATIONS_A_CALL

    @property
    def tokens(self) -> int:
        """Training tokens."""
        return self.config.steps * self.config.batch_sequences * self.config.text.sequence_tokens


@dataclass(frozen=True)
class Study(ABC):
    """A question. Its fields are what it was asked with, so the same command finds its folder again and goes on."""

    kind: ClassVar[str]
    """Name of its command and of its report."""

    @abstractmethod
    def runs(self, ended: States) -> list[PlannedRun]:
        """All runs known so far, in the order to start them. Later ones may depend on how earlier ones `ended`.

        A study is over when every run of this list has ended: what was in a list once stays in it.
        """

    def to_come(self, ended: States) -> list[PlannedRun]:
        """Stand-ins for runs that `runs` cannot name yet, so that the time left counts them."""
        return []

    @abstractmethod
    def describe(self) -> list[str]:
        """What is about to happen, in sentences for people."""
