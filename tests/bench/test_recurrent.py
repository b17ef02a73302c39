"""Token mixers are timed by the number of tokens, after their chunks were checked."""

import pytest

from attention_residuals.bench import recurrent
from attention_residuals.bench.problems import Verdict
from attention_residuals.bench.recurrent import judge, run_recurrent
from attention_residuals.bench.request import Request

from .support import silent

REQUEST = Request("recurrent", ((4, 8, 2), (70, 8, 2)), repeats=2, seconds=5)


def test_there_is_a_row_for_each_mixer_and_length() -> None:
    (table,) = run_recurrent(REQUEST, silent())
    assert [(row["mixer"], row["tokens"]) for row in table.rows] == [
        (name, tokens) for name in ("delta", "softmax", "latent") for tokens in (4, 70)
    ]
    assert all(float(row[key] or 0) > 0 for row in table.rows for key in ("forward", "both", "decode"))
    assert table.facts["chunks against the recurrence"] == "right"


def test_a_wrong_rule_has_no_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recurrent, "judge", lambda _: Verdict(False, 1.0, "wrong: off by 1.0e+00 of the largest"))
    (table,) = run_recurrent(REQUEST, silent())
    assert {row["mixer"] for row in table.rows} == {"softmax", "latent"}
    assert str(table.facts["chunks against the recurrence"]).startswith("wrong")


def test_the_check_finds_a_rule_that_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    assert judge(100).right
    chunked = recurrent.delta_chunked
    monkeypatch.setattr(recurrent, "delta_chunked", lambda *given: (chunked(*given)[0] * 1.001, None))
    assert not judge(100).right
