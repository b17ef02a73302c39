"""Every name of a residual scheme: it trains, its config comes back from JSON, and it decodes with a cache."""

import dataclasses

import pytest
import torch

from attention_residuals import Decoder, DecoderConfig, build_decoder
from attention_residuals.configs import from_plain, to_plain
from attention_residuals.experiments.arms import RIVALS, residual_of
from attention_residuals.inference import GrowingCache
from attention_residuals.models import parameter_roles
from attention_residuals.train import AdamW, Muon, build_optimizers, token_losses

LAYERS = 2
BATCH = torch.arange(3, 69).view(2, 33)

each_name = pytest.mark.parametrize("name", RIVALS)

DEAD_AT_THE_START = {"rezero": "sublayers."}
"""Parameters whose gradient is exactly zero in the first step: the gain on them is."""


def decoder(name: str) -> Decoder:
    return build_decoder(DecoderConfig.from_depth(LAYERS, residual=residual_of(name)), seed=0)


def loss(model: Decoder) -> torch.Tensor:
    return token_losses(model, BATCH).mean()


@each_name
@pytest.mark.parametrize("optimizer", [AdamW(), Muon()], ids=lambda config: type(config).__name__)
def test_a_step_of_training_lowers_the_loss(name: str, optimizer: AdamW | Muon) -> None:
    model = decoder(name)
    optimizers = build_optimizers(model, optimizer)
    before = loss(model)
    before.backward()
    dead = DEAD_AT_THE_START.get(name)
    for parameter, value in model.named_parameters():
        assert value.grad is not None, f"{parameter} has no gradient"
        assert value.grad.isfinite().all(), parameter
        assert dead is None or not parameter.startswith(dead) or not value.grad.any()
    optimizers.step()
    after = loss(model)
    assert after < before
    assert all(value.isfinite().all() for value in model.parameters())


@each_name
def test_two_steps_move_every_parameter(name: str) -> None:
    """The second one what a zero in front of it kept still in the first."""
    model = decoder(name)
    start = {parameter: value.detach().clone() for parameter, value in model.named_parameters()}
    optimizers = build_optimizers(model, AdamW())
    for _ in range(2):
        optimizers.zero_grad()
        loss(model).backward()
        optimizers.step()
    for parameter, value in model.named_parameters():
        assert not torch.equal(value, start[parameter]), parameter


@each_name
def test_initialisation_keeps_what_a_stream_starts_from(name: str) -> None:
    """The model is built without memory and filled by role; the stream alone knows where it starts."""
    config = DecoderConfig.from_depth(LAYERS, residual=residual_of(name))
    expected = config.residual.build(config.sublayers, config.width).state_dict()
    found = decoder(name).stream.state_dict()
    assert found.keys() == expected.keys()
    for parameter, value in found.items():
        assert torch.equal(value, expected[parameter]), parameter
    assert parameter_roles(decoder(name)).keys() == dict(decoder(name).named_parameters()).keys()


@each_name
def test_a_config_comes_back_from_json(name: str) -> None:
    config = dataclasses.replace(DecoderConfig.from_depth(LAYERS), residual=residual_of(name))
    assert from_plain(DecoderConfig, to_plain(config)) == config


@each_name
def test_a_cache_changes_no_logit(name: str) -> None:
    model = decoder(name).double()
    with torch.no_grad():
        for n, parameter in enumerate(model.stream.parameters()):
            generator = torch.Generator().manual_seed(n)
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
        text = BATCH[:, :12]
        expected, cache = model(text), GrowingCache()
        for begin, end in ((0, 5), (5, 6), (6, 12)):
            context = model.context(torch.arange(begin, end).expand(2, -1), cache=cache)
            torch.testing.assert_close(model(text[:, begin:end], context), expected[:, begin:end], rtol=0, atol=1e-10)
