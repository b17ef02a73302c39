"""Tokenizers behind one abstraction: bytes, and what the `tokenizers` library can read."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

import numpy as np

from attention_residuals.errors import InputError
from attention_residuals.train.text.documents import NUL
from attention_residuals.train.text.extras import require

END_OF_TEXT = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[EOS]", "<|im_end|>")
"""Names under which tokenizers keep the token that ends a document, in the order they are looked for."""


class Tokenizer(ABC):
    """Text to tokens and back.

    `name` is for people, `fingerprint` says whether two are the same, token `separator` closes a document, and no text
    encodes to it.
    """

    name: str
    fingerprint: str
    vocab_size: int
    separator: int
    replaces_invalid: bool
    """Whether bytes that are no UTF-8 become U+FFFD."""

    @property
    def dtype(self) -> np.dtype:
        """The smallest unsigned type that holds every token."""
        return np.min_scalar_type(self.vocab_size - 1)

    @abstractmethod
    def encode_batch(self, texts: Sequence[bytes]) -> list[np.ndarray]:
        """The tokens of each text, of type `dtype`, without separators."""

    @abstractmethod
    def decode(self, tokens: Sequence[int]) -> str:
        """Text of tokens, U+FFFD where they spell none."""


@final
class ByteTokenizer(Tokenizer):
    """Each byte a token; the separator is NUL, which no text holds."""

    name = fingerprint = "bytes"
    vocab_size = 256
    separator = NUL[0]
    replaces_invalid = False

    def encode_batch(self, texts: Sequence[bytes]) -> list[np.ndarray]:
        """The bytes of each text as uint8."""
        return [np.frombuffer(text, np.uint8) for text in texts]

    def decode(self, tokens: Sequence[int]) -> str:
        """The bytes as UTF-8."""
        return bytes(tokens).decode("utf-8", errors="replace")


@final
class JsonTokenizer(Tokenizer):
    """A tokenizer of the `tokenizers` library, from its JSON.

    `end` names the token that ends a document where none of `END_OF_TEXT` is in the vocabulary.

    Raises:
        InputError: no tokenizer in the JSON, or no token in its vocabulary that ends a document.
    """

    replaces_invalid = True

    def __init__(self, name: str, json: str, end: str | None = None):
        self.name, self._json, self._end = name, json, end
        self.fingerprint = hashlib.sha256(json.encode()).hexdigest()[:16]
        self._backend = _load(name, json)
        vocabulary = self._backend.get_vocab(with_added_tokens=True)
        self.vocab_size = max(vocabulary.values(), default=-1) + 1  # numbers may have gaps
        self.separator = _end_of_text(name, vocabulary, end)
        if not set(END_OF_TEXT) & vocabulary.keys():  # then documents end as `end` says
            self.fingerprint = hashlib.sha256(f"{json}\n{end}".encode()).hexdigest()[:16]

    def __reduce__(self) -> tuple[type["JsonTokenizer"], tuple[str, str, str | None]]:
        """Travel to worker processes as JSON: the library's own way loses how it treats special tokens in text."""
        return JsonTokenizer, (self.name, self._json, self._end)

    @property
    def json(self) -> str:
        """What it was made from."""
        return self._json

    def encode_batch(self, texts: Sequence[bytes]) -> list[np.ndarray]:
        """Tokens of each text, invalid UTF-8 read as U+FFFD; names of special tokens in it are ordinary text."""
        strings = [text.decode("utf-8", errors="replace") for text in texts]
        encoded = self._backend.encode_batch_fast(strings, add_special_tokens=False)
        return [np.array(one.ids, self.dtype) for one in encoded]

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of tokens, without special ones."""
        return self._backend.decode(list(tokens))


def read_tokenizer(path: Path) -> JsonTokenizer:
    """The tokenizer of a `tokenizers` JSON file.

    Raises:
        InputError: a file that is missing or no tokenizer, or a tokenizer without a token that ends documents.
    """
    try:
        json = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"{path} cannot be read as a tokenizer ({error}); give bytes, bpe:SIZE or a tokenizer.json"
        ) from error
    return JsonTokenizer(str(path), json)


def invalid_sequences(text: bytes) -> int:
    """How many U+FFFD stand for invalid UTF-8 when `text` is read with replacement."""
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        return text.decode("utf-8", errors="replace").count("\ufffd") - text.count("\ufffd".encode())
    return 0


def _load(name: str, json: str) -> Any:
    library = require("tokenizers", "text", f"the tokenizer {name}")
    try:
        backend = library.Tokenizer.from_str(json)
    except Exception as error:  # the library raises nothing narrower
        raise InputError(
            f"{name} is no tokenizer of the tokenizers library ({error}); give its tokenizer.json"
        ) from error
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = True  # else a document could forge the end of a document
    if getattr(backend.model, "dropout", None):
        backend.model.dropout = None  # random merges would make tokens differ from run to run
    return backend


def _end_of_text(name: str, vocabulary: dict[str, int], end: str | None) -> int:
    for token in (*END_OF_TEXT, *(() if end is None else (end,))):
        if token in vocabulary:
            return vocabulary[token]
    raise InputError(f"{name} has no token that ends a document; add one of {', '.join(END_OF_TEXT)} to its vocabulary")
