"""The token cache: reused when whole, made anew when damaged, refused to another tokenizer, whole or not there."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attention_residuals import InputError
from attention_residuals.train.text import ByteTokenizer, TextConfig, folders, load, load_text
from attention_residuals.train.text.cache import open_cache
from attention_residuals.train.text.folders import atomic_folder, cache_folder
from tests.train.text.support import distinct_texts


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TextConfig:
    monkeypatch.setenv("ATTNRES_CACHE", str(tmp_path / "cache"))
    (tmp_path / "text").mkdir()
    for number, text in enumerate(distinct_texts(60)):
        (tmp_path / "text" / f"{number}.txt").write_bytes(text)
    return TextConfig((str(tmp_path / "text"),), sequence_tokens=16)


@pytest.fixture
def encodings(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    made: list[Path] = []
    original = load.encode_corpus

    def counted(corpus, split, tokenizer, folder, **options):
        made.append(folder)
        return original(corpus, split, tokenizer, folder, **options)

    monkeypatch.setattr(load, "encode_corpus", counted)
    return made


def tokens_of(config: TextConfig) -> list[int]:
    return load_text(config).training.tokens.tolist()


def the_folder(tmp_path: Path) -> Path:
    (folder,) = (tmp_path / "cache" / "tokens").iterdir()
    return folder


def test_tokens_are_reused(config: TextConfig, encodings: list[Path], tmp_path: Path) -> None:
    first = load_text(config)
    again = load_text(config)
    assert len(encodings) == 1 and again.about == first.about
    assert np.array_equal(first.training.tokens, again.training.tokens) and isinstance(again.training.tokens, np.memmap)
    files = {path.name for path in the_folder(tmp_path).iterdir()}
    assert files == {"header.json", "training.tokens", "training.ends", "validation.tokens", "validation.ends"}


def test_the_sequence_length_is_no_part_of_the_cache(config: TextConfig, encodings: list[Path]) -> None:
    load_text(config)
    assert load_text(TextConfig(config.paths, sequence_tokens=8)).batch(0, 0, 2).shape == (2, 9)
    assert len(encodings) == 1


def test_other_text_tokenizer_or_split_is_another_cache(
    config: TextConfig, encodings: list[Path], tmp_path: Path
) -> None:
    load_text(config)
    load_text(TextConfig(config.paths, sequence_tokens=16, validation_share=0.1))
    load_text(TextConfig(config.paths, sequence_tokens=16, tokenizer="bpe:280"))
    (tmp_path / "text" / "0.txt").write_text("another text")
    load_text(config)
    assert len(encodings) == 4


def test_a_damaged_cache_is_made_anew(config: TextConfig, encodings: list[Path], tmp_path: Path) -> None:
    expected = tokens_of(config)
    folder = the_folder(tmp_path)

    def shorten(name: str) -> None:
        os.truncate(folder / name, (folder / name).stat().st_size // 2)

    def alter(name: str) -> None:
        header = json.loads((folder / name).read_text())
        header["content"]["about"]["unigram_entropy"] = 1.0
        (folder / name).write_text(json.dumps(header))

    damages = [
        (shorten, "training.tokens"),
        (shorten, "validation.ends"),
        (shorten, "header.json"),
        (alter, "header.json"),
        (lambda name: (folder / name).unlink(), "validation.tokens"),
        (lambda name: (folder / name).unlink(), "header.json"),
        (lambda name: (folder / name).write_text("[]"), "header.json"),
    ]
    for number, (damage, name) in enumerate(damages, start=2):
        damage(name)
        assert tokens_of(config) == expected
        assert len(encodings) == number, f"{damage} of {name} was not noticed"


def test_tokens_of_another_tokenizer_are_refused(config: TextConfig, tmp_path: Path) -> None:
    data = load_text(TextConfig(config.paths, sequence_tokens=16, tokenizer="bpe:280"))
    with pytest.raises(InputError) as caught:
        open_cache(the_folder(tmp_path), ByteTokenizer())
    assert f"tokens of tokenizer bpe:280 ({data.tokenizer.fingerprint})" in str(caught.value)
    assert "does not fit tokenizer bytes (bytes)" in str(caught.value)


def test_what_fails_leaves_nothing_behind(config: TextConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(load, "encode_corpus", fail)
    with pytest.raises(KeyboardInterrupt):
        load_text(config)
    assert not list((tmp_path / "cache" / "tokens").iterdir())


def test_the_first_of_two_writers_stays(tmp_path: Path) -> None:
    with atomic_folder(tmp_path / "place") as mine:
        (mine / "file").write_text("mine")
        with atomic_folder(tmp_path / "place") as theirs:
            (theirs / "file").write_text("theirs")
    assert (tmp_path / "place" / "file").read_text() == "theirs"
    assert [path.name for path in tmp_path.iterdir()] == ["place"]


FILL = """
import pathlib, sys
from attention_residuals.train.text.folders import atomic_folder
with atomic_folder(pathlib.Path(sys.argv[1])) as folder:
    (folder / "file").write_text("half")
    print("filling", flush=True)
    sys.stdin.read()
"""


def test_what_a_kill_left_goes_and_what_is_being_filled_stays(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FILL, str(tmp_path / "other")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "filling\n"
        (partial,) = tmp_path.iterdir()
        with atomic_folder(tmp_path / "mine"):
            pass
        assert (partial / "content" / "file").read_text() == "half"
        other.send_signal(signal.SIGKILL)
    with atomic_folder(tmp_path / "mine too"):
        assert not partial.exists()
    assert {path.name for path in tmp_path.iterdir()} == {"mine", "mine too"}


def test_a_partial_folder_taken_for_abandoned_at_its_birth_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, born = tempfile.mkdtemp, []

    def raided(**options: Any) -> str:
        born.append(real(**options))
        if len(born) < 3:
            folders._remove_abandoned(tmp_path)
        return born[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", raided)
    with atomic_folder(tmp_path / "place") as folder:
        (folder / "file").touch()
    assert len(born) == 3
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] == ["place", "place/file"]


def test_a_cache_that_cannot_be_written_is_named(
    config: TextConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ATTNRES_CACHE", str(tmp_path / "file"))
    with pytest.raises(InputError, match=r"file/tokens cannot be written \(.*\); make room there, or set ATTN"):
        load_text(config)


def test_the_cache_has_a_place_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ATTNRES_CACHE")
    assert cache_folder() == Path.home() / ".cache" / "attention-residuals"


def test_a_corpus_that_moved_is_known_by_its_content(config: TextConfig, tmp_path: Path) -> None:
    first = load_text(config)
    shutil.move(tmp_path / "text", tmp_path / "moved")
    moved = load_text(TextConfig((str(tmp_path / "moved"),), sequence_tokens=16))
    assert moved.about == {**first.about, "source": str(tmp_path / "moved")}
    the_folder(tmp_path)
