"""Tables of what a kernel is told about tensors that come in lists: where they lie, and how."""

# Triton adds parameters of its own to a kernel.
# pyright: reportCallIssue=false

import struct
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from attention_residuals.ops.gpu.table_kernel import write_table_kernel

AT_ONCE = 16
"""Numbers a kernel writes into a table."""


def is_packed(tensor: Tensor) -> bool:
    """Whether all rows `[D]` of a tensor lie one behind the other, each at a multiple of 16 bytes."""
    row_bytes = tensor.shape[-1] * tensor.element_size()
    return tensor.is_contiguous() and row_bytes % 16 == 0 and tensor.data_ptr() % 16 == 0


def readable(tensor: Tensor) -> Tensor:
    """The tensor itself, or a copy if its leading dimensions do not come down to two strides."""
    return tensor if _strides(tensor) else tensor.contiguous()


def _strides(tensor: Tensor) -> tuple[int, int, int] | None:
    """Leading dimensions as (stride of outer rows, number of inner rows, their stride), if two strides suffice."""
    levels: list[tuple[int, int]] = []  # (size, stride), from the inside
    for size, stride in zip(reversed(tensor.shape[:-1]), reversed(tensor.stride()[:-1]), strict=True):
        if size == 1:
            continue
        if levels and stride == levels[-1][0] * levels[-1][1]:
            levels[-1] = levels[-1][0] * size, levels[-1][1]
        else:
            levels.append((size, stride))
    if len(levels) > 2:
        return None
    inner, outer = (*levels, (1, 0), (1, 0))[:2]
    return outer[1], inner[0], inner[1]


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """Triton launches on the current device, which need not be that of a tensor."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


class Table:
    """Numbers for one launch, gathered on the host and then put on the device."""

    def __init__(self, packed: bool):
        self.packed = packed
        self._numbers: list[int] = []
        self._begins: list[int] = []

    def rows(self, tensors: Sequence[Tensor | None]) -> None:
        """Add tensors `[..., D]`; None is address 0."""
        numbers: list[int] = []
        for tensor in tensors:
            address = 0 if tensor is None else tensor.data_ptr()
            if self.packed:
                numbers.append(address)
            elif tensor is None:
                numbers += [0, 0, 1, 0, 0]
            else:
                strides = _strides(tensor)
                assert strides is not None, "a tensor that is not readable in place"
                numbers += [address, *strides, tensor.stride(-1)]
        self._add(numbers)

    def addresses(self, tensors: Sequence[Tensor | None]) -> None:
        """Add contiguous tensors; None is address 0."""
        self._add([0 if tensor is None else tensor.data_ptr() for tensor in tensors])

    def integers(self, numbers: Sequence[int]) -> None:
        """Add small numbers as they are."""
        self._add([int(number) for number in numbers])

    def floats(self, numbers: Sequence[float]) -> None:
        """Add float64 numbers as their bits."""
        self._add([struct.unpack("<q", struct.pack("<d", number))[0] for number in numbers])

    def on(self, device: torch.device) -> list[Tensor]:
        """The lists in the order they were added, each aligned to 16 bytes whatever was before it."""
        numbers = self._numbers
        table = torch.empty(-(-len(numbers) // AT_ONCE) * AT_ONCE, dtype=torch.int64, device=device)
        if device.type == "cuda":
            numbers = [*numbers, *[0] * (len(table) - len(numbers))]
            with on_device(device):
                for begin in range(0, len(numbers), AT_ONCE):
                    write_table_kernel[(1,)](table[begin:], *numbers[begin : begin + AT_ONCE], num_warps=1)
        else:  # the interpreter
            table[: len(numbers)] = torch.tensor(numbers, dtype=torch.int64)
        return [table[begin:] for begin in self._begins]

    def _add(self, numbers: list[int]) -> None:
        self._begins.append(len(self._numbers))
        self._numbers += [*numbers, *[0] * (len(numbers) % 2)]
