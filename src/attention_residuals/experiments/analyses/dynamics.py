"""Sizes and gradients along the depth of a trained model, and how much of what a reader sees each sublayer is."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attention_residuals.experiments.analyses.mixing import is_weighted_sum, term_shares
from attention_residuals.experiments.analyses.walks import Walk, chunks, walk
from attention_residuals.models import Decoder
from attention_residuals.streams import AttnResStream
from attention_residuals.train import TokenData, Trained, probe

TOKENS = 4096


def dynamics(trained: Trained, data: TokenData) -> dict[str, Any]:
    """What `Probe` has, over validation windows, and of each sublayer i (f_i its output, h_i what it read, un-normed):

    `dilution`: |f_i| / |h_i|. `next_share`: the size of f_i with its weight against the mixture of the next read.
    `head_share`: the same against what the head sees. All are means over tokens of the ratios of single tokens. The
    shares are None where a mixture is no weighted sum of outputs. `block_sublayers`: the block size, 1 for Full, None
    for a stream without.
    """
    windows, model = data.validation_windows(TOKENS), trained.model
    found = probe(model, windows.to(model.embedding.weight.device))
    stream = model.stream
    block = stream.reads.partition.block if isinstance(stream, AttnResStream) else None
    tokens = windows.shape[0] * (windows.shape[1] - 1)
    return {"tokens": tokens, "block_sublayers": block, **vars(found), **dilutions(model, windows)}


@torch.no_grad()
def dilutions(model: Decoder, windows: Int[Tensor, "windows time"]) -> dict[str, list[float] | None]:
    """The three ratios of `dynamics`, as lists over the sublayers."""
    sums = [torch.zeros(model.config.sublayers, dtype=torch.float64) for _ in range(3)]
    summed = True
    for part in chunks(model, windows):
        found = walk(model, part[:, :-1])
        weight = len(part) / len(windows)
        sums[0] += weight * _dilution(found)
        mixing = model.stream.mixing(found.outputs)
        summed = summed and mixing is not None and is_weighted_sum(mixing, found.outputs, found.mixtures)
        if mixing is not None and summed:
            near, head = _shares(mixing, found)
            sums[1] += weight * near
            sums[2] += weight * head
    dilution, near, head = (total.tolist() for total in sums)
    return {"dilution": dilution, "next_share": near if summed else None, "head_share": head if summed else None}


def _dilution(found: Walk) -> Float[Tensor, "sublayers"]:
    pairs = zip(found.outputs[1:], found.mixtures, strict=False)
    return torch.tensor(
        [term_shares(torch.ones(1, *f.shape[:-1], device=f.device), [f], h)[0] for f, h in pairs], dtype=torch.float64
    )


def _shares(
    mixing: Float[Tensor, "reads sources *tokens"], found: Walk
) -> tuple[Float[Tensor, "sublayers"], Float[Tensor, "sublayers"]]:
    """Of each sublayer's output: its share at the read that follows it, and at the head."""
    last = len(found.outputs) - 1
    near = [
        term_shares(mixing[i, i : i + 1], found.outputs[i : i + 1], found.mixtures[i])[0] for i in range(1, last + 1)
    ]
    head = term_shares(mixing[last], found.outputs, found.mixtures[last])[1:]
    return torch.tensor(near, dtype=torch.float64), torch.tensor(head, dtype=torch.float64)
