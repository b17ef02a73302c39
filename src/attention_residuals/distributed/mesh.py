"""The processes of a run as a mesh."""

import os

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from attention_residuals.distributed.layout import Parallel

DIMENSIONS = ("stage", "replica", "shard", "tensor")
"""Of the mesh, from the slowest links to the fastest: ranks that differ in `tensor` alone are neighbours."""


def open_mesh(parallel: Parallel, device: str = "cpu") -> DeviceMesh:
    """The mesh of all processes; `torch.distributed` is up."""
    shape = (parallel.stages, parallel.replicas, parallel.shards, parallel.tensor)
    return init_device_mesh(device, shape, mesh_dim_names=DIMENSIONS)


def started_processes() -> int:
    """How many `torchrun` started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_first() -> bool:
    """Whether this process is the one that speaks and writes."""
    return not dist.is_initialized() or dist.get_rank() == 0
