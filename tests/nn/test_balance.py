"""Loads are counted once a training step, biases follow their rule, and a bad imbalance goes away."""

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from attention_residuals import AttnRes, Decoder, DecoderConfig, InputError, Sublayers, build_decoder
from attention_residuals.models import init_weights, recompute_steps
from attention_residuals.nn import (
    MixtureOfExperts,
    Router,
    load_peak,
    load_shares,
    loads_apart,
    take_router_loads,
    update_router_biases,
)

EXPERTS, TOP_K = 6, 2
NAMES = ["sublayers.1.router", "sublayers.3.router"]


def decoder() -> Decoder:
    config = DecoderConfig.from_depth(2, residual=AttnRes(Sublayers(3)))
    model = build_decoder(config, seed=0)
    for i in (1, 3):
        model.sublayers[str(i)] = MixtureOfExperts(config.width, 8, EXPERTS, TOP_K)
    init_weights(model, seed=0)
    return model


def router_of(model: Decoder, number: int) -> Router:
    found = model.get_submodule(NAMES[number])
    assert isinstance(found, Router)
    return found


def expected_loads(model: Decoder, *batches: Tensor) -> dict[str, Tensor]:
    """Counted by hand from what the routers choose."""
    found = dict.fromkeys(NAMES, torch.zeros(EXPERTS, dtype=torch.int64))

    def count(name: str):
        def hook(module, given, routing) -> None:
            found[name] = found[name] + torch.nn.functional.one_hot(routing.experts, EXPERTS).sum((0, 1))

        return hook

    hooks = [model.get_submodule(name).register_forward_hook(count(name)) for name in NAMES]
    with torch.no_grad():
        for batch in batches:
            model(batch)
    for hook in hooks:
        hook.remove()
    return found


def tokens(rows: int, seed: int = 0) -> Tensor:
    return torch.randint(256, (rows, 7), generator=torch.Generator().manual_seed(seed))


def assert_equal(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for name, load in ours.items():
        assert torch.equal(load, theirs[name]), name


@pytest.mark.parametrize("recomputed", ["none", "first", "all"])
def test_every_part_of_a_step_is_counted_once(recomputed: str) -> None:
    model, parts = decoder(), [tokens(2), tokens(3, 1), tokens(2, 2)]
    if recomputed != "none":
        recompute_steps(model, lambda i: recomputed == "all" or i < 2)
    for part in parts:
        model(part).square().mean().backward()
    model(tokens(5, 3))  # forward alone, as where a loss is only looked at
    loads = take_router_loads(model)
    assert_equal(loads, expected_loads(model, *parts))
    assert all(load.sum() == 7 * 7 * TOP_K for load in loads.values())
    assert all(not load.any() for load in take_router_loads(model).values()), "counting begins anew"


def test_a_forward_that_is_run_again_by_another_checkpoint_is_counted_once() -> None:
    torch.manual_seed(0)
    mixture, x = MixtureOfExperts(4, 3, EXPERTS, TOP_K), torch.randn(5, 4)
    for reentrant in (False, True):
        checkpoint(mixture, x.requires_grad_(), use_reentrant=reentrant).sum().backward()
        assert sum(load.sum() for load in take_router_loads(mixture).values()) == 5 * TOP_K


def test_biases_move_by_the_rate_against_the_load() -> None:
    model = decoder()
    router = router_of(model, 0)
    router.bias += 0.5
    router.load = torch.tensor([5, 3, 2, 2, 3, 3])  # the mean is 3
    loads = update_router_biases(model, 0.01)
    expected = 0.5 + 0.01 * torch.tensor([-1.0, 0, 1, 1, 0, 0])
    torch.testing.assert_close(router.bias, expected, rtol=1e-7, atol=0)
    assert not router_of(model, 1).bias.any(), "no tokens, no step"
    assert loads[NAMES[0]].tolist() == [5, 3, 2, 2, 3, 3] and router.load is None


def test_loads_of_several_processes_are_added_up() -> None:
    model, others = decoder(), torch.arange(2 * EXPERTS)
    router_of(model, 1).load = torch.tensor([1, 0, 0, 0, 0, 0])
    calls: list[Tensor] = []

    def total(loads: Tensor) -> Tensor:
        calls.append(loads)
        return loads + others

    loads = update_router_biases(model, 1.0, total)
    assert len(calls) == 1 and calls[0].tolist() == [0] * EXPERTS + [1, 0, 0, 0, 0, 0]
    assert [load.tolist() for load in loads.values()] == [[0, 1, 2, 3, 4, 5], [7, 7, 8, 9, 10, 11]]
    assert router_of(model, 0).bias.tolist() == [1, 1, 1, -1, -1, -1]


def test_a_model_without_experts_is_left_alone() -> None:
    model = build_decoder(DecoderConfig.from_depth(1), seed=0)
    assert update_router_biases(model, 0.001) == {} == take_router_loads(model)


def test_a_look_at_a_model_is_no_part_of_training() -> None:
    model = decoder()
    model(tokens(2)).mean().backward()
    with loads_apart(model):
        model(tokens(1, 1)).mean().backward()
        assert_equal(take_router_loads(model), expected_loads(model, tokens(1, 1)))
    assert_equal(take_router_loads(model), expected_loads(model, tokens(2)))


def uneven_training(rate: float, steps: int = 200) -> tuple[MixtureOfExperts, list[float], list[float]]:
    """Tokens that have much in common, and a router that sends it to two of eight experts: peaks and losses by step."""
    torch.manual_seed(0)
    mixture = MixtureOfExperts(16, 8, 8, TOP_K, shared=0)
    init_weights(mixture, seed=0)
    common, target = torch.randn(16), torch.randn(16, 16) / 4
    with torch.no_grad():
        mixture.router.matrix.weight[:2] += common
    optimizer, peaks, losses = torch.optim.Adam(mixture.parameters(), 3e-3), [], []
    for _ in range(steps):
        x = torch.randn(128, 16) + common
        loss = (mixture(x) - x @ target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        (load,) = update_router_biases(mixture, rate).values()
        peaks.append(load_peak(load))
        losses.append(loss.item())
    return mixture, peaks, losses


def test_a_bad_imbalance_goes_away() -> None:
    """The worst peak is 4, when two of eight experts have everything."""
    mixture, peaks, losses = uneven_training(rate=0.01)
    assert peaks[0] > 3.5 and sum(peaks[-50:]) / 50 < 1.5
    assert sum(losses[-50:]) / 50 < losses[0] / 3
    assert mixture.router.bias[:2].max() < mixture.router.bias.mean()
    untouched, peaks, _ = uneven_training(rate=0.0)
    assert min(peaks[-50:]) > 3 and not untouched.router.bias.any()


def test_summaries_of_a_load() -> None:
    load = torch.tensor([6, 2, 0, 0])
    assert load_shares(load).tolist() == [0.75, 0.25, 0, 0] and load_peak(load) == 3
    assert load_peak(torch.full((4,), 7)) == 1 and load_peak(torch.zeros(4, dtype=torch.int64)) == 0


@pytest.mark.parametrize("rate", [-0.1, float("nan"), float("inf")])
def test_a_rate_that_is_none_is_refused(rate: float) -> None:
    with pytest.raises(InputError, match=f"rate of router biases is {rate}; it must be a number of at least 0"):
        update_router_biases(decoder(), rate)
