"""How many tokens each expert is given, and biases that make it the same for all."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attention_residuals.errors import InputError
from attention_residuals.nn.router import Router


def _own(loads: Tensor) -> Tensor:
    return loads


def take_router_loads(model: nn.Module, total: Callable[[Tensor], Tensor] = _own) -> dict[str, Int[Tensor, "experts"]]:
    """Tokens given to each expert since the last call, by the name of the router; counting begins anew.

    What went forward and backward is counted, micro-batches one after another included.

    Args:
        total: of several processes, each with tokens of its own: makes their sum of the loads of one, `[n]` int64, for
            example by an all-reduce. It is called once, on every process alike.
    """
    found = {name: module for name, module in model.named_modules() if isinstance(module, Router)}
    if not found:
        return {}
    loads = []
    for router in found.values():
        empty = torch.zeros(router.experts, dtype=torch.int64, device=router.bias.device)
        loads.append(empty if router.load is None else router.load)
        router.load = None
    shares = total(torch.cat(loads)).split([router.experts for router in found.values()])
    return dict(zip(found, shares, strict=True))


@torch.no_grad()
def update_router_biases(
    model: nn.Module, rate: float, total: Callable[[Tensor], Tensor] = _own
) -> dict[str, Int[Tensor, "experts"]]:
    """After an optimiser's step: bias += rate x sign(mean load - load), for every expert (arXiv 2408.15664).

    Does nothing in a model without experts, and nothing to a router that was given no token. `rate` is in units of a
    score, which lies between 0 and 1; DeepSeek-V3 has 0.001. `total` as in `take_router_loads`.

    Returns the loads it went by, as `take_router_loads` does.

    Raises:
        InputError: a rate below 0, or none.
    """
    if not (math.isfinite(rate) and rate >= 0):
        raise InputError(f"rate of router biases is {rate}; it must be a number of at least 0, for example 0.001")
    loads = take_router_loads(model, total)
    for name, load in loads.items():
        router = model.get_submodule(name)
        assert isinstance(router, Router)
        router.bias += rate * (load.sum() - router.experts * load).sign()  # whole numbers: no rounding picks a sign
    return loads


@contextmanager
def loads_apart(model: nn.Module) -> Iterator[None]:
    """A backward inside is no part of training: the loads counted before it come back after it."""
    routers = [module for module in model.modules() if isinstance(module, Router)]
    before = [router.load for router in routers]
    for router in routers:
        router.load = None
    try:
        yield
    finally:
        for router, load in zip(routers, before, strict=True):
            router.load = load


def load_shares(load: Int[Tensor, "experts"]) -> Float[Tensor, "experts"]:
    """The share of all choices that fell on each expert, float64; 1 / experts in balance, zeros if there were none."""
    return load.double() / load.sum().clamp_min(1)


def load_peak(load: Int[Tensor, "experts"]) -> float:
    """The largest load over the mean: 1 in balance, at most experts / top_k; 0 if there were no tokens."""
    return float(load_shares(load).max() * load.numel())
