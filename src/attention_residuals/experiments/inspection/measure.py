"""Depth weights of a converted model on text, and what it loses when a read goes without a source."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from attention_residuals.errors import InputError, require_positive
from attention_residuals.experiments.analyses.depth import entropy_share
from attention_residuals.experiments.analyses.masking import depth_terms, standard_error
from attention_residuals.experiments.analyses.mixing import term_shares
from attention_residuals.retrofit import TuningText
from attention_residuals.retrofit.declarations import Layout, find_layouts
from attention_residuals.retrofit.fingerprints import unwrapped
from attention_residuals.retrofit.tuning.losses import validation_losses
from attention_residuals.retrofit.wiring import reading, walks_of
from attention_residuals.streams import AttnResStream, State

Tick = Callable[[], object]
"""Told of every forward pass over the windows."""


@dataclass(frozen=True)
class InspectConfig:
    """How much to look at.

    Args:
        tokens: of validation text, for weights.
        masking_tokens: for effects, one forward pass over them for each source of each read; 0 for none.
        masking_reads: how many reads to mask in, spread evenly over the depth; None: all.

    Raises:
        InputError: a number out of range.
    """

    tokens: int = 4096
    masking_tokens: int = 512
    masking_reads: int | None = None

    def __post_init__(self) -> None:
        require_positive(self, "tokens")
        if self.masking_tokens != 0:
            require_positive(self, "masking_tokens")
        if self.masking_reads is not None:
            require_positive(self, "masking_reads")


@torch.no_grad()
def inspect(
    model: Any, text: TuningText, config: InspectConfig | None = None, tick: Tick | None = None
) -> dict[str, Any]:
    """Depth weights and effects of masking as plain JSON, in the terms of `analyses.depth`.

    Returns:
        `tokens`, `loss` (nats a token), `sources`, `read_names`; `reads`: by read (the last is that of the final norm)
        mean `weights` and `entropy_shares`; `masking`: of fewer tokens `loss`, `weights`, `shares`, and by read and
        source `effects` on the loss with their standard `errors` over windows, None where nothing was masked;
        `everywhere` by source, masked in every read that can lose it. None if it was not asked for.

    Raises:
        InputError: a model that was not converted, or has several stacks.
    """
    config, tick = config or InspectConfig(), tick or (lambda: None)
    walks = walks_of(model)
    if len(walks) != 1:
        raise InputError(
            f"{type(unwrapped(model)).__name__} has {len(walks)} stacks with depth attention, and one is looked at; "
            "convert a causal language model with attnres retrofit"
        )
    cut = walks[0].stream.reads.partition
    (layout,) = find_layouts(unwrapped(model))
    windows = text.windows.validation_windows(config.tokens)
    seen = _Weights(cut.sublayers + 1)
    with reading(model, seen):
        losses = validation_losses(model, windows, text.prefix)
    tick()
    names = read_names(layout)
    return {
        "architecture": type(unwrapped(model)).__name__,
        "description": walks[0].stream.describe(),
        "text": text.about.get("source", "tokens that were given"),
        "tokens": windows[:, 1:].numel(),
        "loss": losses.mean().item(),
        "sources": cut.source_names(),
        "read_names": names,
        "reads": seen.means(),
        "masking": _mask(model, text, config, len(names), tick) if config.masking_tokens else None,
    }


def passes(model: Any, config: InspectConfig) -> int:
    """How many times `inspect` goes through its windows."""
    if not config.masking_tokens or not walks_of(model):
        return 1
    cut = walks_of(model)[0].stream.reads.partition
    reads = _masked_reads(cut.sublayers + 1, config.masking_reads)
    return 2 + sum(cut.sources(read) for read in reads if cut.sources(read) > 1) + cut.sources(cut.sublayers)


def read_names(layout: Layout) -> list[str]:
    """Each read by its layer (1-based) and the module it is for; the last is that of the head."""
    names = []
    for increment in layout.increments:
        number = layout.layers.index(increment.layer) + 1
        inside = {module: name for name, module in increment.layer.named_modules()}
        alone = sum(other.layer is increment.layer for other in layout.increments) == 1
        names.append(f"layer {number}" if alone else f"layer {number} {inside[increment.writers[0]]}")
    return [*names, "head"]


class _Weights:
    """A reader that changes nothing and adds up the weights of every read."""

    def __init__(self, reads: int):
        self._weights: list[Tensor | None] = [None] * reads
        self._entropies, self._tokens = [0.0] * reads, [0] * reads

    def __call__(self, stream: AttnResStream, state: State, i: int) -> Tensor:
        found = stream.weights(state, i).double().flatten(1)
        before, total, tokens = self._weights[i], found.sum(1).cpu(), found.shape[1]
        self._weights[i] = total if before is None else before + total
        self._entropies[i] += entropy_share(found) * tokens
        self._tokens[i] += tokens
        return own_read(stream, state, i)

    def means(self) -> dict[str, Any]:
        """By read, over all tokens that were seen (the tokenizer's own first token among them)."""
        rows = [
            (row / count).tolist() for row, count in zip(self._weights, self._tokens, strict=True) if row is not None
        ]
        shares = [share / count for share, count in zip(self._entropies, self._tokens, strict=True)]
        return {"weights": rows, "entropy_shares": shares}


def own_read(stream: AttnResStream, state: State, i: int) -> Float[Tensor, "batch time width"]:
    """What read `i` sees by itself."""
    return stream.finish(state) if i == stream.shape.sublayers else stream.read(state, i)


def _mask(model: Any, text: TuningText, config: InspectConfig, reads: int, tick: Tick) -> dict[str, Any]:
    windows = text.windows.validation_windows(config.masking_tokens)
    terms = _Terms(reads)

    def losses(reader: Callable[[AttnResStream, State, int], Tensor]) -> Float[Tensor, "windows"]:
        with reading(model, reader):
            found = validation_losses(model, windows, text.prefix)
        tick()
        return found

    base = losses(terms)
    weights, shares = terms.means()
    masked = set(_masked_reads(reads, config.masking_reads))
    effects: list[list[float | None]] = [[None] * len(row) for row in weights]
    errors: list[list[float | None]] = [[None] * len(row) for row in weights]
    for read in sorted(masked):
        for source in range(len(weights[read]) if len(weights[read]) > 1 else 0):
            increase = losses(_Without(source, read)) - base
            effects[read][source], errors[read][source] = increase.mean().item(), standard_error(increase)
    everywhere = [(losses(_Without(n)) - base).mean().item() for n in range(len(weights[-1]))]
    return {
        "tokens": windows[:, 1:].numel(),
        "loss": base.mean().item(),
        "weights": weights,
        "shares": shares,
        "effects": effects,
        "errors": errors,
        "everywhere": everywhere,
    }


def _masked_reads(reads: int, most: int | None) -> Sequence[int]:
    count = reads if most is None else min(most, reads)
    return [(n + 1) * reads // count - 1 for n in range(count)]


class _Terms:
    """A reader that changes nothing, and keeps mean weights and the shares of the terms in every mixture."""

    def __init__(self, reads: int):
        self._weights: list[list[tuple[int, list[float]]]] = [[] for _ in range(reads)]
        self._shares: list[list[tuple[int, list[float]]]] = [[] for _ in range(reads)]

    def __call__(self, stream: AttnResStream, state: State, i: int) -> Tensor:
        mixture, terms = own_read(stream, state, i), depth_terms(stream, state, i)
        shares = term_shares(terms.weights, terms.sources, mixture)
        self._weights[i].append((len(mixture), stream.weights(state, i).flatten(1).mean(1).tolist()))
        self._shares[i].append((len(mixture), shares))
        return mixture

    def means(self) -> tuple[list[list[float]], list[list[float]]]:
        """Weights and shares by read."""
        return list(map(_mean, self._weights)), list(map(_mean, self._shares))


def _mean(found: Sequence[tuple[int, list[float]]]) -> list[float]:
    """Mean of rows that stand for so many windows each."""
    total = sum(count for count, _ in found)
    rows = [[count * value / total for value in row] for count, row in found]
    return [sum(values) for values in zip(*rows, strict=True)]


@dataclass(frozen=True)
class _Without:
    """A reader that leaves a source out of one read, or of all that have another; other weights grow to their sum."""

    source: int
    read: int | None = None

    def __call__(self, stream: AttnResStream, state: State, i: int) -> Tensor:
        if self.read not in (None, i):
            return own_read(stream, state, i)
        terms = depth_terms(stream, state, i)
        return terms.without(self.source) if terms.can_lose(self.source) else own_read(stream, state, i)
