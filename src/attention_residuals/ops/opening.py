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
    queries: Float[Tensor, "queries width"],
    key_weights: Float[Tensor, "queries width"],
    *,
    eps: float,
) -> Group:
    """Open the group of R reads with these queries over `sources`; sources and eps as for `attn_res`, unchecked."""
    if torch.compiler.is_compiling() or transformed():
        return TracedGroup(sources, attn_res_partial(sources, queries, key_weights, eps=eps), queries, key_weights, eps)
    native = native_kernels(sources[0].device)
    if not torch.is_grad_enabled():
        return PlainGroup(Parts(sources, queries, key_weights, eps, in_two=not native))
    folded = fold(queries, key_weights, sources[0].dtype)
    if native and all(type(source) in PLAIN for source in sources):
        return NativeGroup(sources, folded, eps)
    return EagerGroup(sources, folded, eps)
