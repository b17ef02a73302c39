"""Streams with one running tensor: rescaled residual, ReZero, LayerScale and Highway."""

import math

import pytest
import torch
from torch import Tensor

from attention_residuals import AttnRes, InputError
from attention_residuals.streams import Additive, Highway, LayerScale, Rescaled, ReZero

from ..support import assert_equal_to_rounding, draw
from .support import SUBLAYERS, TOKENS, WIDTH, Parameters, assert_follows, build, call, differs, reads


def rescaled(p: Parameters, x: Tensor, sublayers: int) -> list[Tensor]:
    found = [x]
    for layer in range(1, sublayers + 1):
        x = layer / (layer + 1) * x + call(p, layer - 1, x) / (layer + 1)
        found.append(x)
    return found


def rezero(p: Parameters, x: Tensor, sublayers: int) -> list[Tensor]:
    found = [x]
    for i in range(sublayers):
        x = x + p[f"gains.{i}"] * call(p, i, x)
        found.append(x)
    return found


def layerscale(p: Parameters, x: Tensor, sublayers: int) -> list[Tensor]:
    found = [x]
    for i in range(sublayers):
        x = x + torch.diag(p[f"diagonals.{i}"]) @ call(p, i, x)
        found.append(x)
    return found


def highway(p: Parameters, x: Tensor, sublayers: int) -> list[Tensor]:
    found = [x]
    for i in range(sublayers):
        logit = (p[f"gate_weights.{i}"][0] * x).sum() + p[f"gate_biases.{i}"][0]
        gate = 1 / (1 + torch.exp(-logit))
        x = (1 - gate) * x + gate * call(p, i, x)
        found.append(x)
    return found


def test_rescaled_follows_its_formula() -> None:
    assert_follows(Rescaled(), rescaled)


def test_rezero_follows_its_formula() -> None:
    assert_follows(ReZero(), rezero)
    assert_follows(ReZero(), rezero, pre_norm=False)


def test_layerscale_follows_its_formula() -> None:
    assert_follows(LayerScale(), layerscale)


def test_highway_follows_its_formula() -> None:
    assert_follows(Highway(), highway)


def test_rescaled_is_attention_residuals_with_zero_queries() -> None:
    mean = build(AttnRes(two_phase=False), trained=False)
    embedding = draw(TOKENS, WIDTH)
    assert_equal_to_rounding(reads(build(Rescaled(), trained=False), embedding), reads(mean, embedding))


def test_rezero_starts_as_the_identity() -> None:
    embedding = draw(TOKENS, WIDTH)
    assert torch.equal(reads(build(ReZero(), trained=False), embedding), embedding.expand(SUBLAYERS + 1, TOKENS, WIDTH))


def test_a_gate_of_one_everywhere_is_the_standard_residual() -> None:
    embedding, expected = draw(TOKENS, WIDTH), reads(build(Additive(), trained=False), draw(TOKENS, WIDTH))
    stream = build(ReZero(), trained=False)
    with torch.no_grad():
        for i in range(SUBLAYERS):
            stream.get_parameter(f"gains.{i}").fill_(1)
    assert_equal_to_rounding(reads(stream, embedding), expected)
    assert_equal_to_rounding(reads(build(LayerScale(scale=1.0), trained=False), embedding), expected)


@pytest.mark.parametrize(("layers", "expected"), [(1, 0.1), (18, 0.1), (19, 1e-5), (24, 1e-5), (25, 1e-6), (90, 1e-6)])
def test_layerscale_starts_smaller_the_deeper(layers: int, expected: float) -> None:
    stream = LayerScale().build(2 * layers, WIDTH)
    diagonals = torch.stack([stream.get_parameter(f"diagonals.{i}") for i in range(2 * layers)])
    assert torch.equal(diagonals, torch.full((2 * layers, WIDTH), expected))
    assert LayerScale(sublayers_per_layer=1).starts_from(layers) == expected
    assert LayerScale(scale=0.5).starts_from(layers) == 0.5


def test_highway_starts_by_carrying() -> None:
    """A gate of sigmoid(-2), the same for every token."""
    gate, embedding = 1 / (1 + math.exp(2)), draw(TOKENS, WIDTH)
    found = reads(build(Highway(), 1, trained=False), embedding)
    output = call({"pre_norms.0": torch.ones(WIDTH, dtype=torch.float64)}, 0, embedding[0])
    assert_equal_to_rounding(found[1, 0], (1 - gate) * embedding[0] + gate * output)


def test_the_highway_gate_sees_its_token() -> None:
    stream, embedding = build(Highway()), draw(TOKENS, WIDTH)
    before = reads(stream, embedding)
    with torch.no_grad():
        stream.get_parameter("gate_weights.0").zero_()
    assert differs(reads(stream, embedding)[1], before[1])


def test_what_is_no_number_is_refused() -> None:
    with pytest.raises(InputError, match="gate_bias is inf; it must be a finite number"):
        Highway(gate_bias=math.inf)
    with pytest.raises(InputError, match="scale is nan; it must be a finite number"):
        LayerScale(scale=math.nan)
    with pytest.raises(InputError, match="sublayers_per_layer is 0"):
        LayerScale(sublayers_per_layer=0)
