"""Tensor parallel with sharded tokens, FSDP2 and HSDP, alone and together: loss and gradients of the whole model."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from attention_residuals.distributed.layout import Parallel
from attention_residuals.distributed.mesh import open_mesh
from attention_residuals.distributed.ranks import run_on_ranks
from attention_residuals.distributed.sharding import replicate, shard_parameters
from attention_residuals.distributed.tensor import own_tokens, reduce_whole, shard_matrices, whole_parameters
from attention_residuals.models import DecoderConfig, build_decoder
from attention_residuals.streams import Additive, AttnRes, Residual, Sublayers

from .test_pipeline import VOCABULARY, mean_loss, vary_depth

RESIDUALS: tuple[Residual, ...] = (Additive(), AttnRes(Sublayers(4)), AttnRes())


def config_of(residual: Residual) -> DecoderConfig:
    return DecoderConfig(VOCABULARY, 3, 8, 4, 2, 4, 12, residual=residual)


def check(parallel: Parallel, residual: Residual) -> None:
    """One backward pass of the shared model against that of the whole one."""
    tokens = torch.randint(VOCABULARY, (8, 9), generator=torch.Generator().manual_seed(0))
    whole, model = (build_decoder(config_of(residual), seed=0, dtype=torch.float64) for _ in range(2))
    for one in (whole, model):
        vary_depth(one)
    expected = mean_loss(whole(tokens[:, :-1]), tokens[:, 1:])
    expected.backward()

    mesh = open_mesh(parallel)
    if parallel.tensor > 1:
        shard_matrices(model, mesh["tensor"])
    sharded = parallel.shards > 1 or (parallel.tensor > 1 and parallel.replicas > 1)
    if sharded:
        names = ("replica", "shard") if parallel.replicas > 1 else ("shard",)
        shard_parameters(model, model.sublayers, mesh[names], torch.float32)
    forward = replicate(model, mesh["replica"]) if parallel.replicas > 1 and not sharded else model
    number = mesh["replica"].get_local_rank() * parallel.shards + mesh["shard"].get_local_rank()
    rows = tokens.chunk(parallel.data_ranks)[number]
    inputs, targets = (own_tokens(part, mesh["tensor"]) for part in (rows[:, :-1], rows[:, 1:]))
    loss = mean_loss(forward(inputs), targets) / parallel.tensor
    loss.backward()
    if parallel.tensor > 1:
        reduce_whole(whole_parameters(model, mesh["tensor"]), mesh["tensor"])

    total = loss.detach().clone()
    dist.all_reduce(total)
    torch.testing.assert_close(total / parallel.data_ranks, expected.detach(), rtol=0, atol=1e-10)
    gradients = {name: parameter.grad for name, parameter in whole.named_parameters()}
    found = dict(model.named_parameters())
    assert found.keys() == gradients.keys()
    for name, parameter in found.items():
        grad = parameter.grad.full_tensor() if isinstance(parameter.grad, DTensor) else parameter.grad
        torch.testing.assert_close(grad, gradients[name], rtol=0, atol=1e-10, msg=name)


def two_ranks(rank: int, folder: Path) -> None:
    for residual in RESIDUALS:
        for parallel in (Parallel(tensor=2), Parallel(shards=2), Parallel(replicas=2)):
            check(parallel, residual)
    (folder / f"done-{rank}").touch()


def four_ranks(rank: int, folder: Path) -> None:
    for parallel in (Parallel(tensor=2, shards=2), Parallel(replicas=2, shards=2), Parallel(tensor=2, replicas=2)):
        check(parallel, AttnRes(Sublayers(4)))
    (folder / f"done-{rank}").touch()


@pytest.mark.dist
@pytest.mark.parametrize(("ranks", "body"), [(2, two_ranks), (4, four_ranks)])
def test_a_shared_model_is_the_whole_one(ranks: int, body, tmp_path: Path) -> None:
    run_on_ranks(ranks, tmp_path, body)
    assert len(list(tmp_path.glob("done-*"))) == ranks
