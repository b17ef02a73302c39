"""Batches as a function of seed and step alone, so that every model of a comparison sees the same ones."""

import hashlib
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from attention_residuals.errors import InputError, require_positive
from attention_residuals.train.text.cache import SideTokens
from attention_residuals.train.text.documents import NUL
from attention_residuals.train.text.encode import entropy
from attention_residuals.train.text.tokenizer import ByteTokenizer, Tokenizer


@dataclass(frozen=True, eq=False)
class TokenData:
    """Training and validation tokens, cut into sequences of `sequence_tokens` and their next tokens.

    `fingerprint`: one hash for the set of documents. `unigram_entropy`: nats a token that a model which ignores context
    can reach on the training tokens. `about`: what a run's `config.json` says of its text.

    Raises:
        InputError: a side that does not hold one sequence and its next token.
    """

    training: SideTokens
    validation: SideTokens
    tokenizer: Tokenizer
    sequence_tokens: int
    fingerprint: str
    unigram_entropy: float
    about: dict[str, Any]

    def __post_init__(self) -> None:
        require_positive(self, "sequence_tokens")
        for name, side in (("training", self.training), ("validation", self.validation)):
            if len(side.tokens) <= self.sequence_tokens:
                raise InputError(
                    f"the {name} text has {len(side.tokens)} tokens, too short for one sequence of "
                    f"{self.sequence_tokens}; give more text or a shorter sequence"
                )

    @classmethod
    def from_bytes(cls, training: bytes, validation: bytes, sequence_tokens: int) -> "TokenData":
        """Two short texts in memory, bytes as tokens, each closed by the separator."""
        one, other = (_in_memory(text + NUL) for text in (training, validation))
        counts = np.bincount(one.tokens)
        fingerprint = hashlib.sha256(training + NUL + validation).hexdigest()[:16]
        return cls(one, other, ByteTokenizer(), sequence_tokens, fingerprint, entropy(torch.from_numpy(counts)), {})

    @property
    def vocab_size(self) -> int:
        """Tokens run from 0 to this, exclusive."""
        return self.tokenizer.vocab_size

    @property
    def bytes_per_token(self) -> float:
        """Bytes a validation token stands for on average: bits a token over this are bits a byte. 1 with bytes."""
        return self.validation.text_bytes / len(self.validation.tokens)

    def require_vocabulary(self, vocab_size: int) -> None:
        """Refuse a model with fewer tokens than the text has.

        Raises:
            InputError: it names both sizes.
        """
        if vocab_size < self.vocab_size:
            raise InputError(
                f"the model has a vocabulary of {vocab_size}, the tokenizer {self.tokenizer.name} one of "
                f"{self.vocab_size}; set model.vocab_size={self.vocab_size}"
            )

    def batch(self, seed: int, step: int, sequences: int) -> Int[Tensor, "sequences time"]:
        """Training windows `[B, sequence_tokens + 1]`, int64, at places drawn from `(seed, step)`."""
        digest = hashlib.sha256(f"{seed}/{step}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
        starts = torch.randint(len(self.training.tokens) - self.sequence_tokens, (sequences,), generator=generator)
        return self._windows(self.training, starts)

    def validation_windows(self, most_tokens: int) -> Int[Tensor, "windows time"]:
        """Windows that do not overlap, spread evenly over the validation text, about `most_tokens` in all."""
        fit = (len(self.validation.tokens) - 1) // self.sequence_tokens
        count = max(1, min(fit, most_tokens // self.sequence_tokens))
        starts = torch.arange(count) * fit // count * self.sequence_tokens
        return self._windows(self.validation, starts)

    def prompt(self, tokens: int) -> Int[Tensor, "tokens"]:
        """The first tokens of the validation text, int64, for a sample to go on from."""
        return torch.from_numpy(self.validation.tokens[:tokens].astype(np.int64))

    def _windows(self, side: SideTokens, starts: Int[Tensor, "windows"]) -> Int[Tensor, "windows time"]:
        places = starts.numpy()[:, np.newaxis] + np.arange(self.sequence_tokens + 1)
        return torch.from_numpy(side.tokens[places].astype(np.int64))


def bits(nats: float) -> float:
    """Nats as bits."""
    return nats / math.log(2)


def _in_memory(text: bytes) -> SideTokens:
    return SideTokens(np.frombuffer(text, np.uint8), np.array([len(text)]), len(text))
