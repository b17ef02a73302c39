"""Recomputed steps: the chosen ones run twice, copies of a model have their own, and a cache is never filled twice."""

import copy

import pytest
import torch

from attention_residuals import AttnRes, Decoder, DecoderConfig, build_decoder
from attention_residuals.inference import GrowingCache
from attention_residuals.models import keep_steps, recompute_steps


@pytest.fixture
def model() -> Decoder:
    return build_decoder(DecoderConfig.from_depth(2, residual=AttnRes()), seed=0)


def runs(model: Decoder, **options: object) -> list[int]:
    """Which sublayers ran, forward and backward together."""
    calls: list[int] = []
    hooks = [
        sublayer.register_forward_pre_hook(lambda *_, i=i: calls.append(i))
        for i, sublayer in enumerate(model.sublayers.values())
    ]
    cache = GrowingCache() if options.get("cached") else None
    model(torch.zeros(1, 4, dtype=torch.int64), model.context(torch.arange(4)[None], cache=cache)).sum().backward()
    for hook in hooks:
        hook.remove()
    return sorted(calls)


def test_the_chosen_steps_run_twice(model: Decoder) -> None:
    recompute_steps(model, lambda i: i != 1)
    assert runs(model) == [0, 0, 1, 2, 2, 3, 3]
    keep_steps(model)
    assert runs(model) == [0, 1, 2, 3]
    keep_steps(model)


def test_steps_that_fill_a_cache_run_once(model: Decoder) -> None:
    recompute_steps(model, lambda _: True)
    assert runs(model, cached=True) == [0, 1, 2, 3]


def test_a_copy_has_steps_of_its_own(model: Decoder) -> None:
    recompute_steps(model, lambda _: True)
    copied = copy.deepcopy(model)
    assert runs(copied) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert all(value.grad is None for value in model.parameters())
    assert copied.embedding.weight.grad is not None


def test_every_way_of_checkpointing_is_made_non_reentrant(model: Decoder) -> None:
    seen: list[dict[str, object]] = []

    def spied(function, *arguments: object, **options: object):
        seen.append(options)
        return function(*arguments)

    recompute_steps(model, lambda i: i == 2, spied)
    runs(model)
    assert seen == [{"use_reentrant": False}]
