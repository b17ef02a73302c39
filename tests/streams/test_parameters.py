"""Depth parameters: their names, their initial values, and which reads have none."""

import pytest
import torch

from attention_residuals.models import init_weights
from attention_residuals.streams import AttnRes, BlockSize, Layers, Sublayers

from .support import loss_and_gradients, randomise_depth, small_decoder


@pytest.mark.parametrize("two_phase", [False, True])
@pytest.mark.parametrize("size", [Sublayers(1), Layers(2)])
def test_names(size: BlockSize, two_phase: bool) -> None:
    stream = AttnRes(size, two_phase=two_phase).build(6, width=4)
    keys = ["1", "2", "3", "4", "5", "output"]
    depth = [f"{kind}.{key}" for kind in ("queries", "key_norms") for key in keys]
    norms = [f"pre_norms.{i}" for i in range(6)]
    assert {name for name, _ in stream.named_parameters()} == {*norms, *depth}
    assert all(parameter.shape == (4,) for parameter in stream.parameters())


def test_names_without_output_read_and_pre_norms() -> None:
    stream = AttnRes(output_read=False).build(3, width=4, pre_norm=False)
    assert {name for name, _ in stream.named_parameters()} == {
        f"{kind}.{i}" for kind in ("queries", "key_norms") for i in (1, 2)
    }


def test_a_fresh_stream_has_zero_queries_and_norms_of_one() -> None:
    for name, parameter in AttnRes().build(6, width=4).named_parameters():
        assert torch.equal(parameter, torch.full((4,), 0.0 if "queries" in name else 1.0)), name


def test_initialisation_makes_queries_exactly_zero() -> None:
    model = small_decoder(AttnRes(Sublayers(4)), layers=3)
    randomise_depth(model)
    init_weights(model, seed=5)
    for name, parameter in model.stream.named_parameters():
        expected = torch.zeros_like(parameter) if name.startswith("queries.") else torch.ones_like(parameter)
        assert torch.equal(parameter, expected), name


@pytest.mark.parametrize("size", [Sublayers(1), Sublayers(4)])
def test_every_parameter_has_a_gradient(size: BlockSize) -> None:
    """A parameter without one stops data parallel training and ages in the optimiser for nothing."""
    model = small_decoder(AttnRes(size), layers=3)
    randomise_depth(model)
    _, _, grads = loss_and_gradients(model)
    assert grads.keys() == {name for name, _ in model.named_parameters()}
    assert all(grad.abs().max() > 0 for grad in grads.values())
