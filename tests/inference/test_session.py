"""Forwards one after another equal one forward over everything, whatever the layout and the cuts."""

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from attention_residuals import Decoder, DecoderConfig, InputError
from attention_residuals.inference import GrowingCache, Padding, Prompts, Session, SessionCache, StaticCache

from .support import RESIDUALS, VARIANTS, assert_same_logits, build, prompts

RAGGED = (9, 70, 1, 64, 33)
NEW_TOKENS = 6

each_residual = pytest.mark.parametrize("residual", RESIDUALS.values(), ids=RESIDUALS.keys())
each_padding = pytest.mark.parametrize("padding", Padding)


def one_forward(model: Decoder, prompt: Tensor, new: Tensor) -> Tensor:
    """Logits after the prompt and after each new token, without a cache: `[1 + new, vocab]`."""
    return model(torch.cat((prompt, new))[None])[0, len(prompt) - 1 :]


def token_by_token(
    model: Decoder, batch: list[Tensor], new: Tensor, cache: SessionCache, chunk: int | None, padding: Padding
) -> Tensor:
    """The same with a cache, for all rows: `[B, 1 + new, vocab]`."""
    session = Session(model, cache)
    logits = [session.prefill(Prompts.pad(batch, padding), chunk)]
    logits += [session.append(column) for column in new.T]
    return torch.stack(logits, dim=1)


@each_residual
@each_padding
@pytest.mark.parametrize("chunk", [1, 7, 64, 100, None])
@pytest.mark.parametrize("lengths", [(40,), RAGGED], ids=["alone", "ragged"])
def test_cached_equals_uncached(residual, padding: Padding, chunk: int | None, lengths: tuple[int, ...]) -> None:
    model, batch = build(residual), prompts(*lengths)
    new = torch.stack(prompts(*[NEW_TOKENS] * len(batch)))
    for cache in (GrowingCache(), StaticCache(max(lengths) + NEW_TOKENS + 3)):
        ours = token_by_token(model, batch, new, cache, chunk, padding)
        for row, prompt in enumerate(batch):
            assert_same_logits(ours[row], one_forward(model, prompt, new[row]))


@pytest.mark.parametrize("residual", VARIANTS.values(), ids=VARIANTS.keys())
def test_cached_equals_uncached_for_variants(residual) -> None:
    test_cached_equals_uncached(residual, Padding.LEFT, 7, (9, 20, 1))


@each_residual
def test_padding_in_the_middle_is_padding_too(residual) -> None:
    model, (prompt,) = build(residual), prompts(8)
    tokens = torch.cat((prompt[:3], torch.tensor([7, 7]), prompt[3:]))[None]
    valid = torch.ones(1, 10, dtype=torch.bool)
    valid[:, 3:5] = False
    logits = Session(model, GrowingCache()).prefill(Prompts(tokens, valid), chunk_tokens=4)
    assert_same_logits(logits, model(prompt[None])[:, -1])


@each_padding
def test_what_padding_holds_does_not_matter(padding: Padding) -> None:
    model, batch = build(RESIDUALS["block"]), Prompts.pad(prompts(4, 9), padding)
    changed = Prompts(torch.where(batch.valid, batch.tokens, 99), batch.valid)
    one, other = (Session(model, GrowingCache()).prefill(padded, 3) for padded in (batch, changed))
    assert torch.equal(one, other)


def test_a_missing_mask_would_show() -> None:
    """The tests above can fail: tokens of padding that are taken for tokens change the logits."""
    model, batch = build(RESIDUALS["block"]), Prompts.pad(prompts(4, 9))
    wrong = Session(model, GrowingCache()).prefill(Prompts(batch.tokens, torch.ones_like(batch.valid)))
    right = Session(model, GrowingCache()).prefill(batch)
    assert (wrong - right)[0].abs().max() > 1e-2 * right.abs().max()


@each_residual
def test_nothing_of_the_depth_is_kept(residual) -> None:
    """Between forwards a session has keys and values alone: as many bytes with every stream."""
    model = build(residual)
    cache, config = GrowingCache(), model.config
    assert isinstance(config, DecoderConfig)
    Session(model, cache).prefill(Prompts.pad(prompts(10, 20)), 8)
    kept = sum(tensor.numel() for room in cache._layers.values() for tensor in (room.keys, room.values))
    slots = cache._layers[0].capacity
    assert kept == 2 * config.layers * 2 * config.kv_heads * slots * config.head_dim


@each_residual
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_types(residual, dtype: torch.dtype) -> None:
    model, batch = build(residual, dtype=dtype), prompts(5, 12)
    allowed = 1e-12 if dtype == torch.float64 else 0.04
    logits = Session(model, GrowingCache()).prefill(Prompts.pad(batch), 4)
    for row, prompt in enumerate(batch):
        assert_same_logits(logits[row], model(prompt[None])[0, -1], allowed)


def test_a_static_cache_that_is_full_says_so() -> None:
    session = Session(build(RESIDUALS["block"]), StaticCache(5))
    session.prefill(Prompts.pad(prompts(4)))
    session.append(torch.tensor([1]))
    with pytest.raises(InputError, match="room for 5 tokens, and 6 are to be kept"):
        session.append(torch.tensor([1]))
    with pytest.raises(InputError, match="capacity_tokens is 0"):
        StaticCache(0)


def test_a_growing_cache_copies_seldom() -> None:
    cache, grown = GrowingCache(), 0
    before = 0
    for _ in range(300):
        cache.update(torch.ones(1, 1, 1, 2), torch.ones(1, 1, 1, 2), 0)
        grown += cache._layers[0].capacity != before
        before = cache._layers[0].capacity
    assert grown <= 10 and before < 2 * 300


@pytest.mark.parametrize("name", ["additive", "block"])
def test_the_steps_of_a_static_cache_are_compiled_once(name: str) -> None:
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    batch, new = Prompts.pad(prompts(6, 3)), torch.stack(prompts(5, 5))
    logits = []
    for compiled in (False, True):
        model = build(RESIDUALS[name])
        session = Session(model, StaticCache(12))
        session.prefill(batch)
        if compiled:
            model.mix = torch.compile(model.mix, backend=counter, fullgraph=True)
        logits.append(torch.stack([session.append(column) for column in new.T]))
    assert_same_logits(logits[1], logits[0])
    assert counter.frame_count == 1
    torch._dynamo.reset()
