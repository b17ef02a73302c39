"""The commands about pipelines: what they run, refuse and write, and that they notice what is wrong."""

import json
import math
from pathlib import Path

import pytest

from attention_residuals.bench.distributed import grid, steps, volumes
from attention_residuals.bench.distributed.command import main
from attention_residuals.bench.distributed.counting import Counted
from attention_residuals.bench.distributed.models import MODELS, Hardware, load_of
from attention_residuals.bench.distributed.parity import UNIT_BYTES, Case, Found
from attention_residuals.distributed.cuts import Cuts, Transport
from attention_residuals.distributed.layout import Schedule
from attention_residuals.distributed.orders import order
from attention_residuals.distributed.volumes import most_held, walk

TINY_SIMULATION = ["simulation", "--ranks", "2", "4", "--chunks", "2", "--gigabytes", "1", "--micro-batches", "1"]


def test_the_grid_has_every_cut_once() -> None:
    cases = grid.grid_cases(layers=2, block=3)
    assert len(set(cases)) == len(cases) == (2 * 3 + 1) * 3 * 2 * 3  # cuts, residuals, recomputed or not, transports
    assert {case.cuts for case in cases} == {(0, 1), (0, 2), (0, 3), (0, 1, 2, 3)}


@pytest.mark.parametrize("off", [2e-10, math.nan, math.inf])
def test_the_grid_notices_what_is_wrong(off: float) -> None:
    cases = [case for case in grid.grid_cases(2, 3) if case.schedule is Schedule.GPIPE][:3]
    good, bad = (grid._plain(Found(0.0, error, "", Counted(), 0)) for error in (1e-11, off))
    right, wrong = ([of_rank, [good] * 3] for of_rank in ([good] * 3, [good, bad, good]))
    assert [row["status"] for row in grid._rows(cases, right, 3)] == ["right"]
    (row,) = grid._rows(cases, wrong, 3)
    assert row["cuts"] == 3 and row["status"] == f"wrong at {cases[1].cuts}" and str(row["gradient"]) == str(off)


def found_as_said(case: Case) -> list[dict[str, object]]:
    """What ranks would count if all were as the enumeration says."""
    passages, chunks = walk(case.chunks, case.block, case.transport), len(case.cuts) // case.ranks
    found: list[dict[str, object]] = []
    for rank in range(case.ranks):
        sizes = {str(chunk): UNIT_BYTES * len(one.sent) for chunk, one in enumerate(passages)}
        here = [str(chunk) for chunk in range(rank, len(passages), case.ranks)]
        states = {str(int(chunk) + 1): sizes[str(int(chunk) + 1)] for chunk in here if int(chunk) + 1 < len(passages)}
        gradients = {chunk: sizes[chunk] for chunk in here if chunk != "0"}
        held = most_held(passages, case.ranks, order(case.schedule, rank, case.ranks, chunks, 4))
        found.append({"right": True, "most_held": held, "other": 0, "states": states, "gradients": gradients})
    return found


def test_volumes_against_the_paper_and_the_ranks() -> None:
    cases = {(case.ranks, len(case.cuts), case.block, case.transport): case for case in volumes.volume_cases()}
    assert len(cases) == 27
    for case in cases.values():
        assert volumes._row(case, found_as_said(case))["status"] == "equal"
    figure = cases[4, 8, 4, Transport.RECEIVED]
    assert volumes._row(figure, found_as_said(figure))["paper"] == "Figure 3: 13"
    wrong = found_as_said(figure)
    wrong[1] |= {"gradients": {}, "most_held": 9, "other": 4}
    assert volumes._row(figure, wrong)["status"] == "other gradients, other blocks held, sent beside the stages"


def test_the_load_of_a_pipeline() -> None:
    """Each of the 16 chunks of the deep model is half a block: 2 FLOP forward, 4 backward, state and sum across."""
    deep, hardware = MODELS[-1], Hardware(tokens=10, flops=1e12)
    cuts = Cuts.even(deep.sublayers, 8, 2)
    load = load_of(deep, cuts, "naive", hardware)
    assert sum(load.forward) == pytest.approx(2 * deep.parameters * 10 / 1e12)
    assert load.backward[3] == pytest.approx(2 * load.forward[3])
    tensor = 10 * 7168 * 2
    assert load.received[:4] == (0, 2 * tensor, 2 * tensor, 3 * tensor)
    assert load_of(deep, cuts, "standard", hardware).received == (0, *(tensor,) * 15)


def test_a_simulation_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TINY_SIMULATION, "--out", str(tmp_path / "new")]) == 0
    written = json.loads((tmp_path / "new" / "results.json").read_text())
    assert written["settings"]["gigabytes"] == [1.0] and written["machine"] is None
    assert [len(table["rows"]) for table in written["tables"]] == [2] * 6 + [4]
    for row in (row for table in written["tables"] for row in table["rows"]):
        assert 0 <= row["standard_exposed"] <= row["naive_exposed"] < 1
    text = (tmp_path / "new" / "results.md").read_text()
    assert "simulation --ranks 2 4 --chunks 2 --gigabytes 1 " in text and "Simulated, not measured" in text
    assert (tmp_path / "new" / "exposed.png").stat().st_size > 10_000
    assert "one port a rank" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["simulation", "--gigabytes", "0"], "gigabytes has 0.0; each must be above 0"),
        (["simulation", "--ranks", "1"], "ranks and chunks must be at least 2"),
        (["simulation", "--flops", "-1"], "flops is -1.0"),
        (["grid", "--layers", "1"], "the grid takes at least 2"),
        (["grid", "--block", "1"], "blocks of 1 are Full"),
        (["steps", "--micro-batches", "6"], "take a multiple of every number of ranks"),
        (["steps", "--ranks", "8", "--layers", "4"], "at most 8 are possible"),
        (["volumes", "--out", "."], "choose another folder"),
    ],
)
def test_what_the_commands_refuse(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.dist
def test_a_part_of_the_grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = grid.grid_cases
    monkeypatch.setattr(grid, "grid_cases", lambda layers, block: whole(layers, block)[::40])
    assert main(["grid", "--layers", "2", "--block", "3", "--out", str(tmp_path / "new")]) == 0
    (table,) = json.loads((tmp_path / "new" / "results.json").read_text())["tables"]
    assert [row["status"] for row in table["rows"]] == ["right"] * 4


@pytest.mark.dist
def test_steps_take_turns(tmp_path: Path) -> None:
    sizes = ["--layers", "2", "--width", "16", "--block", "2", "--tokens", "4", "--micro-batches", "2"]
    assert main(["steps", "--ranks", "2", "--rounds", "1", *sizes, "--out", str(tmp_path / "new")]) == 0
    (table,) = json.loads((tmp_path / "new" / "results.json").read_text())["tables"]
    assert len(table["rows"]) == len(steps.step_entries(2)) == 11
    standard = [row["ratio"] for row in table["rows"] if row["model"] == "standard"]
    assert standard == [1.0] * 3 and all(row["seconds"] > 0 and row["single"] is None for row in table["rows"])
