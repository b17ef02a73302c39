"""Every stream with every kind of sublayer: neither knows of the other."""

import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from attention_residuals import Additive, AttnRes, Decoder, ReadScale, Residual, Sublayers
from attention_residuals.models import (
    EncoderDecoder,
    EncoderDecoderConfig,
    Gated,
    GroupedQuery,
    HybridConfig,
    StateSpace,
    TokenMixerConfig,
    build_decoder,
    build_encoder_decoder,
    parameter_roles,
    repeated,
)
from attention_residuals.streams import DenseFormer, DepthCoefficients, DepthMatrices, HyperConnections, Queries

STREAMS: dict[str, tuple[Residual, Residual]] = {
    "additive": (Additive(), Additive()),
    "full": (AttnRes(), AttnRes()),
    "block": (AttnRes(Sublayers(4)), AttnRes(Sublayers(4))),
    "hyper-connections": (HyperConnections(), HyperConnections()),
    "denseformer": (DenseFormer(), DenseFormer(sublayers_per_layer=3)),
}
"""By name: for layers of two sublayers, and for those of three."""

WINDOWED, FULL, MAMBA = GroupedQuery(2, 1, 6, window=3), GroupedQuery(2, 1, 6), StateSpace(4, 3, 5, groups=2)
MIXERS: dict[str, tuple[TokenMixerConfig, ...]] = {
    "window": (WINDOWED,),
    "state space": (MAMBA,),
    "windows and full": (WINDOWED, WINDOWED, WINDOWED, FULL),
    "all": (MAMBA, WINDOWED, FULL),
}
LAYERS = 4
TOKENS = torch.randint(11, (2, 9), generator=torch.Generator().manual_seed(1))


def decoder(mixers: tuple[TokenMixerConfig, ...], residual: Residual) -> Decoder:
    config = HybridConfig(11, 12, repeated(mixers, LAYERS), repeated((Gated(10),), LAYERS), residual)
    return build_decoder(config, seed=0, dtype=torch.float64)


def encoder_decoder(residual: Residual, target_residual: Residual) -> EncoderDecoder:
    config = dataclasses.replace(
        EncoderDecoderConfig(11, 2, 2, 12, heads=2, kv_heads=1, head_dim=6, mlp_width=10),
        residual=residual,
        target_residual=target_residual,
    )
    return build_encoder_decoder(config, seed=0, dtype=torch.float64)


def build(kind: str, residuals: tuple[Residual, Residual]) -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    """A model with sublayers of this kind, and its loss."""
    if kind == "cross":
        return encoder_decoder(*residuals), lambda model: model(TOKENS[:, :6], TOKENS).square().mean()
    return decoder(MIXERS[kind], residuals[0]), lambda model: model(TOKENS).square().mean()


KINDS = (*MIXERS, "cross")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stream", STREAMS)
def test_gradients_are_finite_and_reach_every_parameter(stream: str, kind: str) -> None:
    model, loss = build(kind, STREAMS[stream])
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        # What is zero at the start, or whose gradient a zero stops, is moved as training would move it.
        for module in model.modules():
            if isinstance(module, Queries | DepthCoefficients | DepthMatrices):
                for parameter in module.values():
                    parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) / 4)
    assert parameter_roles(model).keys() == {name for name, _ in model.named_parameters()}
    value = loss(model)
    assert value.isfinite()
    value.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all() and parameter.grad.any(), name


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("block", [1, 4])
def test_with_zero_queries_it_is_the_standard_network(block: int, kind: str) -> None:
    residual = AttnRes(Sublayers(block), scale=ReadScale.SUM)
    (plain, loss), (depth, _) = build(kind, (Additive(), Additive())), build(kind, (residual, residual))
    theirs = dict(depth.named_parameters())
    with torch.no_grad():
        for name, parameter in plain.named_parameters():
            theirs[name].copy_(parameter)
    values = [loss(model) for model in (plain, depth)]
    for value in values:
        value.backward()
    torch.testing.assert_close(values[1], values[0], rtol=0, atol=1e-12)
    for name, parameter in plain.named_parameters():
        torch.testing.assert_close(theirs[name].grad, parameter.grad, rtol=0, atol=1e-12, msg=name)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stream", STREAMS)
def test_no_sublayer_has_other_parameters_for_it(stream: str, kind: str) -> None:
    def of_sublayers(residuals: tuple[Residual, Residual]) -> dict[str, torch.Size]:
        model, _ = build(kind, residuals)
        return {name: one.shape for name, one in model.named_parameters() if "stream." not in name}

    assert of_sublayers(STREAMS[stream]) == of_sublayers(STREAMS["additive"])
