"""What each operator has to answer, in float64 by the formula and plain autograd."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_residuals.bench.problems import EPS

NORM_EPS = 0.1
"""Large enough for its place to matter."""


def logits(sources: Sequence[Tensor], folded: Sequence[Tensor]) -> Tensor:
    """`[N, T, R]`; a matrix of folded queries `[R, D]` for each source, so that some of them may be constants."""
    keys = [v * torch.rsqrt(v.square().mean(-1, keepdim=True) + EPS) for v in sources]
    return torch.stack([key @ matrix.T for key, matrix in zip(keys, folded, strict=True)])


def mixtures(sources: Sequence[Tensor], folded: Sequence[Tensor]) -> Tensor:
    """`[R, T, D]`."""
    weights = logits(sources, folded).softmax(0)
    mixed = torch.zeros(weights.shape[2], *sources[0].shape, dtype=sources[0].dtype, device=sources[0].device)
    for weight, source in zip(weights, sources, strict=True):
        mixed = mixed + weight.T.unsqueeze(-1) * source
    return mixed


def gradients(
    own: Sequence[Tensor],
    others: Sequence[Tensor],
    folded: Tensor,
    grads: Sequence[Tensor],
    gains: Sequence[float],
    running: Sequence[Tensor | None],
) -> tuple[list[Tensor], Tensor]:
    """Of the own sources, `running` added, and of the folded queries through the own sources alone."""
    leaves = [source.double().requires_grad_() for source in own]
    query = folded.double().requires_grad_()
    matrices = [query] * len(leaves) + [query.detach()] * len(others)
    mixed = mixtures([*leaves, *(source.double() for source in others)], matrices)
    incoming = torch.stack([gain * grad.double() for gain, grad in zip(gains, grads, strict=True)])
    *results, grad_folded = torch.autograd.grad(mixed, [*leaves, query], incoming)
    results = [
        grad if more is None else grad + more.double()
        for grad, more in zip(results, running or [None] * len(own), strict=True)
    ]
    return results, grad_folded


def norm_gradients(grad: Tensor, mixed: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Of the mixture and of the weight of its RMSNorm."""
    leaves = [mixed.double().requires_grad_(), weight.double().requires_grad_()]
    one, two = torch.autograd.grad(F.rms_norm(leaves[0], weight.shape, leaves[1], NORM_EPS), leaves, grad.double())
    return one, two
