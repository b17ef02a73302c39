"""Generation: with every cache as without, alone as in a batch, by every way of drawing."""

from typing import Any

import pytest
import torch
from transformers import DynamicCache, QuantizedCache, StaticCache, pipeline

from attention_residuals import Additive, AttnRes, Residual
from attention_residuals.hf import AttnResConfig, AttnResForCausalLM
from attention_residuals.hf.tokenizer import fast_tokenizer
from attention_residuals.inference import generate
from attention_residuals.train import ByteTokenizer
from tests.hf.support import BLOCK, config, model, tokens


def drawn(wrapped: Any, ids: torch.Tensor, **options: Any) -> torch.Tensor:
    mask = options.pop("attention_mask", torch.ones_like(ids))
    options = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None, **options}
    found = wrapped.generate(ids, attention_mask=mask, **options)
    assert isinstance(found, torch.Tensor)
    return found


@pytest.mark.parametrize("residual", [Additive(), AttnRes(), BLOCK])
def test_with_a_cache_as_without_and_as_ours(residual: Residual) -> None:
    wrapped, ids = model(residual), tokens()
    expected = drawn(wrapped, ids, use_cache=False)
    assert torch.equal(drawn(wrapped, ids), expected)
    ours = generate(wrapped.model, list(ids), tokens=12)
    assert torch.equal(torch.stack(ours), expected[:, 9:])


OFFLOADED = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="offloading is from a GPU")]


@pytest.mark.parametrize(
    "kind",
    [
        "dynamic",
        "static",
        pytest.param("offloaded", marks=OFFLOADED),
        pytest.param("offloaded_static", marks=OFFLOADED),
    ],
)
@pytest.mark.parametrize("padded", [False, True])
def test_every_cache_gives_the_same(kind: str, padded: bool) -> None:
    device = "cuda" if kind.startswith("offloaded") else "cpu"
    wrapped, ids = model().to(device), tokens().to(device)
    mask = torch.ones_like(ids)
    if padded:
        mask[0, :4] = 0
        ids = ids * mask
    expected = drawn(wrapped, ids, attention_mask=mask, use_cache=False)
    found = drawn(wrapped, ids, attention_mask=mask, cache_implementation=kind)
    assert torch.equal(found, expected)


def test_a_quantised_cache_is_near() -> None:
    wrapped, ids = model(), tokens()
    cache = QuantizedCache("fp8", wrapped.config)
    with torch.no_grad():
        wrapped(ids[:, :-1], cache=cache)
        found, expected = wrapped(ids[:, -1:], cache=cache).logits, wrapped(ids).logits[:, -1:]
    assert 0 < (found - expected).abs().max() < 0.1 * expected.abs().max()


@pytest.mark.parametrize("static", [False, True])
def test_a_prompt_in_chunks_is_the_same(static: bool) -> None:
    wrapped, ids = model(), tokens(2, 11)
    cache = StaticCache(wrapped.config, max_cache_len=16) if static else DynamicCache(config=wrapped.config)
    with torch.no_grad():
        parts = [wrapped(part, cache=cache).logits for part in ids.split(4, dim=1)]
        expected = wrapped(ids).logits
    torch.testing.assert_close(torch.cat(parts, 1), expected, rtol=1e-5, atol=1e-5)


def test_nothing_of_the_depth_is_in_the_cache() -> None:
    wrapped = model(AttnRes())
    cache = wrapped(tokens()).cache
    assert len(cache.layers) == 3  # one a layer: its keys and values, of one key head
    assert all(layer.keys.shape == layer.values.shape == (2, 1, 9, 16) for layer in cache.layers)


@pytest.mark.parametrize("options", [{"num_beams": 3}, {"do_sample": True, "top_k": 5}], ids=["beams", "sampled"])
def test_other_ways_of_drawing(options: dict[str, Any]) -> None:
    wrapped, ids = model(), tokens()
    found = []
    for use_cache in (True, False):
        torch.manual_seed(0)
        found.append(drawn(wrapped, ids, use_cache=use_cache, **options))
    assert torch.equal(*found) and found[0].shape == (2, 21)


def test_a_padded_batch_as_each_alone() -> None:
    wrapped = model()
    prompts = [tokens(1, length, seed=length)[0] for length in (3, 9, 6)]
    ids, mask = torch.zeros(3, 9, dtype=torch.int64), torch.zeros(3, 9, dtype=torch.int64)
    for row, prompt in enumerate(prompts):
        ids[row, 9 - len(prompt) :], mask[row, 9 - len(prompt) :] = prompt, 1
    together = drawn(wrapped, ids, attention_mask=mask)
    for row, prompt in enumerate(prompts):
        assert torch.equal(together[row, 9:], drawn(wrapped, prompt[None])[0, len(prompt) :])


def test_it_stops_at_the_end_of_a_text() -> None:
    wrapped, ids = model(), tokens(1)
    second = int(drawn(wrapped, ids)[0, 10])
    assert drawn(wrapped, ids, eos_token_id=second).shape[1] <= 11


def test_a_pipeline_writes_text() -> None:
    wrapped = AttnResForCausalLM(AttnResConfig(**{**config().to_dict(), "vocab_size": 256})).eval()
    writer = pipeline("text-generation", model=wrapped, tokenizer=fast_tokenizer(ByteTokenizer(), 64), device="cpu")
    texts = ["ab", "a longer prompt"]
    options = {"max_new_tokens": 5, "do_sample": False, "return_full_text": True}
    found = writer(texts, batch_size=2, **options)
    alone = [writer(text, **options) for text in texts]
    assert [one[0]["generated_text"] for one in found] == [one[0]["generated_text"] for one in alone]
    assert all(one[0]["generated_text"].startswith(text) for one, text in zip(found, texts, strict=True))
