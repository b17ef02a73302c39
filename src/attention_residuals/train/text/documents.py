"""A document: one text, read in pieces so that its length does not matter."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from attention_residuals.errors import InputError

PIECE_BYTES = 1 << 18
"""Most bytes of a piece. A piece and its tokens are all of a document that is ever in memory."""

NUL = b"\0"
"""Text holds no NUL byte, which is how binary files are told apart."""


@dataclass(frozen=True, eq=False)
class Document:
    """One text: its name for people, and its bytes in pieces that can be taken once."""

    name: str
    pieces: Iterator[bytes]


def file_pieces(path: Path) -> Iterator[bytes]:
    """The bytes of a file in pieces; nothing is opened before the first is asked for.

    Raises:
        InputError: a file that cannot be read.
    """
    try:
        with path.open("rb") as file:
            yield from cut(file)
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); check the file and its permissions") from error


def cut(file: BinaryIO) -> Iterator[bytes]:
    """Pieces of at most `PIECE_BYTES` that end at a line end, or inside a longer line between two characters.

    A piece with a NUL byte is the last: what follows does not make the document text again.
    """
    rest = b""
    while chunk := file.read(PIECE_BYTES - len(rest)):
        rest += chunk
        if len(rest) == PIECE_BYTES:
            place = _place_to_cut(rest)
            piece, rest = rest[:place], rest[place:]
            yield piece
            if NUL in piece:
                return
    if rest:
        yield rest


def _place_to_cut(data: bytes) -> int:
    after_line = data.rfind(b"\n") + 1
    if after_line:
        return after_line
    for back in range(1, 5):  # a UTF-8 character has at most four bytes, the first of which is 0b11......
        if data[-back] >= 0b11000000:
            return len(data) - back
        if data[-back] < 0b10000000:
            break
    return len(data)
