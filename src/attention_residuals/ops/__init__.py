"""Pure functions of tensors: the read over depth, its partial form and the merge, and the float64 oracle."""

from attention_residuals.ops import gpu as gpu  # registers its operators
from attention_residuals.ops.group import Ahead, Group, PreNorm
from attention_residuals.ops.loops import compute_dtype
from attention_residuals.ops.opening import open_group
from attention_residuals.ops.partial import Partial, attn_res_partial, merge, normalise
from attention_residuals.ops.read import attn_res
from attention_residuals.ops.reference import attn_res_reference

__all__ = [
    "Ahead",
    "Group",
    "Partial",
    "PreNorm",
    "attn_res",
    "attn_res_partial",
    "attn_res_reference",
    "compute_dtype",
    "merge",
    "normalise",
    "open_group",
]
