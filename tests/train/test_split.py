"""The split: no text on both sides, about the share asked for, and a sentence where it cannot be made."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attention_residuals import InputError
from attention_residuals.train import Document, split_documents
from attention_residuals.train.corpus import SEPARATOR


def distinct_documents(count: int, lines: int = 30) -> list[Document]:
    texts = (b"".join(b"document %d has its own line %d\n" % (n, line) for line in range(lines)) for n in range(count))
    return [Document(f"{n}.txt", text) for n, text in enumerate(texts)]


def test_whole_documents_are_held_out() -> None:
    documents = distinct_documents(100)
    split = split_documents(documents, 0.1)
    train, validation = split.train.split(SEPARATOR)[:-1], split.validation.split(SEPARATOR)[:-1]
    assert sorted(train + validation) == sorted(document.data for document in documents)
    assert 5 <= len(validation) <= 10


def test_the_split_does_not_depend_on_order_or_names() -> None:
    documents = distinct_documents(50)
    renamed = [Document("x" + document.name, document.data) for document in reversed(documents)]
    ours, theirs = split_documents(documents, 0.1), split_documents(renamed, 0.1)
    assert sorted(ours.validation.split(SEPARATOR)) == sorted(theirs.validation.split(SEPARATOR))


def test_near_copies_never_reach_validation() -> None:
    base = distinct_documents(40)
    copies = [
        Document(f"copy of {document.name}", document.data + b"one more line at its end\n") for document in base[:20]
    ]
    validation = split_documents([*base, *copies], 0.3).validation.split(SEPARATOR)
    copied = {document.data for document in [*base[:20], *copies]}
    assert validation != [b""] and not copied & set(validation)


@pytest.mark.parametrize("count", [1, 3])
def test_few_documents_give_their_ends(count: int) -> None:
    documents = distinct_documents(count, lines=1000)
    split = split_documents(documents, 0.05)
    for document in documents:
        kept = next(part for part in split.train.split(SEPARATOR) if document.data.startswith(part))
        rest = document.data[len(kept) :]
        assert kept.endswith(b"\n") and rest in split.validation
        assert 0.04 < len(rest) / len(document.data) <= 0.05


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.binary(min_size=1, max_size=400).filter(lambda data: SEPARATOR not in data), min_size=1, unique=True)
)
def test_no_byte_is_lost_or_doubled(texts: list[bytes]) -> None:
    documents = [Document(str(n), text) for n, text in enumerate(texts)]
    try:
        split = split_documents(documents, 0.2)
    except InputError:
        return
    total = sum(map(len, texts))
    assert len((split.train + split.validation).replace(SEPARATOR, b"")) == total
    assert 0 < len(split.validation.replace(SEPARATOR, b"")) < total


def test_a_split_without_validation_text_is_refused() -> None:
    with pytest.raises(InputError, match="leaves no validation text: 11 bytes in 1"):
        split_documents([Document("one line", b"only a line")], 0.05)


@pytest.mark.parametrize("share", [0, 1, -0.1, 2, float("nan")])
def test_a_share_outside_its_range_is_refused(share: float) -> None:
    with pytest.raises(InputError, match="between 0 and 1"):
        split_documents(distinct_documents(40), share)
