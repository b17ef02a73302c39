"""Where parameters sit: each counted once, what works for a token, and the whole Kimi Linear beside another count."""

from dataclasses import replace

import pytest
import torch

from attention_residuals.models import (
    BackboneConfig,
    Decoder,
    DecoderConfig,
    ParameterCount,
    Part,
    count_parameters,
    kimi_linear,
    kimi_linear_48b,
)
from attention_residuals.streams import Additive, AttnRes, Sublayers


def part(count: ParameterCount, name: str) -> Part:
    return next(part for part in count.parts if part.name == name)


@pytest.mark.parametrize(
    "config",
    [
        kimi_linear(5, residual=AttnRes(Sublayers(3))),
        kimi_linear(4),
        DecoderConfig.from_depth(3, residual=AttnRes()),
        replace(DecoderConfig.from_depth(2), tied_embeddings=True),
    ],
)
def test_every_parameter_is_counted_once(config: BackboneConfig) -> None:
    count = count_parameters(config)
    assert count.parameters == sum(value.numel() for value in Decoder(config).parameters())
    assert len({part.name for part in count.parts}) == len(count.parts)


def test_what_works_for_a_token() -> None:
    config = kimi_linear(5, residual=AttnRes())
    count = count_parameters(config)
    experts = part(count, "experts")
    assert experts.places == 4 and 4 * experts.active == experts.parameters  # 2 of 8
    assert part(count, "embedding").active == config.width
    assert part(count, "KimiDeltaAttention").places == 4 and part(count, "LatentAttention").places == 1
    depth = part(count, "depth attention")
    assert depth.places == 10 and depth.parameters == 2 * 10 * config.width  # sublayers 1 to 9 and the head
    assert part(count, "pre-norms").places == 10


def test_tied_embeddings_all_work() -> None:
    config = replace(DecoderConfig.from_depth(2), tied_embeddings=True)
    embedding = part(count_parameters(config), "embedding")
    assert embedding.active == embedding.parameters


def test_the_whole_kimi_linear_has_the_published_parameters() -> None:
    """As many as the class that transformers has for the published weights, 48B in all, 3B at work."""
    transformers = pytest.importorskip("transformers")
    latent = {3, 7, 11, 15, 19, 23, 26}  # as published; sizes are their config's defaults
    kinds = ["full_attention" if i in latent else "linear_attention" for i in range(27)]
    with torch.device("meta"):
        theirs = transformers.KimiLinearForCausalLM(transformers.KimiLinearConfig(layer_types=kinds))
    expected = sum(value.numel() for value in theirs.parameters())
    count = count_parameters(kimi_linear_48b(Additive()))
    assert count.parameters == expected
    assert round(expected / 1e9) == 49 and round(count.active / 1e9) == 3
