"""Which kind of group serves: by what is asked of it, never by a setting."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from attention_residuals.ops.checks import fold, transformed
from attention_residuals.ops.group import PLAIN, EagerGroup, Group, NativeGroup, TracedGroup
from attention_residuals.ops.native import native_kernels
from attention_residuals.ops.partial import attn_res_partial
from attention_residuals.ops.plain_group import Parts, PlainGroup


def open_group(
    sources: Sequence[Float[Tensor, "*tokens width"]],
    queries: Sequence[Float[Tensor, "width"]],
    key_weights: Sequence[Float[Tensor, "width"]],
    *,
    eps: float,
) -> Group:
    """Open the group of R reads with these queries over `sources`; sources and eps as for `attn_res`, unchecked."""
    traced = torch.compiler.is_compiling() or transformed()
    if not traced and not torch.is_grad_enabled():
        return PlainGroup(Parts(sources, queries, key_weights, eps, halved=not native_kernels(sources[0].device)))
    rows, weights = torch.stack(list(queries)), torch.stack(list(key_weights))
    if traced:
        return TracedGroup(sources, attn_res_partial(sources, rows, weights, eps=eps), rows, weights, eps)
    native = native_kernels(sources[0].device)
    folded = fold(rows, weights, sources[0].dtype)
    if native and all(type(source) in PLAIN for source in sources):
        return NativeGroup(sources, folded, eps)
    return EagerGroup(sources, folded, eps)
