"""The depth mixing matrix: how large each term of a read is, and how many numbers a row really needs.

A matrix is n-semiseparable if no block on or below its diagonal has a rank above n (Dao and Gu, arXiv 2405.21060,
definition 3.1). Row `l` of the depth mixing matrix is read `l`, column `i` source v_i, so the blocks to look at have
rows k and later and columns up to k. That rank is the size of the state that a recurrence over depth would need.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

RELATIVE_ERROR = 1e-3
"""Of a weighted sum against the mixture itself: more than rounding is another formula."""


def semiseparable_ranks(
    mixing: Float[Tensor, "*batch reads reads"], tolerances: Sequence[float]
) -> Int[Tensor, "tolerances *batch"]:
    """The semiseparable rank of each lower triangular matrix, at each tolerance.

    A singular value counts if it is larger than the tolerance times the largest of its block.
    """
    size = mixing.shape[-1]
    largest = torch.zeros(len(tolerances), *mixing.shape[:-2], dtype=torch.int64)
    for k in range(size):
        values = torch.linalg.svdvals(mixing[..., k:, : k + 1]).cpu()
        for n, tolerance in enumerate(tolerances):
            ranks = (values > tolerance * values[..., :1]).sum(-1)
            largest[n] = torch.maximum(largest[n], ranks)
    return largest


def largest_possible_rank(reads: int, block: int = 1) -> int:
    """What no matrix of that many reads exceeds; for blocks of `block` sublayers, whose outputs share their weights."""
    return max(min(reads - k, 1 + -(-k // block)) for k in range(reads))


def is_weighted_sum(
    mixing: Float[Tensor, "reads sources *tokens"],
    outputs: Sequence[Float[Tensor, "*tokens width"]],
    mixtures: Sequence[Float[Tensor, "*tokens width"]],
) -> bool:
    """Whether every mixture is what its row of `mixing` says, but for rounding."""
    return all(
        close(weighted_sum(row, outputs), mixture)
        for row, mixture in zip(mixing.to(mixtures[0].dtype), mixtures, strict=True)
    )


def weighted_sum(
    weights: Float[Tensor, "sources *tokens"], sources: Sequence[Float[Tensor, "*tokens width"]]
) -> Float[Tensor, "*tokens width"]:
    """Sum of `weights[i] * sources[i]`."""
    total = torch.zeros_like(sources[0])
    for weight, source in zip(weights.to(total.dtype), sources, strict=True):
        total.addcmul_(weight.unsqueeze(-1), source)
    return total


def close(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors differ by rounding alone."""
    return bool((one - other).norm() <= RELATIVE_ERROR * other.norm())


def term_shares(
    weights: Float[Tensor, "sources *tokens"],
    sources: Sequence[Float[Tensor, "*tokens width"]],
    mixture: Float[Tensor, "*tokens width"],
) -> list[float]:
    """The size of each term against that of the mixture it is in, mean over tokens; they need not sum to 1."""
    size = mixture.norm(dim=-1).clamp_min(torch.finfo(mixture.dtype).tiny)
    return [
        (weight.abs() * source.norm(dim=-1) / size).mean().item()
        for weight, source in zip(weights, sources, strict=True)
    ]
