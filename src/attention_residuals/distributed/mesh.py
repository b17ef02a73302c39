"""The processes of a run as a mesh."""

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from attention_residuals.distributed.layout import Parallel

DIMENSIONS = ("stage", "replica", "shard", "tensor")
"""Of the mesh, from the slowest links to the fastest: ranks that differ in `tensor` alone are neighbours."""


def open_mesh(parallel: Parallel, device: str = "cpu") -> DeviceMesh:
    """The mesh of all processes; `torch.distributed` is up."""
    shape = (parallel.stages, parallel.replicas, parallel.shards, parallel.tensor)
    return init_device_mesh(device, shape, mesh_dim_names=DIMENSIONS)
