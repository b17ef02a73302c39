"""Documents of text or code from files and folders; by default the source of Python's own standard library."""

import hashlib
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from attention_residuals.errors import InputError

SEPARATOR = b"\0"
"""Ends every document in the token stream. Text holds no NUL byte, which is also how binary files are told apart."""

STDLIB_SKIPPED = ("site-packages", "dist-packages", "test", "tests", "idle_test", "lib2to3", "__pycache__")


@dataclass(frozen=True)
class Document:
    """One text: its name for people, its bytes."""

    name: str
    data: bytes

    @property
    def digest(self) -> str:
        """SHA-256 of the bytes: identity and place in the split, whatever the file is called."""
        return hashlib.sha256(self.data).hexdigest()


def standard_library() -> list[Document]:
    """The `.py` files of the running Python's standard library, without its tests."""
    root = Path(sysconfig.get_paths()["stdlib"])
    found = [path for path in sorted(root.rglob("*.py")) if not set(path.relative_to(root).parts) & set(STDLIB_SKIPPED)]
    if not found:
        raise InputError(f"no Python source under {root}; this Python ships without it, so name a corpus with --data")
    return _distinct(Document(str(path.relative_to(root)), path.read_bytes()) for path in found)


def read_documents(paths: Sequence[Path]) -> list[Document]:
    """Every distinct text under `paths`: files as they are named, folders with all text files below them.

    Inside a folder, binary, hidden and empty files are passed over. A file named by itself must be text.

    Raises:
        InputError: a path that does not exist, a named file that is empty or binary, a folder without text.
    """
    documents: list[Document] = []
    for path in paths:
        if path.is_dir():
            inside = list(_text_files(path))
            if not inside:
                raise InputError(f"{path} holds no text file; name a folder with text or code in it")
            documents += inside
        else:
            documents.append(_named_file(path))
    return _distinct(documents)


def load_documents(paths: Sequence[Path]) -> list[Document]:
    """The texts under `paths`, or the standard library if none are named."""
    return read_documents(paths) if paths else standard_library()


def fingerprint(documents: Sequence[Document]) -> str:
    """One hash for a set of documents, whatever their order."""
    return hashlib.sha256("".join(sorted(document.digest for document in documents)).encode()).hexdigest()[:16]


def _named_file(path: Path) -> Document:
    if not path.exists():
        raise InputError(f"{path} does not exist; name a file or folder of text")
    data = path.read_bytes()
    if not data:
        raise InputError(f"{path} is empty; name a file with text in it")
    if SEPARATOR in data:
        raise InputError(f"{path} is binary (it holds a NUL byte); name a file of text or code")
    return Document(path.name, data)


def _text_files(folder: Path) -> Iterator[Document]:
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if not path.is_file() or any(part.startswith(".") or part == "__pycache__" for part in relative.parts):
            continue
        data = path.read_bytes()
        if data and SEPARATOR not in data:
            yield Document(str(relative), data)


def _distinct(documents: Iterator[Document] | Sequence[Document]) -> list[Document]:
    """Each text once: a copy on the other side of the split would be leakage."""
    return list({document.digest: document for document in documents}.values())
