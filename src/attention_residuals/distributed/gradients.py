"""The gradient of a model that is spread over a mesh, as one vector: its norm, and its clipping."""

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from attention_residuals.distributed.tensor import spread_over

SPREAD = ("shard", "tensor")
"""Dimensions of the mesh over which one parameter may be spread."""

EXPERTS_SPREAD = ("expert_shard", "expert")
"""Those of the mesh of spread experts."""


def local_gradients(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    """What this process holds of each gradient."""
    grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
    return [grad.to_local() if isinstance(grad, DTensor) else grad for grad in grads]


def gradient_norm(
    parameters: Sequence[nn.Parameter], mesh: DeviceMesh, expert_mesh: DeviceMesh | None = None
) -> Tensor:
    """Norm of the gradient of the whole model, 0-d float64, equal on all processes; each number is counted once.

    `expert_mesh` is that of experts that are spread.
    """
    groups = {name: mesh[name].get_group() for name in SPREAD}
    if expert_mesh is not None:
        groups |= {name: expert_mesh[name].get_group() for name in EXPERTS_SPREAD}
    squares = torch.zeros(2 ** len(groups), dtype=torch.float64, device=mesh.device_type)
    for parameter in parameters:
        if parameter.grad is not None:
            place = sum(2**k for k, name in enumerate(groups) if name in spread_over(parameter))
            (local,) = local_gradients([parameter])
            squares[place] += torch.linalg.vector_norm(local).double().square()
    for k, group in enumerate(groups.values()):
        rows = [place for place in range(len(squares)) if place >> k & 1]
        part = squares[rows]
        dist.all_reduce(part, group=group)
        squares[rows] = part
    total = squares.sum()
    dist.all_reduce(total, group=mesh["stage"].get_group())
    return total.sqrt()


def clip_gradients(parameters: Iterable[nn.Parameter], most: float, norm: Tensor) -> None:
    """Scale gradients of norm `norm` to `most` where it is larger, in place."""
    factor = float((most / (norm + 1e-6)).clamp(max=1.0))
    for grad in local_gradients(parameters):
        grad.mul_(factor)
