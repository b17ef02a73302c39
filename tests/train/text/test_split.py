"""The split: no text on both sides, about the share asked for, and a sentence where it cannot be made."""

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attention_residuals import InputError
from attention_residuals.train.text import documents, lines
from attention_residuals.train.text import split as split_module
from attention_residuals.train.text.split import Side, split_corpus
from tests.train.text.support import corpus_of, distinct_texts, sides


def test_whole_documents_are_held_out() -> None:
    texts = distinct_texts(100)
    corpus = corpus_of(texts)
    found = sides(corpus, split_corpus(corpus, 0.1))
    assert sorted(found[Side.TRAINING] + found[Side.VALIDATION]) == sorted(texts)
    assert 5 <= len(found[Side.VALIDATION]) <= 10


def test_the_first_digests_are_chosen() -> None:
    texts = distinct_texts(100)
    corpus = corpus_of(texts)
    held_out = sides(corpus, split_corpus(corpus, 0.1))[Side.VALIDATION]
    first = sorted(texts, key=lambda text: hashlib.sha256(text).digest())[:5]
    assert set(first) <= set(held_out)


def test_the_split_does_not_depend_on_order() -> None:
    texts = distinct_texts(50)
    corpora = corpus_of(texts), corpus_of(texts[::-1])
    ours, theirs = (sides(corpus, split_corpus(corpus, 0.1)) for corpus in corpora)
    assert sorted(ours[Side.VALIDATION]) == sorted(theirs[Side.VALIDATION])
    assert ours[Side.TRAINING] == theirs[Side.TRAINING][::-1]


@pytest.mark.parametrize("all_lines_bytes", [1 << 30, 10_000])
def test_near_copies_never_reach_validation(all_lines_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "ALL_LINES_BYTES", all_lines_bytes)  # the smaller one: lines are sampled
    base = distinct_texts(40)
    copies = [text + b"one more line at its end\n" for text in base[:20]]
    corpus = corpus_of([*base, *copies])
    validation = sides(corpus, split_corpus(corpus, 0.3))[Side.VALIDATION]
    assert validation and not {*base[:20], *copies} & set(validation)


def test_copies_are_found_across_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "PIECE_BYTES", 256)
    repeated = b"a line that one document holds again and again\n" * 30
    own = [repeated + b"with an own line in document %d\n" % n * 20 for n in range(1)]
    corpus = corpus_of([*own, *distinct_texts(30)])
    everything = np.ones(31, np.bool_)
    shared = lines.shared_text(corpus, everything, 1, lambda *_: None)
    assert shared.max() == 0, "a line that stands twice in one document is no copy"


def test_the_share_is_that_of_long_distinct_lines() -> None:
    common, own = b"a common line of text 1\n", b"the own line of the first one here 2\n"
    corpus = corpus_of([common + own + b"short\n", common + b"short\n" * 9, b"nothing but short\nlines\n"])
    shared = lines.shared_text(corpus, np.array([True, True, False]), 1, lambda *_: None)
    assert shared.tolist() == [(len(common) - 1) / (len(common) + len(own) - 2), 1.0, 0.0]


def test_few_candidates_are_enough_of_a_large_corpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split_module, "CANDIDATE_BYTES", 0)
    corpus = corpus_of(distinct_texts(200))
    split = split_corpus(corpus, 0.1)
    size = sum(map(len, sides(corpus, split)[Side.VALIDATION]))
    assert 0.08 < size / corpus.total_bytes <= 0.1


@pytest.mark.parametrize("piece_bytes", [1 << 20, 100])
@pytest.mark.parametrize("count", [1, 3])
def test_few_documents_give_their_ends(count: int, piece_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "PIECE_BYTES", piece_bytes)
    texts = distinct_texts(count, lines=1000)
    corpus = corpus_of(texts)
    found = sides(corpus, split_corpus(corpus, 0.05))
    for text, kept, rest in zip(texts, found[Side.TRAINING], found[Side.VALIDATION], strict=True):
        assert kept + rest == text and kept.endswith(b"\n")
        assert 0.04 < len(rest) / len(text) <= 0.05


@settings(deadline=None, max_examples=50)
@given(st.lists(st.binary(min_size=1, max_size=400).filter(lambda data: b"\0" not in data), min_size=1, unique=True))
def test_no_byte_is_lost_or_doubled(texts: list[bytes]) -> None:
    corpus = corpus_of(texts)
    found = sides(corpus, split_corpus(corpus, 0.2))
    parts = found[Side.TRAINING] + found[Side.VALIDATION]
    assert sum(map(len, parts)) == sum(map(len, texts)) and found[Side.TRAINING]
    assert all(any(text.startswith(part) or text.endswith(part) for text in texts) for part in parts)


@pytest.mark.parametrize("share", [0, 1, -0.1, 2, float("nan")])
def test_a_share_outside_its_range_is_refused(share: float) -> None:
    with pytest.raises(InputError, match="between 0 and 1"):
        split_corpus(corpus_of(distinct_texts(4)), share)
