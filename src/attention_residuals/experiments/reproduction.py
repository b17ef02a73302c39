"""Every study of the paper's claims as one config, run one after the other in folders of one folder."""

from dataclasses import dataclass, field, fields
from typing import final

from attention_residuals.experiments.ablation.study import Ablation
from attention_residuals.experiments.arm_studies import DepthStudy, DynamicsStudy
from attention_residuals.experiments.control import ControlConfig
from attention_residuals.experiments.ladder.study import Ladder
from attention_residuals.experiments.studies.plan import Study
from attention_residuals.experiments.sweep.study import Sweep


@final
@dataclass(frozen=True)
class Reproduction:
    """The whole, in the order it is run; the defaults are those of each command."""

    control: ControlConfig = field(default_factory=ControlConfig)
    ladder: Ladder = field(default_factory=Ladder)
    dynamics: DynamicsStudy = field(default_factory=DynamicsStudy)
    depth: DepthStudy = field(default_factory=DepthStudy)
    ablate: Ablation = field(default_factory=Ablation)
    sweep: Sweep = field(default_factory=Sweep)

    @property
    def studies(self) -> dict[str, Study]:
        """Those that train many runs, by the name of their folder."""
        named = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: study for name, study in named.items() if isinstance(study, Study)}
