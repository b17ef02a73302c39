"""A few processes of one machine that run a function together, for tests and measurements on gloo."""

import faulthandler
import multiprocessing
import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import start_processes

Body = Callable[[int, Path], None]

IMPORTED_ONCE = [
    *(f"torch.distributed.{name}" for name in ("checkpoint", "fsdp", "pipelining", "tensor.parallel")),
    "attention_residuals.models",
]
"""What takes a rank longest to import: a process that does nothing else has it, and every rank is forked from there."""

SECONDS_BETWEEN_LOOKS = 0.2


def run_on_ranks(ranks: int, folder: Path, body: Body, watch: Callable[[], None] | None = None) -> None:
    """Run `body(rank, folder)` on every rank; it lies at the top of a file, so that a new process finds it.

    Args:
        folder: where the ranks meet; a new one for every call.
        watch: called here now and then while they run.

    Raises:
        ProcessRaisedException: a rank failed; the others are ended.
    """
    context = start_processes(
        _on_one_rank, args=(ranks, folder, body), nprocs=ranks, join=False, start_method=_start_method()
    )
    assert context is not None
    while not context.join(timeout=None if watch is None else SECONDS_BETWEEN_LOOKS):
        if watch is not None:
            watch()


def _start_method() -> str:
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return "spawn"
    multiprocessing.set_forkserver_preload(IMPORTED_ONCE)
    return "forkserver"


def _on_one_rank(rank: int, ranks: int, folder: Path, body: Body) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", RANK=str(rank), WORLD_SIZE=str(ranks))
    torch.set_num_threads(1)
    faulthandler.enable()
    dist.init_process_group("gloo", init_method=f"file://{folder / 'rendezvous'}", rank=rank, world_size=ranks)
    try:
        body(rank, folder)
        dist.barrier()  # nobody takes the connections down while another still uses them
    finally:
        dist.destroy_process_group()
    # What is done is done: the interpreter need not be taken apart while threads of gloo and autograd may be alive.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
