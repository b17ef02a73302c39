"""Text for a pretrained model: the house's reading, split and cache, through the model's own tokenizer."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from jaxtyping import Int
from torch import Tensor

from attention_residuals.errors import InputError
from attention_residuals.train.text import JsonTokenizer, Progress, TextConfig, load_text

TOKENIZER = "tokenizer.json"


class Windows(Protocol):
    """Training batches as a function of seed and step, and validation windows; `TokenData` is one."""

    @property
    def sequence_tokens(self) -> int:
        """Tokens of a window that are predicted."""
        ...

    def batch(self, seed: int, step: int, sequences: int) -> Int[Tensor, "sequences time"]:
        """Training windows `[B, sequence_tokens + 1]`, int64."""
        ...

    def validation_windows(self, most_tokens: int) -> Int[Tensor, "windows time"]:
        """Validation windows `[W, sequence_tokens + 1]`, about `most_tokens` tokens in all."""
        ...


@dataclass(frozen=True, eq=False)
class TuningText:
    """Windows of tokens, what the tokenizer puts in front of a text (not predicted), and what a run says of them."""

    windows: Windows
    prefix: tuple[int, ...] = ()
    about: dict[str, Any] = field(default_factory=dict)


def read_tuning_text(
    folder: Path | str,
    paths: Sequence[str] = (),
    *,
    sequence_tokens: int = 512,
    validation_share: float = 0.05,
    text_key: str = "text",
    progress: Progress | None = None,
) -> TuningText:
    """Text as tokens of the model in `folder`.

    Args:
        folder: of the model; its `tokenizer.json` is used.
        paths: as of `TextConfig`: files, folders, tables, `english`, `hf:NAME`; none: the Python standard library.

    Raises:
        InputError: no such tokenizer, or what `load_text` finds wrong.
    """
    tokenizer = tokenizer_of(Path(folder))
    config = TextConfig(tuple(paths), str(tokenizer.name), sequence_tokens, validation_share, text_key)
    data = load_text(config, progress, tokenizer=tokenizer)
    return TuningText(data, opening(tokenizer), {**data.about, "sequence_tokens": sequence_tokens})


def tokenizer_of(folder: Path) -> JsonTokenizer:
    """The tokenizer of a model's folder. Documents end as usual, or else with the `eos_token` of its config.

    Raises:
        InputError: there is none, or none of its tokens ends a document.
    """
    file = folder / TOKENIZER
    try:
        json_text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"{file} cannot be read ({error}); write one with AutoTokenizer.from_pretrained(...).save_pretrained, or "
            "copy it there"
        ) from error
    return JsonTokenizer(str(file), json_text, _end(folder))


def _end(folder: Path) -> str | None:
    try:
        token = json.loads((folder / "tokenizer_config.json").read_bytes())["eos_token"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    token = token.get("content") if isinstance(token, dict) else token
    return token if isinstance(token, str) else None


def opening(tokenizer: JsonTokenizer) -> tuple[int, ...]:
    """The token that a tokenizer puts in front of every text, if it does; some models go wrong without."""
    from tokenizers import Tokenizer

    backend: Any = Tokenizer.from_str(tokenizer.json)
    return tuple(backend.encode("", add_special_tokens=True).ids[:1])


@dataclass(frozen=True, eq=False)
class TokenWindows:
    """Two runs of tokens as `Windows`.

    Raises:
        InputError: one that does not hold a sequence and its next token.
    """

    training: Int[Tensor, "training"]
    validation: Int[Tensor, "validation"]
    sequence_tokens: int

    def __post_init__(self) -> None:
        for name in ("training", "validation"):
            count = len(getattr(self, name))
            if count <= self.sequence_tokens:
                raise InputError(
                    f"the {name} text has {count} tokens, too short for one sequence of {self.sequence_tokens}; give "
                    "more or a shorter sequence"
                )

    def batch(self, seed: int, step: int, sequences: int) -> Int[Tensor, "sequences time"]:
        """Windows at places drawn from `(seed, step)`."""
        digest = hashlib.sha256(f"{seed}/{step}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
        starts = torch.randint(len(self.training) - self.sequence_tokens, (sequences,), generator=generator)
        return self._cut(self.training, starts)

    def validation_windows(self, most_tokens: int) -> Int[Tensor, "windows time"]:
        """Windows that do not overlap, spread evenly."""
        fit = (len(self.validation) - 1) // self.sequence_tokens
        count = max(1, min(fit, most_tokens // self.sequence_tokens))
        return self._cut(self.validation, torch.arange(count) * fit // count * self.sequence_tokens)

    def _cut(self, tokens: Int[Tensor, "tokens"], starts: Int[Tensor, "windows"]) -> Int[Tensor, "windows time"]:
        return tokens[starts.unsqueeze(1) + torch.arange(self.sequence_tokens + 1)].long()
