"""Experts spread over ranks with tokens of their own: loss and gradients of the whole model, and what is sent."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.debug import CommDebugMode

from attention_residuals import InputError
from attention_residuals.distributed.expert_parallel import share_experts, spread_experts
from attention_residuals.distributed.layout import Parallel
from attention_residuals.distributed.mesh import open_expert_mesh, open_mesh
from attention_residuals.distributed.ranks import run_on_ranks
from attention_residuals.distributed.sharding import shard_parameters
from attention_residuals.models import (
    Decoder,
    DecoderConfig,
    Experts,
    GroupedQuery,
    HybridConfig,
    build_decoder,
    recompute_steps,
)
from attention_residuals.nn import MixtureOfExperts
from attention_residuals.streams import AttnRes, Sublayers
from attention_residuals.train.stacked_muon import StackedMuon

from .test_pipeline import VOCABULARY, mean_loss, vary_depth

WIDTH, TOP_K, SEQUENCES, TOKENS = 8, 3, 8, 5


def config_of(experts: int) -> HybridConfig:
    kinds = (Experts(6, experts, TOP_K, scale=2.0), Experts(6, experts, TOP_K, shared=0))
    return HybridConfig(VOCABULARY, WIDTH, (GroupedQuery(2, 1, 4),) * 2, kinds, residual=AttnRes(Sublayers(3)))


def draw_tokens() -> Tensor:
    shape = (SEQUENCES, TOKENS + 1)
    return torch.randint(VOCABULARY, shape, generator=torch.Generator().manual_seed(0))


def build(experts: int, unused: int = 0) -> Decoder:
    """A model, whose last `unused` experts no token chooses."""
    model = build_decoder(config_of(experts), seed=0, dtype=torch.float64)
    vary_depth(model)
    for module in model.modules():
        if isinstance(module, MixtureOfExperts):
            module.router.bias[experts - unused :] = -10.0
    return model


def spread(model: Decoder, layout: Parallel) -> Decoder:
    mesh, expert_mesh = open_mesh(layout), open_expert_mesh(layout)
    assert expert_mesh is not None
    spread_experts(model, expert_mesh["expert"])
    share_experts(model, expert_mesh, torch.float32)
    names = ("replica", "shard") if layout.replicas > 1 else ("shard",)
    shard_parameters(model, model.sublayers, mesh[names], torch.float32)
    return model


def full(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def require_close(found: Tensor, expected: Tensor, name: str) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10, msg=lambda text: f"{name}: {text}")


def check(layout: Parallel, experts: int, unused: int = 0, recompute: bool = False) -> None:
    """One backward pass of the spread model against that of the whole one on all tokens."""
    tokens, ranks = draw_tokens(), dist.get_world_size()
    whole, model = build(experts, unused), spread(build(experts, unused), layout)
    own = tokens.chunk(ranks)[dist.get_rank()]
    if recompute:
        recompute_steps(model, lambda _: True)
    expected = whole(tokens[:, :-1])
    logits = model(own[:, :-1])
    require_close(logits, expected.chunk(ranks)[dist.get_rank()], "logits")
    mean_loss(expected, tokens[:, 1:]).backward()
    mean_loss(logits, own[:, 1:]).backward()
    values, held = dict(whole.named_parameters()), dict(model.named_parameters())
    assert held.keys() == values.keys()
    for name, parameter in held.items():
        require_close(full(parameter.grad), full(values[name].grad), f"{layout} {name}")
    stacks = [name for name in held if name.endswith(("gate.weight", "output.weight")) and held[name].ndim == 3]
    assert len(stacks) == 4
    for name in stacks:
        parameter, grad = held[name], values[name].grad
        assert isinstance(parameter, DTensor) and grad is not None
        assert parameter.to_local().shape[0] <= -(-experts // (layout.experts * layout.expert_shards))
        assert not grad[experts - unused :].any()


def check_alone() -> None:
    """Without anything else: gradients of experts are complete, those of the rest are this rank's."""
    tokens = draw_tokens()
    whole, model = build(4), build(4)
    mesh = open_expert_mesh(Parallel(replicas=2, experts=2))
    assert mesh is not None
    spread_experts(model, mesh["expert"])
    rows = tokens[:3] if dist.get_rank() == 0 else tokens[3:4]  # any numbers of tokens
    mean_loss(model(rows[:, :-1]), rows[:, 1:]).backward()
    parts = (tokens[:3], tokens[3:4])
    loss = sum(mean_loss(whole(part[:, :-1]), part[:, 1:]) for part in parts) / 2
    assert isinstance(loss, Tensor)
    loss.backward()
    for (name, parameter), (_, expected) in zip(model.named_parameters(), whole.named_parameters(), strict=True):
        grad = full(parameter.grad)
        if not isinstance(parameter, DTensor):
            dist.all_reduce(grad)
            grad /= 2
        require_close(grad, full(expected.grad), name)


