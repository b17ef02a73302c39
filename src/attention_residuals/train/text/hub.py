"""Datasets of the Hugging Face hub, streamed once into a parquet file of the cache and read from there."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from attention_residuals.errors import InputError
from attention_residuals.train.text.extras import require
from attention_residuals.train.text.folders import atomic_folder, cache_folder

HUB_PREFIX = "hf:"
COLUMN = "text"
GROUP_BYTES = 16 << 20
"""Text of a row group: what is in memory at once while a dataset is fetched or read."""


def hub_table(name: str, text_key: str) -> tuple[Path, str]:
    """The training split of dataset `hf:NAME` or `hf:NAME:CONFIG` as a parquet file, and the column its text is in.

    It is fetched once: later calls, also without a network, read the copy. Remove the cache's folder `hub` to renew it.

    Raises:
        InputError: no such dataset, no network, or rows without text under `text_key`.
    """
    key = hashlib.sha256(f"{name}\n{text_key}".encode()).hexdigest()[:24]
    folder = cache_folder() / "hub" / key
    if not (folder / "train.parquet").exists():
        with atomic_folder(folder) as partial:
            _fetch(name, text_key, partial / "train.parquet")
    return folder / "train.parquet", COLUMN


def _fetch(name: str, text_key: str, path: Path) -> None:
    datasets = require("datasets", "text", f"the dataset {name}")
    arrow, parquet = require("pyarrow", "text", f"the dataset {name}"), require("pyarrow.parquet", "text", name)
    dataset, _, config = name.removeprefix(HUB_PREFIX).partition(":")
    schema = arrow.schema([(COLUMN, arrow.large_binary())])
    try:
        rows = datasets.load_dataset(dataset, config or None, split="train", streaming=True)
        with parquet.ParquetWriter(path, schema) as writer:
            for texts in _groups(rows, text_key, name):
                writer.write_batch(arrow.record_batch([arrow.array(texts, arrow.large_binary())], schema=schema))
    except InputError:
        raise
    except Exception as error:  # the hub's client raises errors of several libraries that share no base
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise InputError(
            f"the dataset {name} cannot be fetched ({reason}); check its name and the network, or name a local file"
        ) from error


def _groups(rows: Iterable[Mapping[str, Any]], text_key: str, name: str) -> Iterator[list[bytes]]:
    group: list[bytes] = []
    size = 0
    for number, row in enumerate(rows, start=1):
        text = row.get(text_key)
        if not isinstance(text, str):
            raise InputError(
                f"row {number} of {name} has no text under '{text_key}'; its columns are: {', '.join(row)}; "
                "name one as the text key"
            )
        group.append(text.encode("utf-8", errors="surrogatepass"))
        size += len(group[-1])
        if size >= GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group
