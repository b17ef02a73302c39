"""The report of a small study that was really run: figures, numbers, and what is left out."""

import json
import re
import shutil
from pathlib import Path

import pytest

from attention_residuals import InputError
from attention_residuals.experiments.arm_runs import read_arms
from attention_residuals.experiments.arm_studies import DynamicsStudy
from attention_residuals.experiments.dynamics import report, shapes
from attention_residuals.experiments.dynamics.findings import magnitude, sentences
from attention_residuals.experiments.dynamics.report import write_report
from tests.experiments.studies_in_process import finish_study, write_corpus

ARMS = ("standard", "block3", "full")


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dynamics")
    wish = DynamicsStudy(
        ARMS,
        layers=3,
        seeds=(0, 1),
        tokens=6400,
        sequence_tokens=32,
        batch_sequences=4,
        data=(str(write_corpus(folder)),),
    )
    finish_study(wish, folder / "study")
    return folder / "study"


@pytest.fixture
def copied(study: Path, tmp_path: Path) -> Path:
    return shutil.copytree(study, tmp_path / "copy")


def test_figures_and_pages_are_there(copied: Path) -> None:
    assert write_report(copied) == copied / "report.html"
    pictures = {path.name for path in copied.glob("*.png")}
    assert pictures == {"loss.png", "magnitude.png", "gradient.png", "dilution.png", "training.png"}
    page = (copied / "report.html").read_text()
    assert page.count("data:image/png;base64,") == 5
    assert not re.search(r'(src|href)="(?!data:)', page)
    _require_numbers(copied)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures take seconds, and are looked at once."""
    monkeypatch.setattr(report, "draw_all", lambda arms, folder: [])


@pytest.mark.usefixtures("undrawn")
def test_runs_with_a_fault_are_named_and_left_out(copied: Path) -> None:
    (copied / "runs" / "full-seed1" / "stopped.json").write_text('{"reason": "loss is nan at step 3"}')
    flat = copied / "runs" / "full-seed0" / "metrics.jsonl"
    lines = flat.read_text().splitlines()
    final = json.loads(lines[-1]) | {"validation_loss": 9.5}
    flat.write_text("\n".join([*lines[:-1], json.dumps(final)]) + "\n")
    arms = read_arms(copied)
    assert arms.names == ["standard", "block3"]
    assert not any(sentence.startswith("full") for sentence in sentences(arms))
    write_report(copied)
    text = (copied / "report.md").read_text()
    assert "full-seed1 is left out: stopped: loss is nan at step 3." in text
    assert "full-seed0 is left out: learned no more than token frequencies: validation loss 9.500" in text


@pytest.mark.usefixtures("undrawn")
def test_a_study_under_way_is_reported_as_far_as_it_is(copied: Path) -> None:
    shutil.rmtree(copied / "runs" / "full-seed1")
    (copied / "runs" / "block3-seed1" / "dynamics.json").unlink()
    write_report(copied)
    text = (copied / "report.md").read_text()
    assert "block3-seed1 is left out: has not ended." in text
    assert "one seed: no interval" in text


def _require_numbers(copied: Path) -> None:
    """The numbers of the report are those of the runs."""
    text = (copied / "report.md").read_text()
    for arm in ARMS:
        finals, growths = [], []
        for seed in (0, 1):
            run = copied / "runs" / f"{arm}-seed{seed}"
            finals.append(json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["validation_loss"])
            sizes = json.loads((run / "dynamics.json").read_text())["carried_rms"]
            growths.append(sizes[5] / sizes[1])
        assert f"| {arm} | {sum(finals) / 2:.4f} |" in text
        assert f"{arm}: the running sum after the last layer is {sum(growths) / 2:.1f} ±" in text
    assert "| paper: standard | 303.75 |" in text
    assert "block3: the running sum" in text and "period of the block, 3 sublayers" in text
    assert "| paper: block | 6 |" in text and re.search(r"\| standard \| 3 \| 0\.\d\d", text)


def test_shapes_are_those_of_layers(study: Path) -> None:
    arms = read_arms(study)
    run = arms.first("block3")
    found = json.loads((run.path / "dynamics.json").read_text())
    assert magnitude(run) == found["carried_rms"][1::2]
    assert shapes.growth(magnitude(run)) == found["carried_rms"][5] / found["carried_rms"][1]
    assert found["block_sublayers"] == 3


def test_a_text_that_was_seen_speaks_against_every_run(copied: Path) -> None:
    (copied / "text.json").write_text('{"seen_share": 0.4}')
    with pytest.raises(InputError, match="40% of its validation text stands word for word in its training text"):
        write_report(copied)


def test_nothing_to_report_is_one_sentence(copied: Path, tmp_path: Path) -> None:
    shutil.rmtree(copied / "runs")
    with pytest.raises(InputError, match="has no run to report of"):
        write_report(copied)
    with pytest.raises(InputError, match=r"is no study: it has no study.json"):
        write_report(tmp_path)
