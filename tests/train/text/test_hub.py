"""Datasets of the hub, with the hub's client replaced: no test needs a network."""

import errno
import socket
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import datasets
import pytest
from pyarrow import parquet

from attention_residuals import InputError
from attention_residuals.train.text import TextConfig, hub, load_text

ROWS = [{"body": f"row {n} of a dataset, long enough to be a line\n" * 20} for n in range(50)]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[Any, ...]]:
    monkeypatch.setenv("ATTNRES_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(hub, "GROUP_BYTES", 5000)
    monkeypatch.setattr(hub, "_require_network", lambda name: None)
    made: list[tuple[Any, ...]] = []

    def load_dataset(name: str, config: str | None, *, split: str, streaming: bool) -> Iterator[dict[str, str]]:
        made.append((name, config, split, streaming))
        return iter(ROWS)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return made


def test_a_dataset_is_fetched_once(calls: list[tuple[Any, ...]]) -> None:
    config = TextConfig(("hf:someone/texts:small",), sequence_tokens=16, text_key="body")
    about = load_text(config).about
    assert about["documents"] == 50 and about["source"] == "hf:someone/texts:small"
    assert load_text(config).about == about
    assert calls == [("someone/texts", "small", "train", True)]


def test_a_dataset_without_the_column_is_named(calls: list[tuple[Any, ...]]) -> None:
    with pytest.raises(InputError, match="row 1 of hf:texts has no text under 'text'; its columns are: body;"):
        load_text(TextConfig(("hf:texts",)))
    assert calls == [("texts", None, "train", True)]


def test_a_dataset_is_fetched_up_to_a_limit(calls: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []

    def endless(*_: object, **__: object) -> Iterator[dict[str, str]]:
        for n in count():
            taken.append(n)
            yield {"text": f"row {n} of an endless dataset, its lines its own\n" * 20}

    monkeypatch.setattr(datasets, "load_dataset", endless)
    about = load_text(TextConfig(("hf:texts",), sequence_tokens=16, hub_limit_mb=1)).about
    assert about["source"] == "hf:texts, the first 1 MB"
    assert 1_000_000 <= about["training_bytes"] + about["validation_bytes"] - len(taken) < 1_001_000
    assert about["documents"] == len(taken)


def test_a_null_is_an_empty_text(calls: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"text": None if n % 2 else f"text {n} and a line of its own\n" * 20} for n in range(100)]
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: iter(rows))
    assert load_text(TextConfig(("hf:texts",), sequence_tokens=16)).about["documents"] == 50


def test_a_cache_that_is_full_is_not_taken_for_the_network(
    calls: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(parquet, "ParquetWriter", full)
    with pytest.raises(InputError, match=r"the cache .*hub cannot be written \(No space left on device\); make room"):
        load_text(TextConfig(("hf:texts",)))


def test_a_hub_out_of_reach_is_one_sentence(calls: list, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ConnectionError("no route\nwith a second line")

    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(InputError, match=r"hf:texts cannot be fetched \(no route\); check its name and the network"):
        load_text(TextConfig(("hf:texts",)))
    assert not list((tmp_path / "cache" / "hub").iterdir()), "nothing half done stays behind"


def test_no_network_is_told_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def unknown(address: tuple[str, int], timeout: float) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setenv("ATTNRES_CACHE", str(tmp_path))
    monkeypatch.setattr(hub, "getproxies", dict)
    monkeypatch.setattr(hub.socket, "create_connection", unknown)
    with pytest.raises(
        InputError, match=r"hf:texts cannot be fetched \(.* cannot be reached: Name or service not known"
    ):
        load_text(TextConfig(("hf:texts",)))
