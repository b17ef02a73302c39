"""Triton kernels in front of the plain operators, for tensors on a GPU.

They take bfloat16, float16 and float32; float64 stays with the plain operators. Triton is imported, and a kernel
compiled, when the first tensor comes that needs it.
"""

import importlib.util
import warnings
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from attention_residuals.ops import operators

OPERATORS = (
    operators.mix,
    operators.mix_halves,
    operators.extend,
    operators.extend_halves,
    operators.mix_backward,
    operators.norm_backward,
    operators.extend_halves_backward,
    operators.row_products,
)


@cache
def _launch() -> ModuleType | None:
    """The launches, or None, with one warning, where there is no Triton."""
    if importlib.util.find_spec("triton") is None:
        warnings.warn(
            "reads on the GPU take the plain path, exact but several times slower: triton is not installed",
            RuntimeWarning,
            stacklevel=4,
        )
        return None
    from attention_residuals.ops.gpu import launch

    return launch


def on_gpu(plain: Callable[..., Any]) -> Callable[..., Any]:
    """The operator for tensors on a GPU whose plain implementation is given."""

    def operator(*operands: Any) -> Any:
        wide = any(isinstance(operand, Tensor) and operand.dtype == torch.float64 for operand in operands)
        launch = None if wide else _launch()
        return plain(*operands) if launch is None else getattr(launch, plain.__name__)(*operands)

    return operator


for _plain in OPERATORS:
    operators.LIBRARY.impl(_plain.__name__, on_gpu(_plain), "CUDA")
