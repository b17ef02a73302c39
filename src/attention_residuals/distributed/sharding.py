"""Data parallel: copies that average their gradients (DDP), and parameters kept in shares (FSDP2, HSDP)."""

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel


def shard_parameters(module: nn.Module, sublayers: nn.ModuleDict, mesh: DeviceMesh, compute: torch.dtype) -> None:
    """Shard every parameter of `module` over `mesh`, in place: one dimension is FSDP2, two (replica, shard) HSDP.

    Each of `sublayers` is gathered by itself when it runs. What is left, the stream's vectors among them, is gathered
    with `module`: a fused norm is used by the stream, not by the sublayer it belongs to.
    """
    for sublayer in sublayers.values():
        fully_shard(sublayer, mesh=mesh, mp_policy=sharing_policy(compute))
    fully_shard(module, mesh=mesh)


def sharing_policy(compute: torch.dtype) -> MixedPrecisionPolicy:
    """Parameters are gathered in the type that they are computed with."""
    return MixedPrecisionPolicy(param_dtype=None if compute is torch.float32 else compute)


def replicate(module: nn.Module, mesh: DeviceMesh) -> DistributedDataParallel:
    """A wrapper of `module` that averages gradients over the one dimension of `mesh`.

    It knows no matrices that are shared: with tensor parallel take `shard_parameters` over (replica, shard), the shard
    dimension being of size 1.
    """
    return DistributedDataParallel(module, process_group=mesh.get_group())
