"""Shapes of a sweep, and its runs."""

import pytest

from attention_residuals import InputError
from attention_residuals.configs import to_plain
from attention_residuals.experiments.compute import matrix_parameters
from attention_residuals.experiments.studies.state import RunState
from attention_residuals.experiments.sweep.study import HEAD_RATIOS, PARAMETERS, WIDTH_RATIOS, Cell, Sweep, shape

CELLS = [Cell(width, heads) for width in WIDTH_RATIOS for heads in HEAD_RATIOS]
SMALL = Sweep(parameters=20_000, width_ratios=(4.0, 8.0), head_ratios=(0.5,), seeds=(1,))


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_cells_have_equal_parameters_and_their_ratios(cell: Cell) -> None:
    model = shape(cell, PARAMETERS)
    inner = matrix_parameters(to_plain(model)) - model.width * model.vocab_size
    assert inner == pytest.approx(PARAMETERS, rel=0.02)
    assert model.width / model.layers == pytest.approx(cell.width_ratio, rel=0.05)
    assert abs(model.heads - cell.head_ratio * model.layers) <= 0.5
    assert model.head_dim % 2 == 0


def test_cells_are_different_shapes() -> None:
    assert len({shape(cell, PARAMETERS) for cell in CELLS}) == len(CELLS)


def test_every_run_has_the_same_compute_and_tuning_is_of_the_middle() -> None:
    study = Sweep()
    runs = [*study.runs({}), *study.to_come({})]
    assert len(runs) == 3 + 9 * 2 * 3
    for run in runs:
        assert run.cost == pytest.approx(study.operations, rel=1e-3)
    assert [run.name for run in runs[:3]] == ["d5-h0.5-tune-0.01", "d5-h0.5-tune-0.005", "d5-h0.5-tune-0.02"]


def test_both_arms_of_a_cell_share_all_but_the_stream() -> None:
    first = SMALL.runs({})
    ended = {run.name: RunState(final={"validation_loss": 1.0}) for run in first}
    compared = SMALL.runs(ended)[3:]
    assert [run.name for run in compared] == [
        f"d{width}-h0.5-{arm}-seed1" for width in (4, 8) for arm in ("standard", "full")
    ]
    assert compared[0].config.steps == compared[1].config.steps
    assert compared[0].config.model.sublayers > compared[2].config.model.sublayers
    assert not SMALL.to_come(ended)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arms": ("standard",)}, "arms are standard; name two"),
        ({"arms": ("standard", "wide")}, "'wide' is no model"),
        ({"width_ratios": ()}, "no ratio named"),
        ({"width_ratios": (8.0, 4.0)}, "ratios are 8.0, 4.0; name them in rising order"),
        ({"width_ratios": (-1.0, 4.0)}, "they must be positive numbers"),
        ({"head_ratios": (0.5, 0.5)}, "head ratio 0.5 is named twice"),
        ({"width_ratios": (1000.0,)}, "cannot have about 120,000 parameters"),
        ({"seeds": (0,)}, "seed 0 tunes the baseline"),
    ],
)
def test_wrong_wishes_are_refused(changes: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Sweep(**changes)
