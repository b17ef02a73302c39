"""Sessions over decoders that mix windows, full attention and Mamba-2, and over an encoder-decoder."""

import pytest
import torch
from torch import Tensor

from attention_residuals import AttnRes, Decoder, Sublayers
from attention_residuals.inference import GrowingCache, Padding, Prompts, Session, SessionCache, StaticCache, generate
from attention_residuals.models import (
    EncoderDecoder,
    EncoderDecoderConfig,
    Gated,
    GroupedQuery,
    HybridConfig,
    Role,
    StateSpace,
    build_decoder,
    build_encoder_decoder,
    parameter_roles,
    repeated,
)
from attention_residuals.nn import Memory

from .support import assert_same_logits, prompts

FULL, WINDOWED = GroupedQuery(2, 1, 6), GroupedQuery(2, 1, 6, window=5)
PATTERNS = {
    "3:1": (WINDOWED, WINDOWED, WINDOWED, FULL),
    "windows": (WINDOWED,),
    "three kinds": (StateSpace(4, 6, 5, groups=2), WINDOWED, FULL),
}
RAGGED = (9, 40, 1, 23)


def drawn_queries(model: Decoder | EncoderDecoder) -> None:
    """As large as those of a trained model."""
    for name, role in parameter_roles(model).items():
        if role is Role.DEPTH_QUERY:
            model.get_parameter(name).normal_(std=0.25, generator=torch.Generator().manual_seed(1))


def build(pattern: str) -> Decoder:
    mixers, channels = repeated(PATTERNS[pattern], 4), repeated((Gated(16),), 4)
    model = build_decoder(HybridConfig(256, 12, mixers, channels, AttnRes(Sublayers(3))), seed=0)
    drawn_queries(model.requires_grad_(False))
    return model


@pytest.mark.parametrize("padding", Padding)
@pytest.mark.parametrize("chunk", [1, 7, None])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_cached_equals_uncached(pattern: str, chunk: int | None, padding: Padding) -> None:
    model, batch = build(pattern), prompts(*RAGGED)
    new = torch.stack(prompts(*[8] * len(batch)))
    caches: tuple[SessionCache, ...] = (GrowingCache(), StaticCache(max(RAGGED) + 8))
    for cache in caches:
        session = Session(model, cache)
        logits = [session.prefill(Prompts.pad(batch, padding), chunk)]
        found = torch.stack(logits + [session.append(column) for column in new.T], dim=1)
        for row, prompt in enumerate(batch):
            expected = model(torch.cat((prompt, new[row]))[None])[0, len(prompt) - 1 :]
            assert_same_logits(found[row], expected)


def test_a_layer_keeps_what_it_needs() -> None:
    cache = GrowingCache()
    Session(build("three kinds"), cache).prefill(Prompts.pad(prompts(10, 20)), 8)
    assert set(cache._layers) == {2} and set(cache._states) == {0, 1, 3}
    window = cache.state(1)
    assert window is not None and window[0].shape == (2, 1, 4, 6)


def pair() -> EncoderDecoder:
    config = EncoderDecoderConfig.from_depth(4, vocab_size=256, residual=AttnRes(Sublayers(5)))
    model = build_encoder_decoder(config, seed=0).requires_grad_(False)
    drawn_queries(model)
    return model


def memory_of(model: EncoderDecoder, sources: list[Tensor]) -> Memory:
    batch = Prompts.pad(sources)
    return model.encode(batch.tokens, batch.valid)


def test_greedy_generation_is_that_of_the_uncached_forward() -> None:
    model, sources, starts = pair(), prompts(7, 3, 12), prompts(1, 4, 2)
    found = generate(model.given(memory_of(model, sources)), starts, tokens=9, chunk_tokens=2)
    for source, start, tokens in zip(sources, starts, found, strict=True):
        text = start
        for _ in range(9):
            text = torch.cat((text, model(source[None], text[None])[0, -1].argmax()[None]))
        assert torch.equal(tokens, text[len(start) :])


@pytest.mark.parametrize("padding", Padding)
def test_a_session_has_the_logits_of_the_forward(padding: Padding) -> None:
    model, sources, targets = pair(), prompts(7, 3, 12), prompts(6, 1, 9)
    new = torch.stack(prompts(5, 5, 5))
    caches: tuple[SessionCache, ...] = (GrowingCache(), StaticCache(14))
    for cache in caches:
        session = Session(model.given(memory_of(model, sources)), cache)
        logits = [session.prefill(Prompts.pad(targets, padding), 4)]
        found = torch.stack(logits + [session.append(column) for column in new.T], dim=1)
        for row, (source, target) in enumerate(zip(sources, targets, strict=True)):
            expected = model(source[None], torch.cat((target, new[row]))[None])[0, len(target) - 1 :]
            assert_same_logits(found[row], expected)
