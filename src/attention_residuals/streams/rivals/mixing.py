"""The depth mixing matrix of streams whose weights are the same for every token and channel."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from attention_residuals.streams.base import Stream


def fixed_mixing(
    stream: Stream, outputs: Sequence[Float[Tensor, "*tokens width"]]
) -> Float[Tensor, "reads sources *tokens"]:
    """`Stream.mixing` of a stream that mixes whole vectors with weights that depend on no input.

    Such a stream is linear in its outputs, so unit vectors in their place come back as rows of the matrix.
    """
    units = torch.eye(len(outputs), device=outputs[0].device, dtype=outputs[0].dtype)
    state, rows = stream.start(units[0]), []
    for i in range(stream.shape.sublayers):
        rows.append(stream.mixture(state, i))
        state = stream.write(state, i, units[i + 1])
    rows.append(stream.finish(state))
    return over_tokens(torch.stack(rows), outputs[0])


def over_tokens(
    matrix: Float[Tensor, "reads sources"], like: Float[Tensor, "*tokens width"]
) -> Float[Tensor, "reads sources *tokens"]:
    """The same matrix for every token of `like`."""
    tokens = like.shape[:-1]
    return matrix.view(*matrix.shape, *(1 for _ in tokens)).expand(*matrix.shape, *tokens)


def weighted_sum(
    sources: Sequence[Float[Tensor, "*tokens width"]], weights: Float[Tensor, " sources"]
) -> Float[Tensor, "*tokens width"]:
    """The sum of the sources, each times its weight, without a stack of them."""
    first, *others = weights.to(sources[0].dtype).unbind()
    mixed = sources[0] * first
    for source, weight in zip(sources[1:], others, strict=True):
        mixed = torch.addcmul(mixed, source, weight)
    return mixed
