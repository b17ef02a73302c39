"""Batches as a function of seed and step alone, so that every model of a comparison sees the same ones."""

import hashlib
import math
from dataclasses import dataclass

import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from attention_residuals.errors import InputError
from attention_residuals.train.split import Split


def to_tokens(text: bytes) -> UInt8[Tensor, "tokens"]:
    """Bytes as tokens: uint8, as that is all they need until a batch is made."""
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


@dataclass(frozen=True, eq=False)
class ByteData:
    """Training and validation tokens, uint8, cut into sequences of `sequence_tokens` and their next tokens."""

    train: UInt8[Tensor, "train"]
    validation: UInt8[Tensor, "validation"]
    sequence_tokens: int

    @classmethod
    def from_split(cls, split: Split, sequence_tokens: int) -> "ByteData":
        """Tokens of a split.

        Raises:
            InputError: a side that does not hold one sequence and its next token.
        """
        for side, text in (("training", split.train), ("validation", split.validation)):
            if len(text) <= sequence_tokens:
                raise InputError(
                    f"the {side} text has {len(text)} bytes, too short for one sequence of {sequence_tokens}; "
                    "give more text or a shorter --sequence"
                )
        return cls(to_tokens(split.train), to_tokens(split.validation), sequence_tokens)

    def batch(self, seed: int, step: int, sequences: int) -> Int[Tensor, "sequences time"]:
        """Training windows `[B, sequence_tokens + 1]`, int64, at places drawn from `(seed, step)`."""
        digest = hashlib.sha256(f"{seed}/{step}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
        starts = torch.randint(len(self.train) - self.sequence_tokens, (sequences,), generator=generator)
        return self._windows(self.train, starts)

    def validation_windows(self, most_tokens: int) -> Int[Tensor, "windows time"]:
        """Windows that do not overlap, spread evenly over the validation text, about `most_tokens` in all."""
        fit = (len(self.validation) - 1) // self.sequence_tokens
        count = max(1, min(fit, most_tokens // self.sequence_tokens))
        starts = torch.arange(count) * fit // count * self.sequence_tokens
        return self._windows(self.validation, starts)

    def _windows(self, tokens: Tensor, starts: Tensor) -> Tensor:
        offsets = torch.arange(self.sequence_tokens + 1)
        return tokens[starts.unsqueeze(-1) + offsets].long()


def unigram_entropy(tokens: UInt8[Tensor, "tokens"]) -> float:
    """Entropy in nats a token of the token frequencies alone: what a model that ignores context can reach."""
    counts = torch.bincount(tokens.long()).double()
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * shares.log()).sum())


def bits(nats: float) -> float:
    """Nats as bits; with bytes as tokens, nats a token as bits a byte."""
    return nats / math.log(2)
