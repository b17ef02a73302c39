"""The processes that `torchrun` started, as a group: who leads, and what is done in turns."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from attention_residuals.distributed.layout import Parallel
from attention_residuals.distributed.mesh import open_mesh
from attention_residuals.errors import InputError, OtherProcessError

Result = TypeVar("Result")


@contextmanager
def joined(layout: Parallel, device: str) -> Iterator[DeviceMesh]:
    """The mesh of all processes while the body runs: over NCCL on CUDA devices, one each, over gloo elsewhere."""
    kind = torch.device(device).type
    if kind == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    store, rank, processes = _meeting_point()
    backend = "cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=processes)
    try:
        yield open_mesh(layout, kind)
    finally:
        dist.destroy_process_group()


def _meeting_point() -> tuple[Store, int, int]:
    """Where the processes find each other; this one's rank, and their number.

    `torchrun` may hand out one store for all its attempts. Without a prefix the processes of the next attempt would
    read the addresses of those that are gone.
    """
    store, rank, processes = next(iter(rendezvous("env://")))
    return PrefixStore(f"attempt-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store), rank, processes


def leader_first(act: Callable[[], Result], *, leader: bool) -> Result:
    """`act` on the leaders, and once it is done there, on all others.

    Raises:
        OtherProcessError: it raised an `InputError` on a leader; that process raises the error itself.
    """
    if not leader:
        _require_all(True)
        return act()
    try:
        result = act()
    except InputError:
        dist.all_reduce(torch.zeros(1, dtype=torch.int32), dist.ReduceOp.MIN)
        raise
    _require_all(True)
    return result


def _require_all(fine: bool) -> None:
    flag = torch.tensor([int(fine)], dtype=torch.int32)
    dist.all_reduce(flag, dist.ReduceOp.MIN)
    if not flag:
        raise OtherProcessError("another process has refused; its message says why")
