"""Depth reports of runs that were really trained: as a study, and of run folders that lie elsewhere."""

import json
import re
import shutil
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from attention_residuals import InputError
from attention_residuals.experiments.arm_studies import DepthStudy
from attention_residuals.experiments.depth import report
from attention_residuals.experiments.depth.report import write_report
from attention_residuals.experiments.depth.runs import map_runs
from tests.experiments.studies_in_process import finish_study, write_corpus

ARMS = ("standard", "block3", "full")


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("depth")
    wish = DepthStudy(
        ARMS, layers=2, tokens=6400, sequence_tokens=32, batch_sequences=4, data=(str(write_corpus(folder)),)
    )
    finish_study(wish, folder / "study")
    return folder / "study"


def console() -> Console:
    return Console(file=StringIO(), width=200)


def test_a_study_is_drawn(study: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(study, tmp_path / "copy")
    assert write_report(folder) == folder / "report.html"
    assert {path.name for path in folder.glob("*.png")} == {
        "mixing.png",
        "weights-block3.png",
        "weights-full.png",
        *(f"masking-{arm}.png" for arm in ARMS),
    }
    page, text = (folder / "report.html").read_text(), (folder / "report.md").read_text()
    assert page.count("data:image/png;base64,") == 6
    assert not re.search(r'(src|href)="(?!data:)', page)
    assert "standard: semiseparable rank 1 in single tokens (float64)" in text
    found = json.loads((folder / "runs" / "full-seed0" / "depth.json").read_text())
    weights = found["reads"]["weights"]
    assert f"| layer 2 MLP | {found['reads']['entropy_shares'][3]:.2f} | {weights[3][0]:.3f} |" in text
    assert f"{found['masking']['everywhere'][-1]:+.4f} |" in text
    assert f"| full | 0 | {found['masking']['tokens']:,} | {found['masking']['loss']:.4f} | 14 |" in text


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures take seconds, and are looked at once."""
    monkeypatch.setattr(report, "draw_all", lambda arms, folder: [])


@pytest.mark.usefixtures("undrawn")
def test_runs_that_exist_are_mapped_once(study: Path, tmp_path: Path) -> None:
    runs = shutil.copytree(study / "runs", tmp_path / "runs")
    before = {path: path.read_text() for path in runs.glob("*/depth.json")}
    (runs / "full-seed0" / "depth.json").unlink()
    marked = runs / "standard-seed0" / "depth.json"
    marked.write_text(marked.read_text() + "\n")
    page = map_runs([runs / "full-seed0", runs / "standard-seed0"], tmp_path / "out", console())
    assert page == tmp_path / "out" / "report.html" and page.exists()
    again = runs / "full-seed0" / "depth.json"
    assert json.loads(again.read_text()) == json.loads(before[again]), "the same numbers from the same weights"
    assert marked.read_text().endswith("\n\n"), "an answer that is there stays"
    first = page.read_text()
    page.unlink()
    assert write_report(tmp_path / "out").read_text() == first


@pytest.mark.usefixtures("undrawn")
def test_a_study_stands_for_its_runs(study: Path, tmp_path: Path) -> None:
    map_runs([study], tmp_path / "out", console())
    listed = json.loads((tmp_path / "out" / "study.json").read_text())
    assert listed["kind"] == "depth"
    assert [Path(path).name for path in listed["folders"]] == [f"{arm}-seed0" for arm in ARMS]


def test_wrong_wishes_are_one_sentence(study: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is no run folder and no study"):
        map_runs([tmp_path], tmp_path / "out", console())
    with pytest.raises(InputError, match="two runs are named full with seed 0"):
        map_runs([study / "runs" / "full-seed0", study], tmp_path / "out", console())
    with pytest.raises(InputError, match="exists; choose another folder"):
        map_runs([study], tmp_path, console())
    assert not (tmp_path / "out").exists()


def test_a_run_without_weights_is_one_sentence(study: Path, tmp_path: Path) -> None:
    run = shutil.copytree(study / "runs" / "full-seed0", tmp_path / "run")
    (run / "depth.json").unlink()
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(InputError, match="has no checkpoint"):
        map_runs([run], tmp_path / "out", console())
    assert not (tmp_path / "out").exists()
