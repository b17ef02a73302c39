"""Every study of the paper's claims as one config, run one after the other in folders of one folder."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import final

from attention_residuals.errors import InputError
from attention_residuals.experiments.ablation.study import Ablation, default_arms
from attention_residuals.experiments.arm_studies import DepthStudy, DynamicsStudy
from attention_residuals.experiments.control import ControlConfig
from attention_residuals.experiments.ladder.study import Ladder
from attention_residuals.experiments.studies.plan import Study
from attention_residuals.experiments.sweep.study import Sweep

LADDER_LAYERS = (5, 6, 7, 8, 10)
ABLATION_LAYERS = 7
SWEEP_PARAMETERS = 44_000
SWEEP_HEAD_RATIOS = (0.3, 0.6)


@final
@dataclass(frozen=True)
class Reproduction:
    """The whole, in the order it is run; the defaults fit an evening, and are those of the published results.

    Ladder, ablation and sweep are smaller than their own commands': sublayers of 16 to 123 thousand parameters in the
    ladder, of 44 thousand in the other two, at its middle.
    """

    control: ControlConfig = field(default_factory=ControlConfig)
    ladder: Ladder = field(default_factory=lambda: Ladder(layers=LADDER_LAYERS))
    dynamics: DynamicsStudy = field(default_factory=DynamicsStudy)
    depth: DepthStudy = field(default_factory=DepthStudy)
    ablate: Ablation = field(default_factory=lambda: Ablation(default_arms(ABLATION_LAYERS), ABLATION_LAYERS))
    sweep: Sweep = field(default_factory=lambda: Sweep(parameters=SWEEP_PARAMETERS, head_ratios=SWEEP_HEAD_RATIOS))

    @property
    def studies(self) -> dict[str, Study]:
        """Those that train many runs, by the name of their folder."""
        named = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: study for name, study in named.items() if isinstance(study, Study)}


SIZES: dict[str, Callable[[], Reproduction]] = {
    "evening": Reproduction,
    "night": lambda: Reproduction(ladder=Ladder(), ablate=Ablation(), sweep=Sweep()),
}
"""How long it may take on two cores: a bit over two hours, or six to seven."""


def sized(size: str) -> Reproduction:
    """`evening`: the default. `night`: every study as its own command has it.

    Raises:
        InputError: another name.
    """
    if size not in SIZES:
        raise InputError(f"there is no size '{size}'; choose {' or '.join(SIZES)}")
    return SIZES[size]()
