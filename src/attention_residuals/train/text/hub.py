"""Datasets of the Hugging Face hub, streamed once into a parquet file of the cache and read from there."""

import hashlib
import socket
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from attention_residuals.errors import InputError
from attention_residuals.train.text.extras import require
from attention_residuals.train.text.folders import atomic_folder, cache_folder

HUB_PREFIX = "hf:"
COLUMN = "text"
SECONDS_TO_ANSWER = 10.0
GROUP_BYTES = 16 << 20
"""Text of a row group: what is in memory at once while a dataset is fetched or read."""


def hub_table(name: str, text_key: str, limit_mb: int) -> tuple[Path, str]:
    """The training split of dataset `hf:NAME` or `hf:NAME:CONFIG` as a parquet file, and the column its text is in.

    `limit_mb`: the first rows that hold this many megabytes of text, 0 for all of them. It is fetched once: later
    calls, also without a network, read the copy. Remove the cache's folder `hub` to renew it.

    Raises:
        InputError: no such dataset, no network, or rows without text under `text_key`.
    """
    key = hashlib.sha256(f"{name}\n{text_key}\n{limit_mb}".encode()).hexdigest()[:24]
    folder = cache_folder() / "hub" / key
    if not (folder / "train.parquet").exists():
        with atomic_folder(folder) as partial:
            _fetch(name, text_key, limit_mb, partial / "train.parquet")
    return folder / "train.parquet", COLUMN


def _fetch(name: str, text_key: str, limit_mb: int, path: Path) -> None:
    arrow, parquet = require("pyarrow", "text", f"the dataset {name}"), require("pyarrow.parquet", "text", name)
    schema = arrow.schema([(COLUMN, arrow.large_binary())])
    texts = _first(_texts(_rows(name), text_key, name), limit_mb * 1_000_000)
    with parquet.ParquetWriter(path, schema) as writer:
        for group in _groups(texts):
            writer.write_batch(arrow.record_batch([arrow.array(group, arrow.large_binary())], schema=schema))


def _rows(name: str) -> Iterator[Mapping[str, Any]]:
    """The rows as they arrive; none of the errors of whoever takes them passes through here."""
    datasets = require("datasets", "text", f"the dataset {name}")
    dataset, _, config = name.removeprefix(HUB_PREFIX).partition(":")
    _require_network(name)
    try:
        yield from datasets.load_dataset(dataset, config or None, split="train", streaming=True)
    except Exception as error:  # the hub's client raises errors of several libraries that share no base
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise InputError(
            f"the dataset {name} cannot be fetched ({reason}); check its name and the network, or name a local file"
        ) from error


def _require_network(name: str) -> None:
    """Knock at the hub's door once: its client would go on retrying for half a minute.

    Raises:
        InputError: nobody opens. Behind a proxy, and where the client is told to stay offline, that is for the client.
    """
    constants = require("huggingface_hub.constants", "text", f"the dataset {name}")
    address = urlsplit(constants.ENDPOINT)
    if getproxies() or constants.HF_HUB_OFFLINE or address.hostname is None:
        return
    try:
        socket.create_connection((address.hostname, address.port or 443), SECONDS_TO_ANSWER).close()
    except OSError as error:
        raise InputError(
            f"the dataset {name} cannot be fetched ({address.hostname} cannot be reached: {error.strerror or error}); "
            "connect to a network, or name a local file"
        ) from error


def _texts(rows: Iterable[Mapping[str, Any]], text_key: str, name: str) -> Iterator[bytes]:
    for number, row in enumerate(rows, start=1):
        text = row.get(text_key, 0)
        if text is not None and not isinstance(text, str):
            raise InputError(
                f"row {number} of {name} has no text under '{text_key}'; its columns are: {', '.join(row)}; "
                "name one by text.text_key"
            )
        yield (text or "").encode("utf-8", errors="surrogatepass")  # a null is an empty text, as in a table


def _first(texts: Iterator[bytes], limit: int) -> Iterator[bytes]:
    """Texts until they hold `limit` bytes, the one that reaches it included; all of them if it is 0."""
    size = 0
    for text in texts:
        yield text
        size += len(text)
        if limit and size >= limit:
            return


def _groups(texts: Iterable[bytes]) -> Iterator[list[bytes]]:
    group: list[bytes] = []
    size = 0
    for text in texts:
        group.append(text)
        size += len(text)
        if size >= GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group
