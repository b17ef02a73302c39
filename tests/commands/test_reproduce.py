"""All studies from one command: what is run, what is refused, and the page over them."""

import argparse
import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from attention_residuals import cli
from attention_residuals.commands import reproduce
from attention_residuals.experiments.ablation.study import Ablation
from attention_residuals.experiments.control import ControlConfig
from attention_residuals.experiments.document import Paragraph, write_document
from attention_residuals.experiments.ladder.study import Ladder
from attention_residuals.experiments.reproduction import Reproduction
from attention_residuals.experiments.studies.common import Common
from attention_residuals.experiments.studies.plan import Study
from attention_residuals.experiments.sweep.study import Sweep
from tests.experiments.studies.written import Written, write_study

ORDER = ["control", "ladder", "dynamics", "depth", "ablate", "sweep"]


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, object]]:
    """What was run, by the name of its folder; each study leaves one run behind."""
    found: list[tuple[str, object]] = []

    def run_control(config: ControlConfig, out: Path, console: object) -> None:
        found.append((out.name, config))
        out.mkdir()
        differences = {"full": {"largest": 2e-15, "step": 7}}
        (out / "control.json").write_text(json.dumps({"steps": 200, "differences": differences}))

    def run_study(study: Study, common: Common, out: Path, options: argparse.Namespace) -> None:
        found.append((out.name, study))
        shutil.rmtree(out, ignore_errors=True)
        write_study(out, study.kind, {}, [Written("one", loss=2.0)])
        write_document(out, study.kind, [Paragraph(f"what {study.kind} found", strong=True)])

    monkeypatch.setattr(reproduce, "control", run_control)
    monkeypatch.setattr(reproduce, "run_reported", run_study)
    return found


def test_every_study_in_order(done: list[tuple[str, object]], tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    assert cli.main(["reproduce", "ladder.seeds=[4,5]", "--out", out]) == 0
    assert [name for name, _ in done] == ORDER
    assert dict(done)["ladder"] == dataclasses.replace(Reproduction().ladder, seeds=(4, 5))
    page, text = ((tmp_path / "out" / name).read_text() for name in ("report.html", "report.md"))
    assert "2.0e-15" in page and "1 of the 1 runs planned so far have ended, 0 are kept out." in page
    assert all(f"* what {name} found" in text and f"what {name} found</li>" in page for name in ORDER[1:])
    assert all(f'href="{name}/report.html"' in page and f"({name}/report.html)" in text for name in ORDER[1:])


def test_a_night_takes_each_study_as_its_command_has_it(done: list[tuple[str, object]], tmp_path: Path) -> None:
    command = ["reproduce", "--size", "night", "ablate.learning_rate=0.01", "--out", str(tmp_path / "out")]
    assert cli.main(command) == 0
    found = dict(done)
    assert found["ladder"] == Ladder() and found["sweep"] == Sweep()
    assert found["ablate"] == Ablation(learning_rate=0.01)
    assert cli.main([*command[:1], *command[3:]]) == 2  # an evening does not go on with a night


def test_it_goes_on_and_repeats_no_control(done: list[tuple[str, object]], tmp_path: Path) -> None:
    command = ["reproduce", "--only", "control", "sweep", "--out", str(tmp_path / "out")]
    assert cli.main(command) == 0 and cli.main(command) == 0
    assert [name for name, _ in done] == ["control", "sweep", "sweep"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "laddder"], "there is no study 'laddder'; choose control, ladder"),
        (["--size", "week"], "there is no size 'week'; choose evening or night"),
        (["ladder.seed=1"], "did you mean seeds"),
        (['ladder.arms=["wide"]'], "'wide' is no model"),
    ],
)
def test_wrong_input_is_one_sentence(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["reproduce", *arguments, "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_folders_of_others_are_refused(
    done: list[tuple[str, object]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["reproduce", "--out", str(tmp_path)]) == 2
    assert "is no reproduction" in capsys.readouterr().err
    out = str(tmp_path / "out")
    assert cli.main(["reproduce", "--only", "sweep", "--out", out]) == 0
    assert cli.main(["reproduce", "sweep.seeds=[9]", "--only", "sweep", "--out", out]) == 2
    assert "was started with sweep.seeds" in capsys.readouterr().err
