"""Which runs an ablation plans."""

import dataclasses

import pytest

from attention_residuals import InputError
from attention_residuals.experiments.ablation.study import (
    LAYERS,
    Ablation,
    all_arms,
    default_arms,
    read_heads,
)
from attention_residuals.experiments.arms import RIVALS
from attention_residuals.experiments.studies.common import require_arms, thin_decoder
from attention_residuals.experiments.studies.state import RunState

ARMS = ("standard", "full", "block2")


def test_every_arm_of_the_papers_table_stands_for_a_stream() -> None:
    require_arms(default_arms(LAYERS), thin_decoder(LAYERS))
    require_arms(all_arms(LAYERS), thin_decoder(LAYERS))


def test_defaults_hold_the_papers_table_and_figure() -> None:
    arms = default_arms(16)
    assert {"block2", "block4", "block8", "block16", "block32"} <= set(arms), "Figure 6"
    table = {"standard", "denseformer", "mhc", "full", "full+dynamic", "full+static", "full+sigmoid", "full+nonorm"}
    assert table | {"full+window8", "block4+nonorm"} <= set(arms), "Table 4"
    assert len(set(arms)) == len(arms)
    assert {"block16", "block20"} <= set(default_arms(10)) and "block32" not in default_arms(10)


def test_all_arms_are_the_defaults_and_every_rival() -> None:
    assert set(all_arms(10)) == set(default_arms(10)) | RIVALS.keys() and all_arms(10)[0] == "standard"


@pytest.mark.parametrize(("width", "heads"), [(1168, 16), (128, 16), (64, 8), (40, 4), (32, 4), (28, 2), (9, 1)])
def test_read_heads_fit_the_width(width: int, heads: int) -> None:
    assert read_heads(width) == heads


def test_compared_runs_wait_for_the_rate_and_share_all_but_the_stream() -> None:
    study = Ablation(ARMS, layers=2, seeds=(1, 2))
    first = study.runs({})
    assert [run.labels["part"] for run in first] == ["tune"] * 3
    assert [run.name for run in study.to_come({})] == [f"{arm}-seed{seed}" for seed in (1, 2) for arm in ARMS]
    ended = {run.name: RunState(final={"validation_loss": abs(run.labels["learning_rate"] - 1e-2)}) for run in first}
    compared = study.runs(ended)[3:]
    assert len(compared) == 6 and not study.to_come(ended)
    one = compared[0].config
    for run in compared:
        model = dataclasses.replace(run.config.model, residual=one.model.residual)
        assert dataclasses.replace(run.config, model=model, seed=one.seed, name=one.name) == one


def test_a_rate_that_is_given_is_not_looked_for() -> None:
    study = Ablation(ARMS, layers=2, learning_rate=3e-3)
    assert {run.labels["part"] for run in study.runs({})} == {"compare"} and not study.to_come({})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arms": ("standard", "wide")}, "'wide' is no model"),
        ({"layers": 0}, "a size is 0 layers"),
        ({"learning_rate": 0.0}, "learning rate is 0"),
        ({"seeds": (0,)}, "seed 0 tunes the baseline"),
    ],
)
def test_wrong_wishes_are_refused(changes: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Ablation(**{"arms": ARMS, "layers": 2, **changes})
