"""A few processes of one machine that run a function together."""

import os
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn


def run_on_ranks(ranks: int, folder: Path, body: Callable[[int, Path], None]) -> None:
    """Run `body(rank, folder)` on every rank; it lies at the top of a file, so that a new process finds it."""
    spawn(_on_one_rank, args=(ranks, folder, body), nprocs=ranks)


def _on_one_rank(rank: int, ranks: int, folder: Path, body: Callable[[int, Path], None]) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", RANK=str(rank), WORLD_SIZE=str(ranks))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder / 'rendezvous'}", rank=rank, world_size=ranks)
    try:
        body(rank, folder)
    finally:
        dist.destroy_process_group()
