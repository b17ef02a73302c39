"""Plans of the studies that look inside models."""

import pytest

from attention_residuals import Additive, AttnRes, InputError
from attention_residuals.experiments.arm_studies import DepthStudy, DynamicsStudy
from attention_residuals.experiments.studies.analyses import ANALYSES

ARMS = ("standard", "full")


def test_runs_differ_in_residual_and_seed_alone() -> None:
    study = DynamicsStudy(ARMS, layers=2, seeds=(3, 4), tokens=10_000)
    runs = study.runs({})
    assert [run.name for run in runs] == ["standard-seed3", "full-seed3", "standard-seed4", "full-seed4"]
    assert [type(run.config.model.residual) for run in runs] == [Additive, AttnRes] * 2
    assert len({(run.config.steps, run.config.batch_sequences, run.config.optimizer) for run in runs}) == 1
    for run in runs:
        assert run.labels == {"arm": run.config.name, "seed": run.config.seed}
        assert run.config.checkpoint_every_steps > 0, "analyses need the weights"
        assert run.config.probe_every_steps > 0
        assert set(run.analyses) <= ANALYSES.keys()
    assert study.steps == 10_000 // 1024


def test_the_control_has_a_rate_of_its_own() -> None:
    study = DynamicsStudy(("standard", "postnorm"), layers=1, seeds=(0,), tokens=5000)
    rates = {run.config.name: run.config.optimizer.learning_rate for run in study.runs({})}
    assert rates == {"standard": study.optimizer.learning_rate, "postnorm": 0.001}
    assert study.describe()[-1].endswith("peak rate 0.001")
    assert DepthStudy().learning_rates == {}


def test_a_study_tells_what_it_will_do() -> None:
    size, *arms = DepthStudy(("standard", "block"), layers=1, seeds=(0,), tokens=5000).describe()
    assert "2 models of 1 layers, seeds 0: 2 runs of 4 steps" in size
    assert arms[0] == "standard: standard residual over 2 sublayers"
    assert "one block results" in arms[-1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arms": ("standard", "wide")}, "'wide' is no model"),
        ({"arms": ()}, "no model named"),
        ({"arms": ("full", "full")}, "a model is named twice"),
        ({"seeds": ()}, "no seed named"),
        ({"seeds": (1, 1)}, "a seed is named twice"),
        ({"layers": 0}, "layers is 0"),
        ({"learning_rates": {"full": 0.0}}, "learning_rate is 0.0"),
        ({"learning_rates": {"ful": 0.1}}, "'ful' is no model"),
        ({"tokens": 1000}, "1000 tokens are less than one step of 1024"),
    ],
)
def test_wrong_wishes_are_one_sentence(changes: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        DepthStudy(**{"arms": ARMS, **changes})
