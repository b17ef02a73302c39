"""Muon for the matrices of experts, which lie in one tensor a layer."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributed.tensor import DTensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the quintic Newton-Schulz iteration, as in `torch.optim.Muon`."""

ITERATIONS = 5
EPS = 1e-7


class StackedMuon(torch.optim.Optimizer):
    """`torch.optim.Muon` with `match_rms_adamw`, for each of the `n` matrices of a parameter `[n, rows, columns]`.

    Torch's own takes matrices alone. Here a stack is one batch of products, and its momentum has the shape of the
    stack: checkpoints and shares of it along `n` are as those of any parameter. Of a stack that is spread along `n`
    each process steps its own matrices, and nothing is sent.

    Raises:
        ValueError: a parameter of another number of dimensions.
    """

    def __init__(self, params: Iterable[Any], lr: float = 1e-3, weight_decay: float = 0.1, momentum: float = 0.95):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})
        for group in self.param_groups:
            for stack in group["params"]:
                if stack.ndim != 3:
                    raise ValueError(
                        f"StackedMuon takes stacks of matrices, and was given a tensor {list(stack.shape)}"
                    )

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for stack in group["params"]:
                if stack.grad is not None:
                    self._step(stack, stack.grad, group)
        return loss

    def _step(self, stack: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        state = self.state[stack]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(grad)
        momentum = group["momentum"]
        stack, grad, average = (_own(tensor) for tensor in (stack, grad, state["momentum_buffer"]))
        average.lerp_(grad, 1 - momentum)
        update = orthogonalised(grad.lerp(average, momentum))
        stack.mul_(1 - group["lr"] * group["weight_decay"])
        stack.add_(update, alpha=-group["lr"] * 0.2 * math.sqrt(max(stack.shape[1:])))


def _own(stack: Tensor) -> Tensor:
    """The matrices of this process, as they lie in its memory."""
    if not isinstance(stack, DTensor):
        return stack
    assert all(place.is_replicate() or getattr(place, "dim", None) == 0 for place in stack.placements)
    return stack.to_local()


def orthogonalised(stack: Float[Tensor, "n rows columns"]) -> Float[Tensor, "n rows columns"]:
    """Each matrix with its singular values brought near 1, in bfloat16; a matrix of zeros stays one."""
    a, b, c = COEFFICIENTS
    tall = stack.shape[1] > stack.shape[2]
    x = stack.bfloat16().mT if tall else stack.bfloat16()
    x = x / torch.linalg.matrix_norm(x, keepdim=True).clamp(min=EPS)
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)  # few roundings
    return x.mT if tall else x
