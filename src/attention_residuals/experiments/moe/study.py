"""Which runs the question needs: a learning rate found on each kind of network, then both streams with paired seeds."""

import dataclasses
from dataclasses import dataclass, field
from typing import ClassVar, final

from attention_residuals.errors import InputError
from attention_residuals.experiments.moe.analysis import DENSE, MIXTURE
from attention_residuals.experiments.moe.shapes import Networks, sizes
from attention_residuals.experiments.studies.common import (
    Common,
    Tuning,
    arm_name,
    describe_arms,
    require_arms,
    tune,
    with_arm,
)
from attention_residuals.experiments.studies.plan import PlannedRun, States, Study
from attention_residuals.experiments.studies.tuning import RATES, START
from attention_residuals.models import HybridConfig

LAYERS = 10


@final
@dataclass(frozen=True)
class MixtureStudy(Study):
    """Two kinds of networks, each with two residual streams, on the same seeds.

    The kinds are a dense decoder and one of mixtures of experts, with as many parameters at work for a token but for
    the routers (`Networks`). All runs see the same number of tokens, and those of a seed the same batches.

    Args:
        arms: two residual streams, the first being the baseline, on which each kind finds its learning rate.
        layers: the depth; widths follow.
        experts, top_k, shared: of every mixture.
        router_bias_rate: as in `TrainConfig`; the loads are balanced without a loss. Faster than there, since these
            runs are short: scores move by tenths, and 1,000 steps of a thousandth take much of a run to follow.
        seeds: of the compared runs.
        common: what all runs share; `tokens_per_parameter` is by all parameters of the dense baseline.
    """

    kind: ClassVar[str] = "moe"

    arms: tuple[str, ...] = ("standard", "block")
    layers: int = LAYERS
    experts: int = 8
    top_k: int = 2
    shared: int = 1
    router_bias_rate: float = 4e-3
    seeds: tuple[int, ...] = (1, 2, 3)
    common: Common = field(default_factory=Common)

    def __post_init__(self) -> None:
        if len(self.arms) != 2:
            raise InputError(f"arms are {' '.join(self.arms)}; name two, the baseline first")
        self.common.require_seeds(self.seeds)
        for model in self.networks.values():
            require_arms(self.arms, model)
        self.runs({})  # refuses the rest of what no run can have

    @property
    def networks(self) -> dict[str, HybridConfig]:
        """Both kinds by name, with the standard residual."""
        return {DENSE: self._networks.dense, MIXTURE: self._networks.mixture}

    @property
    def _networks(self) -> Networks:
        return Networks(self.layers, self.experts, self.top_k, self.shared)

    @property
    def steps(self) -> int:
        """Of every run."""
        return self.common.steps(self._model(DENSE, self.arms[0]))

    def runs(self, ended: States) -> list[PlannedRun]:
        tunings = {kind: self._tune(kind, ended) for kind in self.networks}
        rates = {kind: tuning.rate for kind, tuning in tunings.items() if tuning.rate is not None}
        trials = (run for tuning in tunings.values() for run in tuning.runs)
        return [*map(self._balanced, trials), *self._compared(rates)]

    def to_come(self, ended: States) -> list[PlannedRun]:
        waiting = [kind for kind in self.networks if self._tune(kind, ended).rate is None]
        return self._compared(dict.fromkeys(waiting, RATES[START]))

    def describe(self) -> list[str]:
        hidden, chosen = self._networks.expert_hidden, self.top_k + self.shared
        setting = (
            f"A dense model and a mixture of experts, {self.layers} layers of {self.networks[DENSE].width} features: "
            f"MLPs of {chosen * hidden} units, and {self.experts} experts of {hidden} units, of which a token goes "
            f"through {self.top_k} and {self.shared} shared. {self.steps * self.common.step_tokens:,} tokens a run; "
            f"learning rate of each found on {self.arms[0]} with seed {self.common.tuning_seed}; seeds "
            f"{', '.join(map(str, self.seeds))}."
        )
        return [setting, *(line for kind in self.networks for line in self._describe(kind))]

    def _describe(self, kind: str) -> list[str]:
        found = sizes(self._model(kind, self.arms[0]))
        routers = f", of which {found.router:,} route it" if found.router else ""
        work = f"{kind}: beside the embedding {found.active:,} parameters work for a token{routers}."
        return [work, *(f"  {line}" for line in describe_arms(self.arms, self.networks[kind]))]

    def _model(self, kind: str, arm: str) -> HybridConfig:
        return with_arm(self.networks[kind], arm)

    def _tune(self, kind: str, ended: States) -> Tuning:
        model = self._model(kind, self.arms[0])
        return tune(self.common, kind, model, ended, steps=self.steps, labels={"kind": kind})

    def _compared(self, rates: dict[str, float]) -> list[PlannedRun]:
        """All runs of the kinds whose learning rate is known."""
        return [
            self._run(kind, arm, seed, rate) for seed in self.seeds for kind, rate in rates.items() for arm in self.arms
        ]

    def _run(self, kind: str, arm: str, seed: int, rate: float) -> PlannedRun:
        name, model = f"{kind}-{arm}-seed{seed}", self._model(kind, arm)
        config = self.common.run(name, model, steps=self.steps, seed=seed, learning_rate=rate)
        found = sizes(model)
        labels = {"part": "compare", "kind": kind, "arm": arm, "seed": seed, "stream": arm_name(arm, self.layers)}
        labels |= {"layers": self.layers, "width": model.width, "learning_rate": rate}
        return self._balanced(PlannedRun(name, config, {**labels, "active": found.active, "router": found.router}))

    def _balanced(self, run: PlannedRun) -> PlannedRun:
        config = dataclasses.replace(run.config, router_bias_rate=self.router_bias_rate)
        return dataclasses.replace(run, config=config)
