"""Results of a backward that refuse to be differentiated again."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def once_differentiable(results: Sequence[Tensor], inputs: Sequence[Tensor | None]) -> Sequence[Tensor]:
    """`results` of a backward, an error to differentiate: where a graph is made, they depend on all of `inputs`.

    Without it they would be constants, and a second derivative would silently lack its share. The decorator of this
    name in torch will not do: it looks at incoming gradients alone, and results depend on what was saved as well.
    """
    if not torch.is_grad_enabled():  # always, except with create_graph=True
        return results
    return _Once.apply(len(results), *results, *inputs)


class _Once(torch.autograd.Function):
    """The first `count` tensors to themselves."""

    @staticmethod
    def forward(count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(tensor.clone() for tensor in tensors[:count])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Nothing is kept; `torch.func` asks for the method."""

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> None:
        raise RuntimeError("a read is differentiable once; a second derivative through it is not implemented")
