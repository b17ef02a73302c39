"""Text whose lines come twice, a model that copies, one that knows nothing, and a run in a folder."""

import random
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor
from transformers.modeling_outputs import CausalLMOutputWithPast

from attention_residuals import DecoderConfig, build_decoder
from attention_residuals.configs import override
from attention_residuals.experiments.evaluation.subjects import Loaded, as_loaded
from attention_residuals.experiments.single import train
from attention_residuals.hf import AttnResForCausalLM
from attention_residuals.recipes import find_recipe
from attention_residuals.train import ByteTokenizer, TextConfig, TokenData, TrainConfig, Trained

SEQUENCE_TOKENS = 128
WORDS_A_LINE = 4


def lines_twice(lines: int, seed: int) -> bytes:
    """Lines of four words of five letters each, no word in two of them, each line twice in a row."""
    rng = random.Random(seed)
    words: dict[str, None] = {}
    while len(words) < lines * WORDS_A_LINE:
        words["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=5))] = None
    names = list(words)
    made = [" ".join(names[n : n + WORDS_A_LINE]) for n in range(0, len(names), WORDS_A_LINE)]
    return "".join(f"{line}\n{line}\n" for line in made).encode()


def text_twice(sequence_tokens: int = SEQUENCE_TOKENS) -> TokenData:
    return TokenData.from_bytes(lines_twice(60, seed=1), lines_twice(150, seed=2), sequence_tokens)


def untrained(sequence_tokens: int = SEQUENCE_TOKENS) -> Loaded:
    """A model of two layers that was never trained."""
    config = TrainConfig(DecoderConfig.from_depth(2), steps=1, text=TextConfig(sequence_tokens=sequence_tokens))
    return as_loaded(Trained(config, build_decoder(config.model, seed=0).eval(), ByteTokenizer(), 0))


def copier() -> Loaded:
    """A model that goes on as the text did after the longest earlier match."""
    plain = untrained()
    model = Copier(plain.model.config)
    return Loaded(model.eval(), plain.tokenizer, None)


class Copier(AttnResForCausalLM):
    def forward(self, input_ids: Tensor, **_: Any) -> CausalLMOutputWithPast:  # pyright: ignore[reportIncompatibleMethodOverride]
        logits = torch.zeros(*input_ids.shape, self.config.vocab_size)
        for row, tokens in enumerate(input_ids.tolist()):
            for place, token in enumerate(copied(tokens)):
                logits[row, place, token] = 10.0
        return CausalLMOutputWithPast(logits=logits)


def copied(tokens: list[int]) -> list[int]:
    """After each token, the one that followed the longest earlier match of what ends there; the latest of equals."""
    found, lengths = [], [0] * len(tokens)
    for end, token in enumerate(tokens):
        lengths = [lengths[j - 1] * (j > 0) + 1 if tokens[j] == token else 0 for j in range(end)] + [0] * len(tokens)
        best = max(range(end), key=lambda j: (lengths[j], j), default=0)
        found.append(tokens[best + 1] if end and lengths[best] else 0)
    return found


def quiet() -> Console:
    return Console(file=StringIO(), width=200)


def trained_run(path: Path, text: Path, *changes: str) -> Path:
    """The folder of a tiny model after four steps on the file `text`, a part of which is held out."""
    small = ["steps=4", "checkpoint_every_steps=2", "evaluation_tokens=256", "final_evaluation_tokens=512"]
    own = [f'text.paths=["{text}"]', f"text.sequence_tokens={SEQUENCE_TOKENS}", "text.validation_share=0.5"]
    assert train(override(find_recipe("tiny"), [*small, *own, *changes]), path, quiet()) is not None
    return path
