"""The Triton kernels in front of the operators: in Triton's interpreter, or on a GPU.

The interpreter must be chosen before Triton is imported, so it has a run of its own:
`TRITON_INTERPRET=1 pytest tests/ops/gpu`.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if not INTERPRETED and not torch.cuda.is_available():
    pytest.skip("the kernels need a GPU, or TRITON_INTERPRET=1", allow_module_level=True)
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")

import triton.language as tl  # noqa: E402
from triton.runtime.interpreter import TensorHandle, interpreter_builder  # noqa: E402

from attention_residuals.ops.gpu import OPERATORS, on_gpu  # noqa: E402
from attention_residuals.ops.gpu import kernels as kernels  # noqa: E402
from attention_residuals.ops.gpu import launch as launch  # noqa: E402

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
GUARD = 64
"""Numbers on either side of whatever a kernel may write."""


class Guarded:
    """Memory full of NaN, with more of it on either side, which must stay so."""

    def __init__(self) -> None:
        self.rooms: list[Tensor] = []

    def empty(self, shape: Sequence[int], dtype: torch.dtype, like: Tensor) -> Tensor:
        count = int(torch.Size(shape).numel())
        room = torch.full((count + 2 * GUARD,), float("nan"), dtype=dtype, device=like.device)
        self.rooms.append(room)
        return room[GUARD : GUARD + count].view(tuple(shape))

    def check(self) -> None:
        for room in self.rooms:
            edges = torch.cat([room[:GUARD], room[-GUARD:]])
            assert edges.isnan().all(), "a kernel wrote outside its results"


def rounded_as_on_a_gpu(source: TensorHandle, kind: Any) -> TensorHandle:
    """Float32 to a narrower type. The interpreter by itself cuts bfloat16 off."""
    if kind.scalar != tl.bfloat16:
        return interpreter_builder.cast_impl(source, kind)
    values = torch.from_numpy(source.data.astype("float32")).to(torch.bfloat16)
    return TensorHandle(values.view(torch.uint16).numpy(), kind.scalar)


@contextmanager
def triton_operators(module=None) -> Iterator[None]:
    """Within, the operators are launches of the kernels of `module`, whose memory is full of NaN and guarded."""
    guarded = Guarded()
    # A number beyond a type is infinite, and infinity times zero NaN, without a word.
    with pytest.MonkeyPatch.context() as patch, np.errstate(over="ignore", invalid="ignore"):
        patch.setattr(launch, "empty", guarded.empty)
        patch.setattr(interpreter_builder, "create_fp_trunc", rounded_as_on_a_gpu, raising=False)
        patch.setattr(launch, "kernels", module or kernels)
        for plain in OPERATORS:
            patch.setattr(torch.ops.attention_residuals, plain.__name__, on_gpu(plain))
        yield
    guarded.check()
