"""The delta rule by the GPU kernels of flash-linear-attention (`pip install flash-linear-attention`), where it is.

Their products may be rounded more coarsely than ours: queries and keys go in as the type of the values.
"""

import importlib
from functools import cache
from types import ModuleType

import torch
from torch import Tensor

HEAD_FEATURES = 256
"""The widest key that the kernels hold."""

TYPES = (torch.float32, torch.bfloat16, torch.float16)


def kernels(query: Tensor) -> ModuleType | None:
    """`fla.ops.kda` if it can take queries such as these; None if it cannot, or is not installed."""
    if not query.is_cuda or query.dtype not in TYPES or query.shape[-1] > HEAD_FEATURES:
        return None
    return _installed()


@cache
def _installed() -> ModuleType | None:
    try:
        return importlib.import_module("fla.ops.kda")
    except ImportError:
        return None


def fused(
    found: ModuleType,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    state: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """`delta_rule` by the kernels `found`; their layout is ours."""
    # The kernel for single tokens has no backward.
    single = query.shape[1] == 1 and not torch.is_grad_enabled()
    rule = found.fused_recurrent_kda if single else found.chunk_kda
    query, key = query.to(value.dtype), key.to(value.dtype)
    output, state = rule(
        q=query,
        k=key,
        v=value,
        g=log_decay.float(),
        beta=beta,
        scale=1.0,
        initial_state=None if state is None else state.float(),
        output_final_state=True,
    )
    assert state is not None
    return output, state.float()
