"""Rows of .jsonl and .parquet as documents, and every fault with its place."""

import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from attention_residuals import InputError
from attention_residuals.train.text.tables import jsonl_documents, parquet_documents


def rows(documents) -> list[bytes]:
    return [b"".join(document.pieces) for document in documents]


def test_a_line_is_a_document(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "a\\nb", "id": 1}\n\n{"id": 2, "text": "\\u00fc"}\n{"text": "\\ud800"}', encoding="utf-8")
    assert rows(jsonl_documents(path, "text")) == [b"a\nb", "ü".encode(), b"\xed\xa0\x80"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"text": "cut', r"line 2 is no JSON \(Invalid control character at, column 14\)"),
        (b'{"text": "\xff"}', "line 2 is no JSON"),
        (b'["text"]', "line 2 is a JSON list and no object"),
        (b'{"body": "x", "id": 1}', "line 2 has no text under 'text'; its keys are: body, id;"),
        (b'{"text": null}', "line 2 has no text under 'text'"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: bytes, message: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"text": "good"}\n' + line + b"\n")
    with pytest.raises(InputError, match=f"rows.jsonl, {message}"):
        rows(jsonl_documents(path, "text"))


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary()])
def test_a_row_is_a_document(tmp_path: Path, kind: pa.DataType) -> None:
    path = tmp_path / "rows.parquet"
    texts = [f"row {n}" for n in range(1000)]
    column = pa.array([None, *texts]).cast(kind)
    parquet.write_table(pa.table({"id": range(1001), "body": column}), path, row_group_size=100)
    assert rows(parquet_documents(path, "body")) == [b"", *(text.encode() for text in texts)]


def test_rows_are_read_as_they_are_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    parquet.write_table(pa.table({"text": ["x" * 10_000] * 4000}), path, row_group_size=100, use_dictionary=False)
    documents = parquet_documents(path, "text")
    before = pa.total_allocated_bytes()
    next(documents)
    assert pa.total_allocated_bytes() - before < 10_000_000, "of 40 MB a few row groups are in memory"


def test_faults_of_a_parquet_file_are_named(tmp_path: Path) -> None:
    good = tmp_path / "good.parquet"
    parquet.write_table(pa.table({"body": ["text"] * 100, "id": range(100)}), good)
    whole = good.read_bytes()
    damaged = bytearray(whole)
    damaged[4:40] = b"\xff" * 36
    for name, content in (("cut", whole[:-20]), ("other", b"PAR? no"), ("empty", b""), ("damaged", bytes(damaged))):
        path = tmp_path / f"{name}.parquet"
        path.write_bytes(content)
        with pytest.raises(InputError, match=f"{name}.parquet is no parquet file, or it is truncated or damaged"):
            rows(parquet_documents(path, "body"))
    with pytest.raises(InputError, match=r"good.parquet has no column 'text'; its columns are: body, id;"):
        rows(parquet_documents(good, "text"))
    with pytest.raises(InputError, match=r"column 'id' of .*good.parquet holds int64 and no text"):
        rows(parquet_documents(good, "id"))


def test_a_missing_library_says_which_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"a .parquet file needs pyarrow: pip install 'attention-residuals\[text\]'"):
        rows(parquet_documents(tmp_path / "any.parquet", "text"))
