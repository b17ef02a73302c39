"""The command `attnres moe`: one sentence for what is wrong."""

import re
from pathlib import Path

import pytest

from attention_residuals import cli
from attention_residuals.commands import studies
from tests.experiments.killed_studies import write_text
from tests.experiments.studies_in_process import run_study_here


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ('arms=["standard"]', "arms are standard; name two"),
        ('arms=["standard","wide"]', "'wide' is no model"),
        ("top_k=9", "top_k is 9 of 8 experts"),
        ("layers=0", "a size is 0 layers"),
        ("seeds=[0]", "seed 0 tunes the baseline"),
        ("common.device=toaster", "device toaster cannot be used here"),
        ("expert=4", "expert is unknown: there is no field 'expert'; did you mean experts"),
    ],
)
def test_wrong_wishes_are_one_sentence(
    assignment: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = cli.main(["moe", "--out", str(tmp_path / "out"), assignment])
    error = capsys.readouterr().err
    assert status == 2 and message in error and error.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_tiny_study_from_the_command_to_its_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(studies, "run_study", run_study_here)
    out = tmp_path / "moe"
    command = ["moe", "--processes", "2", "--out", str(out), "layers=2", "experts=4", "seeds=[1]"]
    command += [f'common.text.paths=["{write_text(tmp_path)}"]', "common.text.sequence_tokens=16"]
    command += ["common.batch_sequences=2", "common.tokens_per_parameter=0.3"]
    status = cli.main(command)
    printed = capsys.readouterr()
    assert status == 0, printed.err
    assert "mixture: beside the embedding" in printed.out and f"Report: {out / 'report.html'}" in printed.out
    report = (out / "report.md").read_text()
    assert "One seed each" in report and "| dense, 2 layers, width 8 |" in report
    assert cli.main(["report", str(out)]) == 0 and (out / "report.md").read_text() == report
    status = cli.main([*command, "seeds=[1,2]"])
    assert status == 2 and "was started with seeds = [1], not [1, 2]" in capsys.readouterr().err


def test_it_goes_on_in_a_folder_of_its_own_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["moe", "--help"])
    assert re.search(r"\(default:\s+runs/moe\)", capsys.readouterr().out)
