"""Copies small enough for a test."""

import pytest

from attention_residuals.bench import timing


@pytest.fixture(autouse=True)
def small_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "COPIED_BYTES", 2**20)
