"""Documents from tables, a row each: `.jsonl` line by line, `.parquet` a batch of rows at a time."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

from attention_residuals.errors import InputError
from attention_residuals.train.text.documents import Document, cut
from attention_residuals.train.text.extras import require

ROWS_AT_ONCE = 256


def jsonl_documents(path: Path, key: str) -> Iterator[Document]:
    """One document a line, its text under `key`; blank lines are passed over.

    Raises:
        InputError: a line that is no JSON or has no text under `key`, named with its number.
    """
    with _opened(path) as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                text = _text_of_line(line, key, f"{path}, line {number}")
                # A lone surrogate, which JSON can spell, becomes invalid UTF-8 and is treated as such later.
                yield _document(f"{path}, line {number}", text.encode("utf-8", errors="surrogatepass"))


def _text_of_line(line: bytes, key: str, place: str) -> str:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        reason = f"{error.msg}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else error
        raise InputError(f"{place} is no JSON ({reason}); every line must be one JSON object") from error
    if not isinstance(row, dict):
        raise InputError(f"{place} is a JSON {type(row).__name__} and no object; every line must be one JSON object")
    if not isinstance(row.get(key), str):
        keys = ", ".join(map(str, row)) or "none"
        raise InputError(f"{place} has no text under '{key}'; its keys are: {keys}; name one by text.text_key")
    return row[key]


def parquet_documents(path: Path, key: str) -> Iterator[Document]:
    """One document a row, its text in column `key`; a null is an empty text.

    Raises:
        InputError: a file that is truncated or no parquet, a column that is missing or holds no text.
    """
    arrow, parquet = (
        require("pyarrow", "text", "a .parquet file"),
        require("pyarrow.parquet", "text", "a .parquet file"),
    )
    with _opened(path) as file, _readable(arrow, path):
        table = parquet.ParquetFile(file, pre_buffer=False)
        _require_text_column(arrow, table.schema_arrow, key, path)
        row = 0
        for batch in table.iter_batches(ROWS_AT_ONCE, columns=[key]):
            # As bytes, since a string column may hold invalid UTF-8, which is for the tokenizer to judge.
            for text in batch.column(0).cast(arrow.large_binary()).to_pylist():
                row += 1
                yield _document(f"{path}, row {row}", text or b"")


def _require_text_column(arrow: Any, schema: Any, key: str, path: Path) -> None:
    if key not in schema.names:
        raise InputError(
            f"{path} has no column '{key}'; its columns are: {', '.join(schema.names)}; name one by text.text_key"
        )
    kind, types = schema.field(key).type, arrow.types
    if not any(test(kind) for test in (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)):
        raise InputError(
            f"column '{key}' of {path} holds {kind} and no text; name a column of strings by text.text_key"
        )


@contextmanager
def _readable(arrow: Any, path: Path) -> Iterator[None]:
    try:
        yield
    except (arrow.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"{path} is no parquet file, or it is truncated or damaged ({reason}); fetch it again"
        ) from error


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        file = path.open("rb")
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); check the file and its permissions") from error
    with file:
        yield file


def _document(name: str, data: bytes) -> Document:
    return Document(name, cut(BytesIO(data)))
