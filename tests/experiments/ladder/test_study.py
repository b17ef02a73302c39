"""Which runs a ladder plans, and when."""

import dataclasses

import pytest

from attention_residuals import InputError
from attention_residuals.experiments.ladder.study import LAYERS, Ladder, scaled_layers
from attention_residuals.experiments.studies.plan import PlannedRun
from attention_residuals.experiments.studies.state import RunState

LADDER = Ladder(layers=(1, 2, 3), seeds=(1, 2))


def finish(runs: list[PlannedRun], best: float = 1e-2) -> dict[str, RunState]:
    """All of `runs` ended, tuning runs the better the nearer to the rate `best`."""
    return {run.name: RunState(final={"validation_loss": abs(run.labels["learning_rate"] - best)}) for run in runs}


def to_the_end(ladder: Ladder) -> list[PlannedRun]:
    """All runs, planned as they become known; what is planned stays planned."""
    runs = ladder.runs({})
    while True:
        again = ladder.runs(finish(runs))
        assert {run.name for run in runs} <= {run.name for run in again}
        if len(again) == len(runs):
            return again
        runs = again


def test_a_ladder_begins_with_the_rates_of_its_smallest_size() -> None:
    assert [run.name for run in LADDER.runs({})] == ["L1-tune-0.01", "L1-tune-0.005", "L1-tune-0.02"]


def test_tuning_is_of_the_baseline_with_a_seed_of_its_own() -> None:
    for run in to_the_end(LADDER):
        if run.labels["part"] == "tune":
            assert run.config.seed == 0 and run.config.model.residual == LADDER.runs({})[0].config.model.residual
        else:
            assert run.config.seed in (1, 2)


def test_compared_runs_share_the_rate_that_was_found_and_all_else() -> None:
    runs = [run for run in to_the_end(LADDER) if run.labels["part"] == "compare"]
    assert len(runs) == 3 * 3 * 2
    for layers in LADDER.layers:
        configs = [run.config for run in runs if run.labels["layers"] == layers]
        assert {config.optimizer.learning_rate for config in configs} == {1e-2}  # pyright: ignore[reportAttributeAccessIssue]
        first = configs[0]
        for config in configs:
            model = dataclasses.replace(config.model, residual=first.model.residual)
            assert dataclasses.replace(config, model=model, seed=first.seed, name=first.name) == first


def test_the_next_size_is_tuned_around_the_rate_of_the_one_before() -> None:
    first = LADDER.runs({})
    losses = finish(first, best=5e-3)
    further = LADDER.runs(losses)
    assert [run.name for run in further[3:]] == ["L1-tune-0.0025"]
    names = [run.name for run in LADDER.runs(finish(further, best=5e-3))]
    assert names[4:7] == ["L2-tune-0.005", "L2-tune-0.0025", "L2-tune-0.01"]
    assert names[7] == "L1-standard-seed1", "compared runs of a size come after the tuning of the next"


def test_small_sizes_come_first() -> None:
    compared = [run.labels["layers"] for run in to_the_end(LADDER) if run.labels["part"] == "compare"]
    assert compared == sorted(compared)


def test_what_is_still_to_come_is_counted_once() -> None:
    total = {run.name for run in to_the_end(LADDER)}
    for known in ({}, finish(LADDER.runs({}))):
        runs, to_come = LADDER.runs(known), LADDER.to_come(known)
        names = [run.name for run in (*runs, *to_come)]
        assert len(set(names)) == len(names) and set(names) == total
    assert not LADDER.to_come(finish(to_the_end(LADDER)))


def test_a_trial_that_stopped_is_not_chosen() -> None:
    known = finish(LADDER.runs({}), best=2e-2)
    known["L1-tune-0.02"] = RunState(stopped="loss is nan")
    rates = {run.config.optimizer.learning_rate for run in LADDER.runs(known) if run.labels["part"] == "compare"}  # pyright: ignore[reportAttributeAccessIssue]
    assert rates == {1e-2}


def test_tuning_takes_less_than_a_quarter() -> None:
    ladder = Ladder()
    runs = [*ladder.runs({}), *ladder.to_come({})]
    tuning = sum(run.cost for run in runs if run.labels["part"] == "tune")
    assert len(runs) == 5 * (3 + 9) and tuning / sum(run.cost for run in runs) <= 0.25


def test_a_scale_multiplies_parameters() -> None:
    assert scaled_layers(1) == LAYERS
    assert scaled_layers(8) == tuple(2 * layers for layers in LAYERS)
    with pytest.raises(InputError, match=r"scale is 0\.001, at which two sizes become one"):
        scaled_layers(0.001)
    with pytest.raises(InputError, match="scale is -1"):
        scaled_layers(-1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arms": ("standard", "wide")}, "'wide' is no model"),
        ({"arms": ("full", "full")}, "arm full is named twice"),
        ({"layers": ()}, "no size named"),
        ({"layers": (3, 2)}, "sizes are 3, 2 layers; name them in rising order"),
        ({"layers": (0, 2)}, "a size is 0 layers"),
        ({"seeds": (0, 1)}, "seed 0 tunes the baseline"),
    ],
)
def test_wrong_wishes_are_refused(changes: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Ladder(**changes)


def test_a_description_names_sizes_and_tokens() -> None:
    text = "\n".join(Ladder().describe())
    assert "14 layers of 48 features, 380,784 parameters, 7,616,512 tokens" in text
