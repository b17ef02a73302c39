"""Experts whose parameters are kept in shares: steps and biases are those of the whole model."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from attention_residuals.distributed.layout import Parallel
from attention_residuals.distributed.mesh import open_mesh
from attention_residuals.distributed.ranks import run_on_ranks
from attention_residuals.distributed.sharding import shard_parameters
from attention_residuals.models import Decoder, DecoderConfig, build_decoder, init_decoder, recompute_steps
from attention_residuals.nn import MixtureOfExperts, update_router_biases
from attention_residuals.streams import AttnRes, Sublayers
from attention_residuals.train.losses import token_losses
from attention_residuals.train.stacked_muon import StackedMuon


def build(experts: int) -> Decoder:
    config = DecoderConfig(13, 2, 8, 2, 2, 4, 12, residual=AttnRes(Sublayers(3)))
    model = build_decoder(config, seed=0)
    for i in (1, 3):
        model.sublayers[str(i)] = MixtureOfExperts(8, 6, experts, 2)
    init_decoder(model, seed=0)
    return model.double()


def total(loads: Tensor) -> Tensor:
    dist.all_reduce(loads)
    return loads


def check(experts: int) -> None:
    tokens = torch.randint(13, (4, 9), generator=torch.Generator().manual_seed(0))
    whole, shared = build(experts), build(experts)
    shard_parameters(shared, shared.sublayers, open_mesh(Parallel(shards=2))["shard"], torch.float32)
    recompute_steps(shared, lambda _: True)
    stacks = ("sublayers.1.gate.weight", "sublayers.3.output.weight")
    optimizers = [StackedMuon([model.get_parameter(name) for name in stacks], lr=0.1) for model in (whole, shared)]
    for _ in range(2):
        token_losses(whole, tokens).mean().backward()
        for part in tokens.chunk(2)[dist.get_rank()].split(1):
            (token_losses(shared, part).mean() / 2).backward()
        for optimizer in optimizers:
            optimizer.step()
        loads, expected = update_router_biases(shared, 0.1, total), update_router_biases(whole, 0.1)
        for name, load in expected.items():
            assert torch.equal(loads[name], load) and load.sum() == 4 * 8 * 2
    for name in stacks:
        stack = shared.get_parameter(name)
        assert isinstance(stack, DTensor)
        # The gradients differ in float64's last digits, which bfloat16 shows as one of its own now and then.
        difference = (stack.full_tensor() - whole.get_parameter(name)).abs().max()
        assert difference <= 0.2 * torch.finfo(torch.bfloat16).eps


def two_ranks(rank: int, folder: Path) -> None:
    for experts in (6, 5):  # 5: the first rank has one more
        check(experts)
    (folder / f"done-{rank}").touch()


@pytest.mark.dist
def test_shares_of_experts_are_stepped_and_balanced_as_the_whole(tmp_path: Path) -> None:
    run_on_ranks(2, tmp_path, two_ranks)
    assert len(list(tmp_path.glob("done-*"))) == 2
