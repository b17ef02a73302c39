"""What a model loses when one read goes without one of its sources: the causal effect, to hold a weight against."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attention_residuals.experiments.analyses.mixing import (
    RELATIVE_ERROR,
    close,
    is_weighted_sum,
    term_shares,
    weighted_sum,
)
from attention_residuals.experiments.analyses.walks import Walk, resume_walk, walk, window_losses
from attention_residuals.models import Decoder
from attention_residuals.streams import AttnResStream, State


@dataclass(frozen=True, eq=False)
class Terms:
    """One read as a weighted sum.

    Args:
        weights: of each source, `[N, B, T]`.
        sources: N tensors `[B, T, D]`.
        shared: the weights share a total, as those of a softmax do: when one goes, the others grow to it.
    """

    weights: Tensor
    sources: Sequence[Tensor]
    shared: bool

    def without(self, source: int) -> Float[Tensor, "batch time width"]:
        """The mixture with one source left out."""
        kept = self.weights.clone()
        kept[source] = 0
        if self.shared:
            kept *= self.weights.sum(0) / kept.sum(0).clamp_min(torch.finfo(kept.dtype).tiny)
        return weighted_sum(kept, self.sources)

    def can_lose(self, source: int) -> bool:
        """Whether something is left to read without it."""
        return source < len(self.sources) and len(self.sources) > 1


@dataclass(frozen=True, eq=False)
class Reads:
    """Every read as a weighted sum: of sources of its own (embedding, blocks, partial sum), else of all outputs."""

    terms: list[Terms]
    own_sources: bool


def depth_terms(stream: AttnResStream, state: State, read: int) -> Terms:
    """Read `read` of Attention Residuals over the sources of its own: embedding, blocks, partial sum."""
    sources, weights = stream.sources(state), stream.weights(state, read)
    if read == stream.shape.sublayers and not stream.reads.output_read:
        return Terms(torch.ones_like(weights), sources, shared=False)
    shared = bool(((weights.sum(0) - 1).abs() <= RELATIVE_ERROR).all())  # not those of sigmoids
    return Terms(weights * stream.gain(len(sources)), sources, shared)


@torch.no_grad()
def reads_of(model: Decoder, found: Walk) -> Reads | None:
    """The reads as weighted sums; None where that is not what they do."""
    stream = model.stream
    if isinstance(stream, AttnResStream):
        terms = [depth_terms(stream, state, read) for read, state in enumerate(found.states)]
        if all(_fits(term, mixture) for term, mixture in zip(terms, found.mixtures, strict=True)):
            return Reads(terms, own_sources=True)
    mixing = stream.mixing(found.outputs)
    if mixing is None or not is_weighted_sum(mixing, found.outputs, found.mixtures):
        return None
    terms = [Terms(mixing[n, : n + 1], found.outputs[: n + 1], shared=False) for n in range(len(mixing))]
    return Reads(terms, own_sources=False)


def _fits(terms: Terms, mixture: Tensor) -> bool:
    alike = terms.weights.shape == (len(terms.sources), *mixture.shape[:-1])
    return alike and close(weighted_sum(terms.weights, terms.sources), mixture)


@torch.no_grad()
def mask_sources(model: Decoder, windows: Int[Tensor, "windows time"]) -> dict[str, Any] | None:
    """The increase of the loss in nats a token when one source is masked, in one read or in all.

    Masking leaves the source out of the read: weights that sum to 1, as those of a softmax, are divided among the rest
    in proportion, of any other read one term is missing. All before the read stays as it was, all after it follows.

    Returns:
        None where reads are no weighted sums, else `loss` (unmasked); by read and source the mean `weights` and
        `shares` (size of the term against the mixture) of the same tokens, `effects` and their standard `errors` over
        windows, None where nothing would be left to read; `everywhere` by source, masked in every read that can lose
        it; `own_sources`: whether sources are those of depth attention (of Block: blocks), not single outputs.
    """
    windows = windows.to(model.embedding.weight.device)
    inputs, targets = windows[:, :-1], windows[:, 1:]
    found = walk(model, inputs)
    if not all(_reads_its_mixture(model, found, i) for i in range(model.config.sublayers)):
        return None
    reads = reads_of(model, found)
    if reads is None:
        return None
    terms = reads.terms
    base = window_losses(model.logits(found.mixtures[-1]), targets)
    effects, errors = [], []
    for read, (state, term) in enumerate(zip(found.states, terms, strict=True)):
        rows = [_masked_once(model, state, read, term, source, targets) for source in range(len(term.sources))]
        increases = [None if row is None else row - base for row in rows]
        effects.append([None if row is None else row.mean().item() for row in increases])
        errors.append([None if row is None else standard_error(row) for row in increases])
    everywhere = [_masked_everywhere(model, found, reads, n, targets) for n in range(len(terms[-1].sources))]
    return {
        "tokens": targets.numel(),
        "loss": base.mean().item(),
        "own_sources": reads.own_sources,
        "weights": [term.weights.flatten(1).mean(1).tolist() for term in terms],
        "shares": [term_shares(t.weights, t.sources, h) for t, h in zip(terms, found.mixtures, strict=True)],
        "effects": effects,
        "errors": errors,
        "everywhere": [None if row is None else (row - base).mean().item() for row in everywhere],
    }


def _reads_its_mixture(model: Decoder, found: Walk, i: int) -> bool:
    stream = model.stream
    return close(stream.normed(found.mixtures[i], i), stream.read(found.states[i], i))


def _masked_once(
    model: Decoder, state: State, read: int, terms: Terms, source: int, targets: Tensor
) -> Float[Tensor, "windows"] | None:
    if not terms.can_lose(source):
        return None
    return window_losses(resume_walk(model, state, read, terms.without(source)), targets)


def _masked_everywhere(
    model: Decoder, found: Walk, reads: Reads, source: int, targets: Tensor
) -> Float[Tensor, "windows"] | None:
    """The loss without `source` in all reads that can lose it. Where sources are outputs, sublayer `source - 1` writes
    zero; the embedding cannot be masked, as there would be nothing to start from.
    """
    stream, last = model.stream, model.config.sublayers
    if not reads.own_sources:
        return None if source == 0 else _silenced(model, found.states[source - 1], source - 1, targets)
    assert isinstance(stream, AttnResStream)
    begin = next(n for n, term in enumerate(reads.terms) if term.can_lose(source))
    state = found.states[begin]
    for i in range(begin, last):
        term = depth_terms(stream, state, i)
        mixture = term.without(source) if term.can_lose(source) else stream.mixture(state, i)
        state = stream.write(state, i, model.compute(i, stream.normed(mixture, i)))
    term = depth_terms(stream, state, last)
    return window_losses(model.logits(term.without(source)), targets)


def _silenced(model: Decoder, state: State, i: int, targets: Tensor) -> Float[Tensor, "windows"]:
    """The loss when sublayer `i` writes zero."""
    nothing = torch.zeros_like(model.stream.mixture(state, i))
    state = model.stream.write(state, i, nothing)
    for later in range(i + 1, model.config.sublayers):
        state = model.step(state, later)
    return window_losses(model.logits(model.stream.finish(state)), targets)


def standard_error(values: Float[Tensor, "windows"]) -> float | None:
    """Of the mean of some values; None for one alone."""
    return None if len(values) < 2 else (values.std() / len(values) ** 0.5).item()
