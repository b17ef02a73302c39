"""BPE trained here: on the training side alone, the same from any order of documents, kept and mended in the cache."""

from pathlib import Path

import pytest

from attention_residuals import InputError
from attention_residuals.train.text import TextConfig, bpe
from attention_residuals.train.text.bpe import stored_bpe, train_bpe
from attention_residuals.train.text.progress import silent
from attention_residuals.train.text.split import split_corpus
from tests.train.text.support import corpus_of, distinct_texts

TEXTS = distinct_texts(60)


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ATTNRES_CACHE", str(tmp_path))


def test_it_does_not_depend_on_the_order_of_documents(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = []
    for number, texts in enumerate((TEXTS, TEXTS[::-1])):
        monkeypatch.setenv("ATTNRES_CACHE", str(tmp_path / str(number)))
        corpus = corpus_of(texts)
        found.append(train_bpe("bpe:300", corpus, split_corpus(corpus, 0.1), silent).fingerprint)
    assert found[0] == found[1]


def test_validation_text_is_not_looked_at() -> None:
    word = b"zyxwvut"
    text = b"".join(b"a line of training text number %d\n" % n for n in range(950))
    corpus = corpus_of([text + (b" ".join([word] * 4) + b"\n") * 50])
    tokenizer = train_bpe("bpe:400", corpus, split_corpus(corpus, 0.1), silent)
    other = train_bpe("bpe:400", corpus, split_corpus(corpus, 0.001), silent)
    assert len(tokenizer.encode_batch([word])[0]) == len(word)
    assert len(other.encode_batch([word])[0]) < len(word), "or the test would show nothing"


def test_a_large_text_is_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = corpus_of(TEXTS)
    split = split_corpus(corpus, 0.1)
    monkeypatch.setattr(bpe, "SAMPLE_BYTES", corpus.total_bytes // 4)
    size = sum(len(text) for text in bpe._sample(corpus, split, silent))
    assert 0.1 < size / corpus.total_bytes < 0.4


def test_it_is_kept_and_trained_again_when_damaged(tmp_path: Path) -> None:
    corpus = corpus_of(TEXTS)
    assert stored_bpe("bpe:300", corpus, 0.1) is None
    made = train_bpe("bpe:300", corpus, split_corpus(corpus, 0.1), silent)
    stored = stored_bpe("bpe:300", corpus, 0.1)
    assert stored is not None and stored.fingerprint == made.fingerprint
    assert stored_bpe("bpe:301", corpus, 0.1) is None and stored_bpe("bpe:300", corpus, 0.2) is None
    (path,) = tmp_path.rglob("tokenizer.json")
    path.write_text(path.read_text()[:100])
    assert stored_bpe("bpe:300", corpus, 0.1) is None
    assert train_bpe("bpe:300", corpus, split_corpus(corpus, 0.1), silent).fingerprint == made.fingerprint
    assert stored_bpe("bpe:300", corpus, 0.1) is not None


@pytest.mark.parametrize("name", ["bpe:", "bpe:many", "bpe:256", "bpe:-5", "bpe:1e4"])
def test_a_size_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=f"tokenizer {name} has no usable size"):
        TextConfig(tokenizer=name)
