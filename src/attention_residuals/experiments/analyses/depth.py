"""Where a trained model reads over its depth, as means over validation tokens, and what each source is worth to it."""

import copy
import math
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attention_residuals.experiments.analyses.masking import mask_sources
from attention_residuals.experiments.analyses.mixing import (
    is_weighted_sum,
    largest_possible_rank,
    semiseparable_ranks,
)
from attention_residuals.experiments.analyses.walks import Walk, chunks, walk
from attention_residuals.models import Decoder
from attention_residuals.streams import AttnResStream
from attention_residuals.train import TokenData, Trained

TOKENS = 16_384
MASKING_TOKENS = 2048
RANK_TOKENS = 64
TOLERANCES = (1e-1, 1e-2, 1e-3, 1e-4)
"""Of singular values, against the largest of their block. The mean matrix has float32 terms."""
EXACT_TOLERANCE = 1e-9
"""For matrices of single tokens, which are computed in float64."""


def depth(trained: Trained, data: TokenData) -> dict[str, Any]:
    """Depth weights, depth mixing matrix and its rank, and the effect of masking each source.

    `reads`: by read (the last is the head's) the mean `weights` over the sources, named in `sources`, and the mean over
    tokens of their entropy as a share of that of equal weights, `entropy_shares`; None for a stream without depth
    weights. `mixing`: the mean matrix, read by source, and its `ranks`; None where no weighted sum. `masking`: see
    `mask_sources`.
    """
    model, windows = trained.model, data.validation_windows(TOKENS)
    stream = model.stream
    cut = stream.reads.partition if isinstance(stream, AttnResStream) else None
    count = model.config.sublayers
    names = cut.source_names() if cut else ["embedding", *(f"output {n}" for n in range(1, count + 1))]
    mixing = mean_mixing(model, windows)
    possible = largest_possible_rank(count + 1, cut.block if cut else 1)
    return {
        "tokens": len(windows) * (windows.shape[1] - 1),
        "block_sublayers": cut.block if cut else None,
        "sources": names,
        "reads": mean_reads(model, windows),
        "mixing": None if mixing is None else mixing.tolist(),
        "ranks": None if mixing is None else {**ranks(model, mixing, windows[:1]), "largest_possible": possible},
        "masking": mask_sources(model, data.validation_windows(MASKING_TOKENS)),
    }


@torch.no_grad()
def mean_reads(model: Decoder, windows: Int[Tensor, "windows time"]) -> dict[str, Any] | None:
    """Mean depth weights and entropy shares of every read; None for a stream without."""
    stream = model.stream
    if not isinstance(stream, AttnResStream):
        return None
    weights: list[Tensor] = []
    entropies: list[float] = []
    for part in chunks(model, windows):
        share = len(part) / len(windows)
        found = [
            stream.weights(state, i).double().flatten(1) for i, state in enumerate(walk(model, part[:, :-1]).states)
        ]
        means = [share * row.mean(1) for row in found]
        shares = [share * entropy_share(row) for row in found]
        weights = [a + b for a, b in zip(weights, means, strict=True)] if weights else means
        entropies = [a + b for a, b in zip(entropies, shares, strict=True)] if entropies else shares
    return {"weights": [row.tolist() for row in weights], "entropy_shares": entropies}


def entropy_share(weights: Float[Tensor, "sources tokens"]) -> float:
    """Mean over tokens of the entropy of weights, as a share of that of equal ones."""
    if len(weights) == 1:
        return 1.0
    shares = weights / weights.sum(0).clamp_min(torch.finfo(weights.dtype).tiny)
    return torch.special.entr(shares).sum(0).mean().item() / math.log(len(weights))


@torch.no_grad()
def mean_mixing(model: Decoder, windows: Int[Tensor, "windows time"]) -> Float[Tensor, "reads sources"] | None:
    """The depth mixing matrix, mean over all tokens, in float64; None where the reads are not what it says."""
    total: Tensor | float = 0.0
    for part in chunks(model, windows):
        mixing = _mixing(model, walk(model, part[:, :-1]))
        if mixing is None:
            return None
        total = total + mixing.double().flatten(2).mean(2).cpu() * (len(part) / len(windows))
    assert isinstance(total, Tensor)
    return total


@torch.no_grad()
def ranks(model: Decoder, mean: Float[Tensor, "reads sources"], windows: Int[Tensor, "windows time"]) -> dict[str, Any]:
    """Semiseparable ranks of the mean matrix, and of those of some single tokens, in float64: least, mean and most."""
    tolerances = (*TOLERANCES, EXACT_TOLERANCE)
    exact = copy.deepcopy(model).double()
    (part,) = chunks(exact, windows)
    mixing = exact.stream.mixing(walk(exact, part[:, :-1]).outputs)
    assert mixing is not None
    every = max(1, mixing[0, 0].numel() // RANK_TOKENS)
    tokens = mixing.double().flatten(2)[..., ::every].permute(2, 0, 1)
    found = semiseparable_ranks(tokens, tolerances)
    return {
        "tolerances": list(TOLERANCES),
        "mean_matrix": semiseparable_ranks(mean, TOLERANCES).tolist(),
        "token_tolerances": list(tolerances),
        "tokens": len(tokens),
        "token_least": found.amin(1).tolist(),
        "token_mean": found.double().mean(1).tolist(),
        "token_most": found.amax(1).tolist(),
    }


def _mixing(model: Decoder, found: Walk) -> Float[Tensor, "reads sources *tokens"] | None:
    mixing = model.stream.mixing(found.outputs)
    return mixing if mixing is not None and is_weighted_sum(mixing, found.outputs, found.mixtures) else None
