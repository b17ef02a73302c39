"""Decoders whose layers differ, as data: what is built, what is counted, what is refused."""

import dataclasses

import pytest
import torch

from attention_residuals import InputError
from attention_residuals.configs import from_plain, to_plain
from attention_residuals.inference import GrowingCache, Prompts, Session
from attention_residuals.models import (
    BackboneConfig,
    Decoder,
    Experts,
    Gated,
    GroupedQuery,
    HybridConfig,
    KimiDelta,
    Latent,
    Role,
    build_decoder,
    kimi_linear,
    kimi_linear_48b,
    parameter_roles,
    recompute_steps,
    repeated,
)
from attention_residuals.nn import Attention, KimiDeltaAttention, LatentAttention, MixtureOfExperts, SwiGLU
from attention_residuals.streams import Additive, AttnRes, Sublayers

SMALL = HybridConfig(
    vocab_size=11,
    width=12,
    mixers=(KimiDelta(2, 4), GroupedQuery(2, 1, 6), Latent(2, 5, 4, 2, 3)),
    channels=(Gated(10), Experts(6, experts=4, top_k=2), Experts(6, experts=4, top_k=2, shared=0)),
    residual=AttnRes(Sublayers(4)),
)


def test_a_layer_is_what_the_config_says() -> None:
    kinds = [type(sublayer) for sublayer in Decoder(SMALL).sublayers.values()]
    assert kinds == [KimiDeltaAttention, SwiGLU, Attention, MixtureOfExperts, LatentAttention, MixtureOfExperts]
    assert SMALL.layers == 3 and SMALL.sublayers == 6


def test_a_config_comes_back_from_plain() -> None:
    assert from_plain(BackboneConfig, to_plain(SMALL)) == SMALL
    assert from_plain(BackboneConfig, to_plain(kimi_linear_48b())) == kimi_linear_48b()


def test_the_paper_s_model_in_numbers() -> None:
    """48B in all and 3B at work (arXiv 2510.26692), 9 blocks of 6 sublayers (arXiv 2603.15031, section 5)."""
    config = kimi_linear_48b()
    with torch.device("meta"):
        model = Decoder(config)
    roles = parameter_roles(model)
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    experts = sum(size for name, size in sizes.items() if roles[name] in (Role.EXPERT_MATRIX, Role.EXPERT_OUTPUT))
    embedding, total = sizes["embedding.weight"], sum(sizes.values())
    at_work = total - experts + experts * 8 // 256 - embedding
    assert 48e9 < total < 50e9 and 3e9 < at_work < 3.2e9
    assert "9 blocks of 6, 10 sources" in model.stream.describe()
    kinds = [type(config.mixers[layer]) for layer in range(config.layers)]
    assert [layer + 1 for layer, kind in enumerate(kinds) if kind is Latent] == [4, 8, 12, 16, 20, 24, 27]
    assert len(kinds) == 27 and config.channels[0] == Gated(9216)


@pytest.mark.parametrize("residual", [Additive(), AttnRes(Sublayers(2)), AttnRes()])
def test_prefill_and_decoding_are_the_forward(residual: Additive | AttnRes) -> None:
    model = build_decoder(dataclasses.replace(SMALL, residual=residual), seed=0, dtype=torch.float64).eval()
    tokens = torch.randint(11, (2, 9), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        whole = model(tokens)
        session = Session(model, GrowingCache())
        found = [session.prefill(Prompts.pad(list(tokens[:, :5])), chunk_tokens=2)]
        found += [session.append(tokens[:, i]) for i in range(5, 9)]
    torch.testing.assert_close(torch.stack(found, 1), whole[:, 4:], rtol=0, atol=1e-10)


def test_recomputed_steps_have_the_same_gradients() -> None:
    tokens = torch.randint(11, (2, 9), generator=torch.Generator().manual_seed(1))
    one, other = (build_decoder(SMALL, seed=0, dtype=torch.float64) for _ in range(2))
    recompute_steps(other, lambda i: True)
    for model in (one, other):
        model(tokens).square().mean().backward()
    for (name, mine), theirs in zip(one.named_parameters(), other.parameters(), strict=True):
        assert mine.grad is not None, name
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=0, atol=1e-12, msg=name)


def test_small_ones_follow_from_the_depth() -> None:
    config = kimi_linear(8)
    assert [type(mixer) for mixer in config.mixers] == [KimiDelta, KimiDelta, KimiDelta, Latent] * 2
    assert isinstance(config.channels[0], Gated) and all(isinstance(one, Experts) for one in config.channels[1:])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: kimi_linear(3), "depth is 3 layers"),
        (lambda: repeated((1, 2, 3), 2), "a pattern of 3 layers does not fit a depth of 2|does not fit 2"),
        (lambda: repeated((), 2), "a pattern of 0 layers"),
        (lambda: Experts(4, experts=2, top_k=3), "top_k is 3 of 2 experts"),
        (lambda: Gated(0), "hidden is 0"),
        (lambda: dataclasses.replace(SMALL, channels=SMALL.channels[1:]), "3 token mixers and 2 channel mixers"),
        (lambda: dataclasses.replace(SMALL, mixers=(), channels=()), "0 token mixers"),
        (
            lambda: dataclasses.replace(SMALL, mixers=(GroupedQuery(2, 1, 6), GroupedQuery(2, 1, 4), KimiDelta(2, 4))),
            "rotary positions of 4 features",
        ),
    ],
)
def test_configs_that_are_none(make, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()
