"""Sessions over a decoder in which a recurrent sublayer stands where attention stood, beside layers of attention."""

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from attention_residuals import Decoder
from attention_residuals.inference import GrowingCache, Padding, Prompts, Session, SessionCache, StaticCache, generate
from attention_residuals.models import init_weights
from attention_residuals.nn import KimiDeltaAttention

from .support import RESIDUALS, assert_same_logits, build, prompts

RECURRENT = ("0", "4", "6")
RAGGED = (9, 70, 1, 33)


def hybrid(residual: str = "block") -> Decoder:
    """Layers 0, 2 and 3 are recurrent, 1 and 4 are attention."""
    model = build(RESIDUALS[residual])
    names = []
    for i in RECURRENT:
        model.sublayers[i] = KimiDeltaAttention(model.config.width, 2, 12)
        names += [f"sublayers.{i}.{name}" for name, _ in model.sublayers[i].named_parameters()]
    init_weights(model, seed=0, only=names)
    return model.requires_grad_(False)


def run(
    model: Decoder, batch: list[Tensor], new: Tensor, cache: SessionCache, padding: Padding, chunk: int | None
) -> Tensor:
    session = Session(model, cache)
    logits = [session.prefill(Prompts.pad(batch, padding), chunk)]
    return torch.stack(logits + [session.append(column) for column in new.T], dim=1)


@pytest.mark.parametrize("padding", Padding)
@pytest.mark.parametrize("chunk", [1, 7, 64, None])
@pytest.mark.parametrize("residual", ["additive", "block"])
def test_cached_equals_uncached(residual: str, chunk: int | None, padding: Padding) -> None:
    model, batch = hybrid(residual), prompts(*RAGGED)
    new = torch.stack(prompts(*[5] * len(batch)))
    for cache in (GrowingCache(), StaticCache(max(RAGGED) + 8)):
        found = run(model, batch, new, cache, padding, chunk)
        for row, prompt in enumerate(batch):
            expected = model(torch.cat((prompt, new[row]))[None])[0, len(prompt) - 1 :]
            assert_same_logits(found[row], expected)


def test_padding_between_tokens_is_padding_too() -> None:
    model, (prompt,) = hybrid(), prompts(8)
    tokens = torch.cat((prompt[:3], torch.tensor([7, 7]), prompt[3:]))[None]
    valid = torch.ones(1, 10, dtype=torch.bool)
    valid[:, 3:5] = False
    logits = Session(model, GrowingCache()).prefill(Prompts(tokens, valid), chunk_tokens=4)
    assert_same_logits(logits, model(prompt[None])[:, -1])


@pytest.mark.parametrize("padding", Padding)
def test_neither_padding_nor_other_prompts_change_a_bit(padding: Padding) -> None:
    model, batch = hybrid(), Prompts.pad(prompts(4, 9), padding)
    tokens = torch.where(batch.valid, batch.tokens, 99)
    tokens[1] = 5
    found = []
    for given in (batch.tokens, tokens):
        session = Session(model, GrowingCache())
        logits = session.prefill(Prompts(given, batch.valid), 3)
        found.append(torch.stack((logits, session.append(torch.tensor([1, 1]))))[:, 0])
    assert torch.equal(*found)


def test_alone_and_in_a_batch_a_prompt_goes_on_alike() -> None:
    model, batch = hybrid(), prompts(3, 20, 11)
    together = generate(model, batch, tokens=8, chunk_tokens=6)
    for row, prompt in enumerate(batch):
        assert torch.equal(together[row], generate(model, [prompt], tokens=8)[0])


def test_a_layer_keeps_keys_or_a_state() -> None:
    model, cache = hybrid(), GrowingCache()
    Session(model, cache).prefill(Prompts.pad(prompts(10, 20)), 8)
    assert set(cache._layers) == {1, 4} and set(cache._states) == {0, 2, 3}


def test_the_steps_of_a_static_cache_are_compiled_once() -> None:
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    batch, new = Prompts.pad(prompts(6, 3)), torch.stack(prompts(5, 5))
    logits = []
    for compiled in (False, True):
        model = hybrid()
        session = Session(model, StaticCache(12))
        session.prefill(batch)
        if compiled:
            model.mix = torch.compile(model.mix, backend=counter, fullgraph=True)
        logits.append(torch.stack([session.append(column) for column in new.T]))
    assert_same_logits(logits[1], logits[0])
    assert counter.frame_count == 1
    torch._dynamo.reset()
