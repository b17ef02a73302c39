"""Counters of what operations do, by watching them."""

from collections.abc import Sequence

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class FirstPhases(TorchDispatchMode):
    """Counts passes of several queries over common sources, by the maxima and totals `[R, tokens]` that each makes."""

    MAKERS = (torch.ops.aten.empty.memory_format, torch.ops.attention_residuals.mix.default)

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self._tokens, self._made = tokens, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func in self.MAKERS:
            shapes = [tensor.shape for tensor in tree_leaves(result)]
            self._made += sum(len(shape) == 2 and shape[0] > 1 and shape[1] == self._tokens for shape in shapes)
        return result

    @property
    def count(self) -> int:
        phases, rest = divmod(self._made, 2)
        assert not rest
        return phases


class Additions(TorchDispatchMode):
    """Counts additions of two tensors of one shape."""

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__()
        self._shape, self.count = tuple(shape), 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func in (torch.ops.aten.add.Tensor, torch.ops.aten.add_.Tensor):
            self.count += tuple(result.shape) == self._shape
        return result
