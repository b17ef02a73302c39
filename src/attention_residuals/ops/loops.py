"""The arithmetic of a read in plain torch, one source at a time: no stack, at most one temporary of a source's size.

Every function serves R queries over N sources; a single read is R = 1. Shapes: a source is `[..., D]`, seen as
rows `[T, D]` in the compute type C (float32, or float64 for float64 sources). Per-token scalars are `[N, R, T]` or
`[N, T]` in C. `folded [R, D]` holds query times key-norm weight: the two only ever enter as a product, and with it
logit = rstd * <folded, v>, so no normalised key is ever formed.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type statistics, softmax and sums are carried in: float64 for float64, float32 for everything else."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def rows(source: Tensor) -> Tensor:
    """`[..., D]` as `[T, D]` in the compute type; a view where strides and type allow it."""
    # The row count is spelled out: -1 is ambiguous when a leading dimension is 0.
    width = source.shape[-1]
    return source.reshape(source.numel() // width, width).to(compute_dtype(source.dtype))


def score(sources: Sequence[Tensor], folded: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Logits `[N, R, T]` and inverse RMS `[N, T]` of every source under every query."""
    count, (queries, width) = len(sources), folded.shape
    tokens = sources[0].numel() // width
    products = folded.new_empty(count, tokens, queries)
    norms = folded.new_empty(count, tokens)
    columns = folded.T
    # Only what reads a source is done source by source; the rest is one call for all of them.
    for source, product, norm in zip(sources, products.unbind(), norms.unbind(), strict=True):
        values = rows(source)
        torch.linalg.vector_norm(values, dim=-1, out=norm)
        torch.mm(values, columns, out=product)
    rstd = norms.square_().div_(width).add_(eps).rsqrt_()
    logits = folded.new_empty(count, queries, tokens)
    return torch.mul(products.transpose(1, 2), rstd.unsqueeze(1), out=logits), rstd


def mix(sources: Sequence[Tensor], weights: Tensor) -> Tensor:
    """Weighted sums of the raw sources: weights `[N, R, T]` -> `[R, T, D]`."""
    first, *others = weights.unsqueeze(-1).unbind()
    values = rows(sources[0])
    # Contiguous whatever the layout of the sources, as what a compiler is told of an operator's results.
    mixed = torch.mul(first, values, out=values.new_empty(*weights.shape[1:], values.shape[-1]))
    for source, weight in zip(sources[1:], others, strict=True):
        mixed.addcmul_(rows(source), weight)
    return mixed


def weight_gradients(sources: Sequence[Tensor], grad_mixed: Tensor) -> Tensor:
    """Gradient `[N, R, T]` of each weight: the inner product of the mixture's gradient `[R, T, D]` with the source."""
    return torch.stack([torch.linalg.vecdot(grad_mixed, rows(source)) for source in sources])


def input_gradients(
    sources: Sequence[Tensor],
    folded: Tensor,
    scores: tuple[Tensor, Tensor],
    weights: Tensor,
    grad_logits: Tensor,
    grad_mixed: Tensor,
    running: Sequence[Tensor | None] = (),
) -> tuple[list[Tensor], Tensor]:
    """Gradients of every source (shape and type of the source), with `running` added, and of `folded [R, D]`.

    `scores` is what `score` returned. With k = v rstd and s = <folded, k>, dk/dv gives
    dv = sum_r  w_r dh_r + ds_r rstd (folded_r - k s_r / D).
    """
    logits, rstd = scores
    width = folded.shape[-1]
    scaled = grad_logits * rstd.unsqueeze(1)
    along_source = (scaled * logits).sum(1).mul_(rstd).div_(-width).unsqueeze(-1)
    along_query, along_output = scaled.unsqueeze(-1), weights.unsqueeze(-1)
    queries = range(folded.shape[0])
    grad_folded = torch.zeros_like(folded)
    grads = []
    for n, source in enumerate(sources):
        values = rows(source)
        grad = torch.mul(values, along_source[n], out=values.new_empty(values.shape))
        for r in queries:
            grad.addcmul_(grad_mixed[r], along_output[n, r]).addcmul_(folded[r], along_query[n, r])
        if running and (other := running[n]) is not None:
            grad += rows(other)
        grad_folded.addmm_(scaled[n], values)
        grads.append(grad.to(source.dtype).view(source.shape))
    return grads, grad_folded
