"""attnres count shows where parameters sit, of any recipe and any change to it."""

import pytest

from attention_residuals import cli


def test_the_whole_kimi_linear(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["count", "kimi-linear-48b-a3b"]) == 0
    shown = capsys.readouterr().out
    for number in ("47,110,422,528", "248,832", "49,122,923,904", "3,107,217,024"):
        assert number in shown


def test_changes_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["count", "tiny", "model.vocab_size=300", "model.width=20"]) == 0
    assert f"{300 * 20:,}" in capsys.readouterr().out
    assert cli.main(["count", "tinny"]) == 2
    assert "did you mean tiny" in capsys.readouterr().err
