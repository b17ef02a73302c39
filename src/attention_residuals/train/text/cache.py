"""Tokenised corpora on disk: found by what they were made from, checked when opened, mapped into memory."""

import hashlib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int, UInt

from attention_residuals.errors import InputError
from attention_residuals.train.text.corpus import Corpus
from attention_residuals.train.text.folders import cache_folder
from attention_residuals.train.text.tokenizer import Tokenizer

FORMAT = 1
HEADER = "header.json"
SIDES = ("training", "validation")


class DamagedCacheError(Exception):
    """A cache that cannot be trusted; it is made anew."""


@dataclass(frozen=True, eq=False)
class SideTokens:
    """Tokens of one side, each document closed by the separator, and the place after each document's separator.

    `text_bytes`: bytes of text these tokens stand for, the end of a document counted as one.
    """

    tokens: UInt[np.ndarray, "tokens"]
    ends: Int[np.ndarray, "documents"]
    text_bytes: int


@dataclass(frozen=True, eq=False)
class TokenCache:
    """An opened cache; the tokens stay on disk until they are looked at."""

    training: SideTokens
    validation: SideTokens
    about: dict[str, Any]


def tokens_folder(corpus: Corpus, tokenizer: Tokenizer, validation_share: float) -> Path:
    """Where the tokens of this text, in this order, by this tokenizer, with this split belong."""
    made_from = f"{FORMAT}\n{corpus.order_fingerprint}\n{tokenizer.fingerprint}\n{validation_share}"
    return cache_folder() / "tokens" / hashlib.sha256(made_from.encode()).hexdigest()[:32]


def write_header(folder: Path, tokenizer: Tokenizer, about: dict[str, Any]) -> None:
    """Seal a folder of token files: their sizes, whose tokens they are, and a checksum of all that."""
    content = {
        "format": FORMAT,
        "tokenizer": {"name": tokenizer.name, "fingerprint": tokenizer.fingerprint, "vocabulary": tokenizer.vocab_size},
        "dtype": tokenizer.dtype.name,
        "sizes": {path.name: path.stat().st_size for path in sorted(folder.iterdir())},
        "about": about,
    }
    (folder / HEADER).write_text(json.dumps({"content": content, "checksum": _checksum(content)}, indent=2) + "\n")


def open_cache(folder: Path, tokenizer: Tokenizer) -> TokenCache:
    """Check a cache and map its tokens.

    Raises:
        DamagedCacheError: a file is missing, of another size, or the header is not what was written.
        InputError: the tokens are those of another tokenizer.
    """
    content = _read_header(folder)
    theirs = content["tokenizer"]
    if theirs["fingerprint"] != tokenizer.fingerprint:
        raise InputError(
            f"{folder} holds tokens of tokenizer {theirs['name']} ({theirs['fingerprint']}), which does not fit "
            f"tokenizer {tokenizer.name} ({tokenizer.fingerprint}); load it with its own, or remove the folder"
        )
    for name, size in content["sizes"].items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != size:
            raise DamagedCacheError(f"{path} has not the {size} bytes that were written")
    training, validation = (_map_side(folder, side, content) for side in SIDES)
    return TokenCache(training, validation, content["about"])


def remove_cache(folder: Path) -> None:
    """Clear the place of a damaged cache."""
    shutil.rmtree(folder, ignore_errors=True)


def _read_header(folder: Path) -> dict[str, Any]:
    try:
        header = json.loads((folder / HEADER).read_text())
        intact = header["checksum"] == _checksum(header["content"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedCacheError(f"{folder / HEADER} cannot be read") from error
    if not intact:
        raise DamagedCacheError(f"{folder / HEADER} is not what was written")
    return header["content"]


def _checksum(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _map_side(folder: Path, side: str, content: dict[str, Any]) -> SideTokens:
    return SideTokens(
        np.memmap(folder / f"{side}.tokens", np.dtype(content["dtype"]).newbyteorder("<"), "r"),
        np.memmap(folder / f"{side}.ends", "<i8", "r"),
        content["about"][f"{side}_bytes"],
    )
