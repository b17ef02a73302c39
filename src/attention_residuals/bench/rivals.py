"""Other ways to compute one read: the paper's listing, the best form for a compiler, and flash-linear-attention's."""

import importlib
import warnings

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_residuals.bench.problems import EPS, Computation


def einsum_listing(leaves: list[Tensor], vectors: list[Tensor]) -> list[Tensor]:
    """The paper's listing: stack, normalise the keys, score, softmax, mix."""
    query, key_weight = vectors
    values = torch.stack(leaves)
    keys = F.rms_norm(values, values.shape[-1:], key_weight, EPS)
    logits = torch.einsum("d, n t d -> n t", query, keys)
    return [torch.einsum("n t, n t d -> t d", logits.softmax(0), values)]


def unstacked(leaves: list[Tensor], vectors: list[Tensor]) -> list[Tensor]:
    """The form that suits a compiler best: the norm is a number a token, nothing is stacked, sums are float32."""
    query, key_weight = vectors
    folded = query.float() * key_weight.float()
    values = [leaf.float() for leaf in leaves]
    logits = [(value * folded).sum(-1) * torch.rsqrt(value.square().mean(-1) + EPS) for value in values]
    weights = torch.stack(logits).softmax(0).unsqueeze(-1)
    mixed = sum(weight * value for weight, value in zip(weights.unbind(), values, strict=True))
    assert isinstance(mixed, Tensor)
    return [mixed.to(leaves[0].dtype)]


def compiled(computation: Computation) -> Computation:
    """Through `torch.compile`, for these shapes alone, which is what it does best."""
    return torch.compile(computation, dynamic=False, fullgraph=True)


def fla_naive() -> Computation | str:
    """`naive_attnres` of flash-linear-attention, its only form for CPUs; or why it is not there."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its import, about GPU packages
            naive_attnres = importlib.import_module("fla.ops.attnres").naive_attnres
    except ImportError as error:
        return f"not installed ({error}): pip install 'attention-residuals[bench]'"

    def read(leaves: list[Tensor], vectors: list[Tensor]) -> list[Tensor]:
        return [naive_attnres(vectors[0], leaves, vectors[1], rms_eps=EPS)]

    return read
