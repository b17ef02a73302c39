"""Which runs the study plans, and a tiny one carried out."""

import dataclasses
import json
from pathlib import Path

import pytest

from attention_residuals import InputError
from attention_residuals.experiments.moe.report import write_report
from attention_residuals.experiments.moe.study import MixtureStudy
from attention_residuals.experiments.studies.common import Common, count_parameters
from attention_residuals.experiments.studies.plan import PlannedRun
from attention_residuals.experiments.studies.state import RunState
from attention_residuals.train import TextConfig
from tests.experiments.studies_in_process import finish_study, write_corpus

TINY = MixtureStudy(layers=2, experts=4, seeds=(1, 2))


def tuned(runs: list[PlannedRun], kind: str, best: float) -> dict[str, RunState]:
    """The tuning of a kind, ended with its lowest loss at a rate."""
    trials = [run for run in runs if run.labels["part"] == "tune" and run.labels["kind"] == kind]
    return {run.name: RunState(final={"validation_loss": abs(run.labels["learning_rate"] - best)}) for run in trials}


def test_each_kind_waits_for_its_own_rate() -> None:
    first = TINY.runs({})
    assert [run.labels["kind"] for run in first] == ["dense"] * 3 + ["mixture"] * 3
    assert {(run.labels["part"], run.config.seed) for run in first} == {("tune", 0)}
    assert len(TINY.to_come({})) == 8
    ended = tuned(first, "dense", 1e-2)
    assert [run.name for run in TINY.runs(ended)[6:]] == [
        f"dense-{arm}-seed{seed}" for seed in (1, 2) for arm in ("standard", "block")
    ]
    assert {run.labels["kind"] for run in TINY.to_come(ended)} == {"mixture"}


def test_arms_share_the_rate_of_their_kind_and_all_share_the_rest() -> None:
    ended: dict[str, RunState] = {}
    for _ in range(3):
        runs = TINY.runs(ended)
        ended = tuned(runs, "dense", 1e-2) | tuned(runs, "mixture", 5e-3)
    compared = [run for run in TINY.runs(ended) if run.labels["part"] == "compare"]
    assert len(compared) == 8 and not TINY.to_come(ended)
    rates = {(run.labels["kind"], run.labels["learning_rate"]) for run in compared}
    assert rates == {("dense", 1e-2), ("mixture", 5e-3)}
    one = compared[0].config
    for run in compared:
        shared = {"model": one.model, "seed": one.seed, "name": one.name, "optimizer": one.optimizer}
        assert dataclasses.replace(run.config, **shared) == one
        assert run.config.seed == run.labels["seed"]


def test_the_routers_of_all_runs_are_balanced_as_asked() -> None:
    for rate in (MixtureStudy.router_bias_rate, 0.02):
        study = dataclasses.replace(TINY, router_bias_rate=rate)
        assert {run.config.router_bias_rate for run in (*study.runs({}), *study.to_come({}))} == {rate} != {0}


def test_all_runs_are_as_long_as_the_dense_baseline_asks() -> None:
    runs = [*TINY.runs({}), *TINY.to_come({})]
    (tokens,) = {run.tokens for run in runs}
    parameters = count_parameters(TINY.networks["dense"])
    assert tokens == pytest.approx(20 * parameters, abs=TINY.common.step_tokens)
    assert count_parameters(TINY.networks["mixture"]) > parameters


def test_what_will_happen_is_said() -> None:
    told = "\n".join(MixtureStudy().describe())
    assert "10 layers of 32 features: MLPs of 96 units, and 8 experts of 32 units" in told
    assert "mixture: beside the embedding 134,304 parameters work for a token, of which 2,560 route it" in told
    assert "dense: beside the embedding 131,744 parameters work for a token" in told


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arms": ("standard",)}, "arms are standard; name two"),
        ({"arms": ("standard", "wide")}, "'wide' is no model"),
        ({"layers": 0}, "a size is 0 layers"),
        ({"top_k": 9}, "top_k is 9 of 8 experts"),
        ({"router_bias_rate": -1.0}, "router_bias_rate is -1"),
        ({"seeds": (0,)}, "seed 0 tunes the baseline"),
    ],
)
def test_wrong_wishes_are_refused(changes: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        MixtureStudy(**changes)


def test_four_tiny_runs_and_their_report(tmp_path: Path) -> None:
    """Those that are compared, at the rate that tuning begins with."""
    text = TextConfig((str(write_corpus(tmp_path)),), sequence_tokens=16)
    common = Common(text=text, batch_sequences=4, tokens_per_parameter=0.8)
    study = dataclasses.replace(TINY, common=common, seeds=(1,))
    folder = tmp_path / "moe"
    finish_study(study, folder, study.to_come({}))
    report = write_report(folder).with_suffix(".md").read_text()
    assert {path.name for path in (folder / "figures").iterdir()} == {"losses.png", "peaks.png", "loads.png"}
    assert "Kept out" not in report and "Not over yet" not in report
    for name in ("dense-standard-seed1", "mixture-block-seed1"):
        final = json.loads((folder / "runs" / name / "metrics.jsonl").read_text().splitlines()[-1])
        assert f"{final['validation_loss']:.4f}" in report
    assert "mixture-standard-seed1, layer 2" in report
