"""From names to batches: boundaries, parallel and serial alike, determinism, what is told, bounded memory."""

import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from attention_residuals import InputError
from attention_residuals.train.text import TextConfig, bpe, documents, load_text
from attention_residuals.train.text.corpus import survey
from attention_residuals.train.text.encode import encode_corpus
from attention_residuals.train.text.progress import silent
from attention_residuals.train.text.split import split_corpus
from attention_residuals.train.text.tokenizer import ByteTokenizer
from tests.train.text.support import Texts, distinct_texts


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ATTNRES_CACHE", str(tmp_path / "cache"))
    (tmp_path / "text").mkdir()
    for number, text in enumerate(distinct_texts(60)):
        (tmp_path / "text" / f"{number}.txt").write_bytes(text)
    return tmp_path / "text"


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe:300"])
def test_documents_are_whole_and_closed(folder: Path, tokenizer: str) -> None:
    data = load_text(TextConfig((str(folder),), tokenizer, sequence_tokens=16))
    found = []
    for side in (data.training, data.validation):
        assert side.ends[-1] == len(side.tokens)
        for start, end in zip([0, *side.ends[:-1]], side.ends, strict=True):
            assert side.tokens[end - 1] == data.tokenizer.separator
            found.append(data.tokenizer.decode(side.tokens[start : end - 1].tolist()).encode())
    assert sorted(found) == sorted(distinct_texts(60))


def test_what_is_told_of_the_text(folder: Path) -> None:
    (folder / "latin.txt").write_bytes(b"caf\xe9 and \xff\n" * 40)
    texts = sum(len(path.read_bytes()) + 1 for path in folder.iterdir())
    for tokenizer, replaced in (("bytes", 0), ("bpe:300", 80)):
        data = load_text(TextConfig((str(folder),), tokenizer, sequence_tokens=16))
        about = data.about
        assert about["documents"] == 61 and about["source"] == str(folder) and about["fingerprint"] == data.fingerprint
        assert about["training_bytes"] + about["validation_bytes"] == texts
        assert about["training_tokens"] == len(data.training.tokens) and about["split"].endswith("documents held out")
        assert about["validation_tokens"] == len(data.validation.tokens)
        assert about["invalid_utf8_replaced"] == replaced
        assert data.bytes_per_token == about["validation_bytes"] / about["validation_tokens"]
        shares = np.bincount(data.training.tokens) / len(data.training.tokens)
        shares = shares[shares > 0]
        assert about["unigram_entropy"] == data.unigram_entropy == pytest.approx(-(shares * np.log(shares)).sum())
        assert data.vocab_size == about["vocab_size"] > data.training.tokens.max()
        assert json.loads(json.dumps(about)) == about
    assert data.bytes_per_token > 1.3


@pytest.mark.dist
def test_workers_change_nothing(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "PIECE_BYTES", 500)
    found = []
    for workers in (1, 2):
        monkeypatch.setenv("ATTNRES_CACHE", str(tmp_path / f"cache {workers}"))
        found.append(load_text(TextConfig((str(folder),), "bpe:300", sequence_tokens=16, workers=workers)))
    one, two = found
    assert one.about == two.about
    for mine, theirs in ((one.training, two.training), (one.validation, two.validation)):
        assert np.array_equal(mine.tokens, theirs.tokens) and np.array_equal(mine.ends, theirs.ends)


def test_names_of_files_do_not_move_the_split(folder: Path, tmp_path: Path) -> None:
    before = load_text(TextConfig((str(folder),), sequence_tokens=16))
    for number, path in enumerate(sorted(folder.iterdir(), reverse=True)):
        path.rename(folder / f"renamed {number:03}")
    after = load_text(TextConfig((str(folder),), sequence_tokens=16))
    assert after.fingerprint == before.fingerprint
    for mine, theirs in ((before.training, after.training), (before.validation, after.validation)):
        assert sorted(mine.tokens.tobytes().split(b"\0")) == sorted(theirs.tokens.tobytes().split(b"\0"))


def test_a_long_document_is_tokenised_in_pieces(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = b"".join(distinct_texts(60))
    (folder / "long.txt").write_bytes(text)
    monkeypatch.setattr(documents, "PIECE_BYTES", 1000)
    data = load_text(TextConfig((str(folder / "long.txt"),), "bpe:300", sequence_tokens=16))
    parts = [data.tokenizer.decode(side.tokens.tolist()) for side in (data.training, data.validation)]
    assert "".join(parts).encode() == text and len(data.training.ends) == len(data.validation.ends) == 1


def test_progress_tells_every_stage(folder: Path) -> None:
    told: list[tuple[str, int, int | None]] = []
    load_text(TextConfig((str(folder),), "bpe:300", sequence_tokens=16), lambda *step: told.append(step))
    size = sum(path.stat().st_size for path in folder.iterdir())
    assert list(dict.fromkeys(stage for stage, _, _ in told)) == [
        "reading",
        "comparing lines",
        "training the tokenizer",
        "tokenising",
    ]
    last = {stage: (done, total) for stage, done, total in told}
    assert last.pop("reading") == (size, None) and set(last.values()) == {(size, size)}


def test_a_split_without_validation_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "line.txt").write_text("only a line")
    with pytest.raises(InputError, match="leaves no validation text: 11 bytes in 1"):
        load_text(TextConfig((str(tmp_path / "line.txt"),)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sequence_tokens": 0}, "sequence_tokens is 0"),
        ({"validation_share": 1.5}, "validation share is 1.5"),
        ({"workers": -1}, "workers is -1"),
        ({"workers": 1.5}, "workers is 1.5"),
    ],
)
def test_wrong_settings_are_refused(changes: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        TextConfig(**changes)


def peak_of_encoding(count: int, folder: Path) -> int:
    """Peak of traced memory while `count` texts of about 20 kB are split, sampled for BPE and encoded."""

    def texts() -> Iterator[bytes]:
        for n in range(count):
            yield b"".join(b"%d: line %d of a generated text, %d\n" % (n, k, n * k) for k in range(500))

    corpus = survey([Texts(texts)])
    folder.mkdir()
    tracemalloc.start()
    split = split_corpus(corpus, 0.05)
    for _ in bpe._sample(corpus, split, silent):
        pass
    encode_corpus(corpus, split, ByteTokenizer(), folder, workers=1, progress=silent)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def test_memory_does_not_grow_with_the_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("documents", "encode", "lines"):
        monkeypatch.setattr(f"attention_residuals.train.text.{module}.PIECE_BYTES", 1 << 15)
    monkeypatch.setattr("attention_residuals.train.text.split.CANDIDATE_BYTES", 1 << 17)
    monkeypatch.setattr("attention_residuals.train.text.lines.ALL_LINES_BYTES", 1 << 17)
    small, large = peak_of_encoding(30, tmp_path / "small"), peak_of_encoding(180, tmp_path / "large")
    assert large < 1.3 * small, f"{small} bytes for 30 texts, {large} for 180"
