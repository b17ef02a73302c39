"""FSDP2 on two processes: sublayers sharded by themselves, the stream in the root group, checkpointed or not."""

import os
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.multiprocessing.spawn import spawn
from torch.utils.checkpoint import checkpoint

from attention_residuals.models import Decoder
from attention_residuals.streams import AttnRes, Sublayers

from .support import assert_gradients_equal_to_rounding, loss_and_gradients, randomise_depth, small_decoder

RANKS = 2


def checkpointed_steps(model: Decoder) -> None:
    """Have every step of `model` recomputed in the backward."""
    model.step = partial(checkpoint, model.step, use_reentrant=False)


def on_one_rank(rank: int, folder: Path, block: int, recompute: bool) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", RANK=str(rank), WORLD_SIZE=str(RANKS))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder / 'rendezvous'}", rank=rank, world_size=RANKS)
    try:
        model = small_decoder(AttnRes(Sublayers(block)), layers=5)
        randomise_depth(model)
        _, _, expected = loss_and_gradients(model)
        model.zero_grad()
        mesh = init_device_mesh("cpu", (RANKS,))
        for sublayer in model.sublayers.values():
            fully_shard(sublayer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        if recompute:
            checkpointed_steps(model)
        _, _, sharded = loss_and_gradients(model)
        grads = {name: grad.full_tensor() if isinstance(grad, DTensor) else grad for name, grad in sharded.items()}
        assert_gradients_equal_to_rounding(grads, expected)
        (folder / f"done-{rank}").touch()
    finally:
        dist.destroy_process_group()


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("block", [1, 4])
def test_gradients_of_a_sharded_model(block: int, recompute: bool, tmp_path: Path) -> None:
    spawn(on_one_rank, args=(tmp_path, block, recompute), nprocs=RANKS)
    assert len(list(tmp_path.glob("done-*"))) == RANKS
