"""Names of models on the command line."""

import pytest
import torch

from attention_residuals import (
    Additive,
    AttnRes,
    DecoderConfig,
    InputError,
    Query,
    ReadScale,
    Sublayers,
    Weighting,
    build_decoder,
)
from attention_residuals.experiments.arms import RIVALS, VARIANTS, residual_of
from attention_residuals.train import AdamW, build_optimizers, token_losses

NAMES = [
    *RIVALS,
    *(f"{stem}+{name}" for stem in ("full", "block3") for name in VARIANTS),
    "full+window2",
    "block3+heads4",
]


def test_names_stand_for_streams() -> None:
    assert residual_of("standard") == Additive()
    assert residual_of("full") == AttnRes(Sublayers(1))
    assert residual_of("block") == AttnRes(Sublayers(4))
    assert residual_of("block6+sum") == AttnRes(Sublayers(6), scale=ReadScale.SUM)
    assert residual_of("full+window8+sigmoid") == AttnRes(window_sublayers=8, weighting=Weighting.SIGMOID)
    assert residual_of("block4+heads16+dynamic") == AttnRes(Sublayers(4), heads=16, query=Query.PROJECTED)
    assert residual_of("full+nonorm") == AttnRes(key_norm=False)


@pytest.mark.parametrize(
    "name", ["", "Standard", "full4", "block:4", "block+mean", "standard+sum", "block-1", "full+window", "full+"]
)
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(InputError, match=f"'{name.replace('+', '.')}' is no model; choose full, block"):
        residual_of(name)


@pytest.mark.parametrize("name", ["full+sum+sum", "full+dynamic+static", "full+window4+window8"])
def test_a_field_is_set_once(name: str) -> None:
    with pytest.raises(InputError, match="is no model"):
        residual_of(name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("block4+window8", "window_sublayers is 8 and block is"),
        ("full+static+nonorm", "query is Query.NONE and key_norm is False"),
        ("full+heads0", "heads is 0"),
    ],
)
def test_variants_that_contradict_each_other_are_refused(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        residual_of(name)


@pytest.mark.parametrize("name", NAMES)
def test_every_name_trains(name: str) -> None:
    model = build_decoder(DecoderConfig.from_depth(2, residual=residual_of(name)), seed=0)
    batch = torch.arange(1, 67).view(2, 33)
    optimizers, losses = build_optimizers(model, AdamW()), []
    for _ in range(3):
        loss = token_losses(model, batch).mean()
        optimizers.zero_grad()
        loss.backward()
        for parameter_name, parameter in model.named_parameters():
            assert parameter.grad is not None and parameter.grad.isfinite().all(), parameter_name
        optimizers.set_rate(1.0)
        optimizers.step()
        losses.append(loss.item())
    assert losses[2] < losses[0]
    assert all(parameter.grad.abs().max() > 0 for parameter in model.stream.parameters() if parameter.grad is not None)


def test_a_block_of_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="count=0"):
        residual_of("block0")
