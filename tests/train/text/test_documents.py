"""Pieces: nothing lost, no line or character torn where that can be helped, binary text cut short."""

from io import BytesIO
from pathlib import Path

import pytest

from attention_residuals import InputError
from attention_residuals.train.text import documents
from attention_residuals.train.text.documents import cut, file_pieces


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "PIECE_BYTES", 16)


def pieces(text: bytes) -> list[bytes]:
    return list(cut(BytesIO(text)))


def test_pieces_end_at_line_ends() -> None:
    text = b"one line\nanother\nand a third\nlast"
    assert pieces(text) == [b"one line\n", b"another\n", b"and a third\n", b"last"]


def test_a_long_line_is_cut_between_characters() -> None:
    found = pieces("ü€𝄞a".encode() * 20)
    assert b"".join(found).decode() == "ü€𝄞a" * 20
    assert all(piece.decode() and len(piece) <= 16 for piece in found) and len(found) > 10


def test_bytes_that_are_no_utf8_come_through() -> None:
    assert b"".join(pieces(b"\x80" * 50)) == b"\x80" * 50


def test_binary_text_is_read_no_further() -> None:
    assert pieces(b"0123456789abcd\n\0" + b"x" * 100)[-1] != b"x" * 4
    assert len(pieces(b"\0" * 1000)) == 1


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"gone.txt cannot be read"):
        next(file_pieces(tmp_path / "gone.txt"))
