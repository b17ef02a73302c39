"""Tensor parallel with sharded tokens (arXiv 2603.15031, section 4.2): matrices by heads and hidden units, and between
sublayers every rank holds its own tokens, on which a read is local.

A sublayer gathers the tokens in front of its first matrices and reduce-scatters them behind its last one.
"""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from attention_residuals.distributed.edges import TOKENS, SublayerEdges
from attention_residuals.distributed.layout import require_shared_matrices
from attention_residuals.errors import InputError
from attention_residuals.models import Backbone
from attention_residuals.nn import Attention, OutputLinear, SwiGLU


def shard_matrices(model: Backbone, mesh: DeviceMesh) -> SublayerEdges:
    """Share the matrices of every sublayer over the one dimension of `mesh`, in place.

    From here on the model takes the tokens of its rank, `[B, T / ranks]`, and gives their logits; the loss of a rank is
    its share of the whole, so that they add up to it. The other parameters are whole on every rank and get the gradient
    of the rank's own loss through its own tokens: see `reduce_whole`.

    Returns the edges of the sublayers, which inference needs: see `prefill.SharedForward`.

    Raises:
        InputError: heads or hidden units that the ranks do not divide, or sublayers of other kinds than attention and
            SwiGLU, on every rank alike and before any waits.
    """
    require_shared_matrices(model.config, mesh.size())
    for name, sublayer in model.sublayers.items():
        if not isinstance(sublayer, Attention | SwiGLU):
            raise InputError(
                f"sublayer {name} is {type(sublayer).__name__}, whose matrices are not known to be of heads or hidden "
                "units; share the matrices of Attention and SwiGLU alone"
            )
    edges = SublayerEdges(mesh)
    for sublayer in model.sublayers.values():
        plan: dict[str, ParallelStyle] = {
            name: RowwiseParallel(output_layouts=Partial(), use_local_output=False)
            if isinstance(module, OutputLinear)
            else ColwiseParallel()
            for name, module in sublayer.named_modules()
            if isinstance(module, nn.Linear)
        }
        parallelize_module(sublayer, mesh, plan)
        edges.attach(sublayer)
    return edges


def own_tokens(tokens: Tensor, mesh: DeviceMesh) -> Tensor:
    """Of `[B, T, ...]` the tokens of this rank."""
    return tokens.chunk(mesh.size(), dim=TOKENS)[mesh.get_local_rank()]


def whole_parameters(model: nn.Module, mesh: DeviceMesh) -> list[nn.Parameter]:
    """Those that every rank of `mesh` holds whole."""
    names = set(mesh.mesh_dim_names or ())
    return [parameter for parameter in model.parameters() if not spread_over(parameter) & names]


def reduce_whole(parameters: Iterable[nn.Parameter], mesh: DeviceMesh) -> None:
    """Add up, over the ranks of `mesh`, the gradients of parameters that are whole on each, in place."""
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        grad = parameter.grad.to_local() if isinstance(parameter.grad, DTensor) else parameter.grad
        dist.all_reduce(grad, group=mesh.get_group())


def spread_over(parameter: Tensor) -> set[str]:
    """Names of the dimensions of its mesh over which a parameter is spread."""
    if not isinstance(parameter, DTensor):
        return set()
    names = parameter.device_mesh.mesh_dim_names or ()
    placements = zip(names, parameter.placements, strict=True)
    return {name for name, placement in placements if not placement.is_replicate()}
