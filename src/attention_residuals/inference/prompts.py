"""Prompts of different lengths as one batch."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import torch
from jaxtyping import Bool, Int, Integer
from torch import Tensor

from attention_residuals.errors import InputError


class Padding(Enum):
    """Where prompts shorter than the longest are filled up."""

    LEFT = "left"
    RIGHT = "right"


@dataclass(frozen=True, eq=False)
class Prompts:
    """Tokens `[B, T]`, and where they are tokens rather than padding. Padding changes nothing in the results."""

    tokens: Int[Tensor, "batch time"]
    valid: Bool[Tensor, "batch time"]

    @classmethod
    def pad(cls, sequences: Sequence[Integer[Tensor, "_"]], padding: Padding = Padding.LEFT) -> "Prompts":
        """Sequences `[T_b]` of any lengths as one batch.

        Raises:
            InputError: no sequence, or an empty one.
        """
        if not sequences:
            raise InputError("there are no prompts; give at least one")
        lengths = [len(sequence) for sequence in sequences]
        if min(lengths) == 0:
            raise InputError(f"prompt {lengths.index(0)} is empty; give at least one token")
        longest = max(lengths)
        tokens = torch.zeros(len(sequences), longest, dtype=torch.int64)
        valid = torch.zeros(len(sequences), longest, dtype=torch.bool)
        for row, sequence in enumerate(sequences):
            begin = longest - lengths[row] if padding is Padding.LEFT else 0
            tokens[row, begin : begin + lengths[row]] = sequence
            valid[row, begin : begin + lengths[row]] = True
        return cls(tokens, valid)

    def require_vocabulary(self, vocab_size: int) -> None:
        """Refuse tokens that the model does not have.

        Raises:
            InputError: it names the first one and its place.
        """
        wrong = self.valid & ((self.tokens < 0) | (self.tokens >= vocab_size))
        if wrong.any():
            row, slot = wrong.nonzero()[0].tolist()
            place = int(self.valid[row, :slot].sum())
            raise InputError(
                f"token {place} of prompt {row} is {int(self.tokens[row, slot])}; "
                f"the model's tokens run from 0 to {vocab_size - 1}, so use the tokenizer it was trained with"
            )

    def require_room(self, new_tokens: int, context_tokens: int) -> None:
        """Refuse what goes beyond the context.

        Raises:
            InputError: it names the lengths.
        """
        longest = int(self.valid.sum(1).max())
        if longest + new_tokens > context_tokens:
            raise InputError(
                f"a prompt of {longest} tokens and {new_tokens} new ones do not fit a context of {context_tokens}; "
                "shorten the prompt, ask for fewer tokens, or allow a longer context than the model was trained with"
            )
