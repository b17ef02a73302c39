"""Models without values: their names, shapes and types, whatever their size."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import init
from torch.overrides import TorchFunctionMode

DRAWING = {init.normal_, init.uniform_, init.kaiming_uniform_, Tensor.normal_, Tensor.uniform_}
"""What fills a tensor with random numbers."""


class _Undrawn(TorchFunctionMode):
    """Draws nothing. On the meta device there is nothing to fill, and torch would import its compiler for it."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in DRAWING:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


@contextmanager
def without_values() -> Iterator[None]:
    """Modules made here are on the meta device, and what they begin with is not drawn."""
    with torch.device("meta"), _Undrawn():
        yield
