"""Streams that norm the sum: post-norm, DeepNorm and SiameseNorm."""

import math

import pytest
import torch
from torch import Tensor

from attention_residuals import DecoderConfig, InputError, build_decoder
from attention_residuals.nn import SwiGLU
from attention_residuals.streams import Additive, DeepNorm, PostNorm, Residual, SiameseNorm, Stream
from attention_residuals.streams.rivals.siamesenorm import SiameseNormStream

from ..support import assert_equal_to_rounding, draw
from .support import SUBLAYERS, TOKENS, WIDTH, Parameters, assert_follows, build, call, differs, norm, reads


def postnorm(p: Parameters, x: Tensor, sublayers: int, carry: float = 1.0) -> list[Tensor]:
    found = [x]
    for i in range(sublayers):
        x = carry * x + call(p, i, x)
        if i + 1 < sublayers:
            x = norm(x, p[f"post_norms.{i}"])
        found.append(x)
    return found


def deepnorm(p: Parameters, x: Tensor, sublayers: int) -> list[Tensor]:
    layers = sublayers / 2
    return postnorm(p, x, sublayers, carry=(2 * layers) ** (1 / 4))


def siamese(p: Parameters, embedding: Tensor, sublayers: int) -> list[Tensor]:
    x, y, found = embedding, embedding, []
    for i in range(sublayers):
        x = norm(x, p[f"x_norms.{i}"])
        found.append(x + norm(y, p[f"y_norms.{i}"]))
        output = call(p, i, found[-1])
        layer = i // 2
        x, y = x + output / ((layer + 1) * 2) ** 0.5, y + output
    return [*found, norm(x, p["x_norms.output"]) + norm(y, p["y_norms.output"])]


def test_postnorm_follows_its_formula() -> None:
    assert_follows(PostNorm(), postnorm)


def test_deepnorm_follows_its_formula() -> None:
    assert_follows(DeepNorm(), deepnorm)


@pytest.mark.parametrize("pre_norm", [True, False])
def test_siamesenorm_follows_its_formula(pre_norm: bool) -> None:
    assert_follows(SiameseNorm(), siamese, pre_norm=pre_norm)


@pytest.mark.parametrize("residual", [PostNorm(), DeepNorm()])
@pytest.mark.parametrize("pre_norm", [True, False])
def test_there_are_no_pre_norms(residual: Residual, pre_norm: bool) -> None:
    """What a sublayer reads has been normed before, and the last norm is that of the network."""
    stream = residual.build(SUBLAYERS, WIDTH, pre_norm=pre_norm)
    assert [name for name, _ in stream.named_parameters()] == [f"post_norms.{i}" for i in range(SUBLAYERS - 1)]


@pytest.mark.parametrize("residual", [PostNorm(), DeepNorm()])
def test_sublayers_read_vectors_of_size_one(residual: Residual) -> None:
    found = reads(build(residual, trained=False), draw(TOKENS, WIDTH))
    sizes = found[1:SUBLAYERS].square().mean(-1).sqrt()
    torch.testing.assert_close(sizes, torch.ones_like(sizes), rtol=0, atol=1e-5)


@pytest.mark.parametrize("residual", [PostNorm(), DeepNorm()])
def test_the_head_sees_a_sum_that_is_not_yet_normed(residual: Residual) -> None:
    stream, embedding = build(residual), draw(TOKENS, WIDTH)
    state = stream.start(embedding)
    for i in range(SUBLAYERS):
        h, output = stream.read(state, i), draw(TOKENS, WIDTH, seed=20 + i)
        state = stream.write(state, i, output)
        carry = SUBLAYERS**0.25 if residual == DeepNorm() else 1
        assert_equal_to_rounding(stream.carried(state), carry * h + output)
    assert torch.equal(stream.finish(state), stream.carried(state))


def test_the_carry_of_deepnorm_matters() -> None:
    deep, post = build(DeepNorm()), build(PostNorm())
    assert differs(reads(deep, draw(TOKENS, WIDTH))[1:], reads(post, draw(TOKENS, WIDTH))[1:])


def output_size(residual: Residual, layers: int) -> float:
    """Standard deviation of an output matrix at the start, in units of in^-1/2."""
    config = DecoderConfig.from_depth(layers, residual=residual)
    mlp = build_decoder(config, seed=0).sublayers["1"]
    assert isinstance(mlp, SwiGLU)
    return mlp.output.weight.std().item() * config.mlp_width**0.5


def test_initial_sizes_of_outputs() -> None:
    layers = 6
    assert output_size(Additive(), layers) == pytest.approx((2 * layers) ** -0.5, rel=0.05)
    assert output_size(PostNorm(), layers) == pytest.approx(1, rel=0.05)
    beta = (8 * layers) ** -0.25
    assert output_size(DeepNorm(), layers) == pytest.approx(beta**2, rel=0.05)


def siamese_streams(stream: Stream) -> tuple[Tensor, Tensor]:
    state = stream.start(draw(TOKENS, WIDTH))
    for i in range(SUBLAYERS):
        state = stream.write(state, i, draw(TOKENS, WIDTH, seed=20 + i))
    x, y = state
    return x, y


def test_siamese_streams_are_a_normed_and_a_plain_sum() -> None:
    x, y = siamese_streams(build(SiameseNorm(), trained=False))
    outputs = [draw(TOKENS, WIDTH, seed=20 + i) for i in range(SUBLAYERS)]
    assert_equal_to_rounding(y, torch.stack([draw(TOKENS, WIDTH), *outputs]).sum(0))
    sizes = x.square().mean(-1).sqrt()
    torch.testing.assert_close(sizes, torch.ones_like(sizes), rtol=0, atol=1e-5)


def test_the_divisor_counts_sublayers_to_the_end_of_the_layer() -> None:
    pairs, single = SiameseNorm().build(6, WIDTH), SiameseNorm(sublayers_per_layer=1).build(3, WIDTH)
    assert isinstance(pairs, SiameseNormStream) and isinstance(single, SiameseNormStream)
    assert [pairs.divisor(i) ** 2 for i in range(6)] == pytest.approx([2, 2, 4, 4, 6, 6])
    assert [single.divisor(i) for i in range(3)] == pytest.approx([1, math.sqrt(2), math.sqrt(3)])


def test_sublayers_per_layer_below_one_are_refused() -> None:
    with pytest.raises(InputError, match="sublayers_per_layer is 0"):
        SiameseNorm(sublayers_per_layer=0)
