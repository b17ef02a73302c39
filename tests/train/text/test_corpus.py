"""The survey: each text once, fingerprints of content alone, and a corpus that changes is noticed."""

import pytest

from attention_residuals import InputError
from attention_residuals.train.text.corpus import survey
from attention_residuals.train.text.split import Side, Split, side_pieces
from tests.train.text.support import Texts, corpus_of, distinct_texts


def test_copies_empty_and_binary_texts_are_left_out() -> None:
    corpus = corpus_of([b"a", b"", b"b", b"a", b"c\0d", b"b"])
    assert corpus.kept.tolist() == [True, False, True, False, False, False]
    assert len(corpus) == 2 and corpus.total_bytes == 2


def test_the_fingerprint_is_of_content_alone() -> None:
    one, two = corpus_of([b"x", b"y"]), corpus_of([b"y", b"x", b"x"])
    assert one.fingerprint == two.fingerprint != corpus_of([b"x"]).fingerprint
    assert one.order_fingerprint != two.order_fingerprint == corpus_of([b"y", b"x"]).order_fingerprint


def test_documents_are_ordered_by_digest() -> None:
    corpus = corpus_of(distinct_texts(40))
    digests = [corpus.digests[number].tobytes() for number in corpus.by_digest]
    assert digests == sorted(digests) and len(digests) == 40


@pytest.mark.parametrize("later", [[b"one", b"two"], [b"one", b"two", b"three", b"four"], [b"one", b"two", b"thre!"]])
def test_a_corpus_that_changes_meanwhile_is_noticed(later: list[bytes]) -> None:
    now = [b"one", b"two", b"three"]
    corpus = survey([Texts(lambda: iter(now))])
    now[:] = later
    with pytest.raises(InputError, match="changed while it was being read"):
        list(side_pieces(corpus, Split(corpus.kept * 0 + Side.TRAINING, 0.5, "test")))


def test_progress_tells_bytes() -> None:
    told = []
    survey([Texts(lambda: iter([b"one", b"three"]))], lambda *step: told.append(step))
    assert told == [("reading", 3, None), ("reading", 8, None)]