def check_muon(layout: Parallel, experts: int) -> None:
    """Each rank orthogonalises its own matrices, and sends nothing."""
    tokens = draw_tokens()
    own = tokens.chunk(dist.get_world_size())[dist.get_rank()]
    whole, model = build(experts), spread(build(experts), layout)
    names = [name for name, parameter in whole.named_parameters() if parameter.ndim == 3]
    optimizers = [StackedMuon([one.get_parameter(name) for name in names], lr=0.02) for one in (whole, model)]
    for _ in range(10):
        for one, batch in ((whole, tokens), (model, own)):
            one.zero_grad()
            mean_loss(one(batch[:, :-1]), batch[:, 1:]).backward()
        with CommDebugMode() as sent:
            for optimizer in optimizers:
                optimizer.step()
        assert sent.get_total_counts() == 0
    for name in names:
        difference = (full(model.get_parameter(name)) - whole.get_parameter(name)).abs().max()
        assert difference <= 0.2 * torch.finfo(torch.bfloat16).eps, (name, difference)


def check_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each way one row of the width for every choice of another rank's expert, and as much in the backward."""
    model, rank, experts = build(4), dist.get_rank(), 4
    mixture = model.sublayers["1"]
    assert isinstance(mixture, MixtureOfExperts)
    x = torch.randn(10 + rank, WIDTH, dtype=torch.float64, requires_grad=True)
    chosen = mixture.router(x).experts
    away = int(((chosen // (experts // 2)) != rank).sum())
    here = torch.tensor(away)
    dist.all_reduce(here)
    mesh = open_expert_mesh(Parallel(replicas=2, experts=2))
    assert mesh is not None
    spread_experts(mixture, mesh["expert"])
    sent: list[int] = []
    original = dist.all_to_all_single

    def count(output: Tensor, given: Tensor, coming: Any = None, going: Any = None, group: Any = None) -> None:
        sizes = going or [len(given) // 2] * 2
        sent.append(given.narrow(0, (1 - rank) * sizes[0], sizes[1 - rank]).nbytes)
        original(output, given, coming, going, group)

    monkeypatch.setattr(dist, "all_to_all_single", count)
    mixture(x).sum().backward()
    row, others = WIDTH * x.element_size(), int(here) - away
    assert sent == [8 * experts // 2, row * away, row * others, row * away, row * others]


def check_refusals() -> None:
    expert_mesh = open_expert_mesh(Parallel(replicas=2, experts=2))
    assert expert_mesh is not None
    with pytest.raises(InputError, match="experts is 2, which does not divide the 5 experts"):
        spread_experts(build(5), expert_mesh["expert"])
    with pytest.raises(InputError, match="no experts to spread"):
        spread_experts(build_decoder(DecoderConfig(11, 1, 8, 2, 1, 4, 6), seed=0), expert_mesh["expert"])


def two_ranks(rank: int, folder: Path) -> None:
    for layout in (Parallel(replicas=2, experts=2), Parallel(shards=2, experts=2)):
        check(layout, 6)
        check(layout, 6, unused=3, recompute=True)  # no row for the other rank
    check_muon(Parallel(shards=2, experts=2), 6)
    check_alone()
    with pytest.MonkeyPatch.context() as patch:
        check_bytes(patch)
    check_refusals()
    (folder / f"done-{rank}").touch()


LAYOUTS = (
    Parallel(replicas=4, experts=2),
    Parallel(shards=4, experts=2),
    Parallel(shards=4, experts=4),
    Parallel(replicas=2, shards=2, experts=2),
    Parallel(replicas=2, shards=2, experts=4),
)


def four_ranks(rank: int, folder: Path) -> None:
    for layout in LAYOUTS:
        check(layout, 12)
        check(layout, 12, unused=6)
    check(LAYOUTS[1], 6, recompute=True)  # 3 of each, 2 and 1 of them
    check_muon(LAYOUTS[1], 6)
    (folder / f"done-{rank}").touch()


@pytest.mark.dist
@pytest.mark.parametrize(("ranks", "body"), [(2, two_ranks), (4, four_ranks)])
def test_a_model_whose_experts_are_spread_is_the_whole_one(ranks: int, body, tmp_path: Path) -> None:
    run_on_ranks(ranks, tmp_path, body)
    assert len(list(tmp_path.glob("done-*"))) == ranks
