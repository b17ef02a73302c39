"""The processes of a run as a mesh."""

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from attention_residuals.distributed.layout import Parallel

DIMENSIONS = ("stage", "replica", "shard", "tensor")
"""Of the mesh, from the slowest links to the fastest: ranks that differ in `tensor` alone are neighbours."""

EXPERT_DIMENSIONS = ("expert_replica", "expert_shard", "expert")
"""Of the mesh of spread experts. Ranks that differ in `expert` alone have other experts and are neighbours; those that
differ in `expert_shard` keep shares of the same ones, those that differ in `expert_replica` copies.
"""


def open_mesh(parallel: Parallel, device: str = "cpu") -> DeviceMesh:
    """The mesh of all processes; `torch.distributed` is up."""
    shape = (parallel.stages, parallel.replicas, parallel.shards, parallel.tensor)
    return init_device_mesh(device, shape, mesh_dim_names=DIMENSIONS)


def open_expert_mesh(parallel: Parallel, device: str = "cpu") -> DeviceMesh | None:
    """The same processes as they hold the experts; None if these are not spread."""
    if parallel.experts == 1:
        return None
    assert parallel.processes == parallel.data_ranks, "experts are spread without stages and tensor ranks"
    copies = parallel.data_ranks // (parallel.expert_shards * parallel.experts)
    shape = (copies, parallel.expert_shards, parallel.experts)
    return init_device_mesh(device, shape, mesh_dim_names=EXPERT_DIMENSIONS)
