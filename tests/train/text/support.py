"""Small corpora for these tests."""

from collections.abc import Callable, Iterator, Sequence
from io import BytesIO

from attention_residuals.train.text.corpus import Corpus, survey
from attention_residuals.train.text.documents import Document, cut
from attention_residuals.train.text.sources import Source
from attention_residuals.train.text.split import Side, Split, side_pieces


class Texts(Source):
    """Texts in memory as a source; `make` builds them anew for every walk."""

    def __init__(self, make: Callable[[], Iterator[bytes]]):
        super().__init__("texts")
        self.make = make

    def documents(self) -> Iterator[Document]:
        for number, text in enumerate(self.make()):
            yield Document(f"text {number}", cut(BytesIO(text)))


def corpus_of(texts: Sequence[bytes]) -> Corpus:
    return survey([Texts(lambda: iter(texts))])


def distinct_texts(count: int, lines: int = 30) -> list[bytes]:
    return [b"".join(b"document %d has its own line %d\n" % (n, k) for k in range(lines)) for n in range(count)]


def sides(corpus: Corpus, split: Split) -> dict[Side, list[bytes]]:
    """The text of each side, document by document."""
    found: dict[Side, list[bytes]] = {Side.TRAINING: [b""], Side.VALIDATION: [b""]}
    for piece in side_pieces(corpus, split):
        found[piece.side][-1] += piece.data
        if piece.closes:
            found[piece.side].append(b"")
    assert all(texts.pop() == b"" for texts in found.values()), "a document was never closed"
    return found
