"""Generation by the model's own code: caches know nothing of depth."""

import copy
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from attention_residuals import Sublayers
from attention_residuals.retrofit import retrofit

from .support import build, stir, tokens

NEW = 10
MARGIN = 1e-3

CACHES = [
    *(("llama", "dynamic"), ("llama", "static"), ("mistral", "dynamic"), ("mistral", "static")),
    *(("gemma2", "dynamic"), ("gemma2", "static"), ("gemma3", "dynamic"), ("falcon", "dynamic")),
    *(("deepseek_v3", "dynamic"), ("kimi_linear", "dynamic"), ("t5", "dynamic"), ("whisper", "dynamic")),
]
"""Those with a sliding window have a layer whose cache forgets: windows are 4 tokens."""


@cache
def plain(name: str) -> Any:
    return build(name)


@cache
def converted(name: str, stirred: bool) -> Any:
    model = copy.deepcopy(plain(name))
    retrofit(model, Sublayers(2), gradients=False)
    if stirred:
        stir(model)
    return model


def inputs(name: str) -> dict[str, Tensor]:
    if name == "whisper":
        return {"input_features": torch.randn(2, 8, 24, generator=torch.Generator().manual_seed(2))}
    return {"input_ids": tokens()}


def generate(model: Any, name: str, cache: str | None) -> Any:
    options: dict[str, Any] = {"max_new_tokens": NEW, "do_sample": False, "use_cache": cache is not None}
    if cache == "static":
        options["cache_implementation"] = "static"
    if name == "whisper":
        options["return_timestamps"] = False
    kind = super(type(model), model) if name == "whisper" else model  # past Whisper's own long-form wrapper
    return kind.generate(**inputs(name), **options, output_logits=True, return_dict_in_generate=True)


@pytest.mark.parametrize(("name", "cache"), CACHES)
def test_same_tokens_as_the_original(name: str, cache: str) -> None:
    theirs, mine = generate(plain(name), name, cache), generate(converted(name, False), name, cache)
    decided = torch.ones(2, dtype=torch.bool)  # rows in which no token was chosen by a margin near rounding so far
    for step, logits in enumerate(theirs.logits):
        best = logits.topk(2).values
        decided &= best[:, 0] - best[:, 1] > MARGIN * best[:, 0].abs()
        at = theirs.sequences.shape[1] - len(theirs.logits) + step
        assert torch.equal(theirs.sequences[decided, at], mine.sequences[decided, at])
    assert decided.any()


@pytest.mark.parametrize(("name", "cache"), CACHES)
def test_cached_decoding_equals_one_forward(name: str, cache: str) -> None:
    model = converted(name, True)
    found = generate(model, name, cache)
    sequence = found.sequences[:, :-1]
    given = {**inputs(name), "decoder_input_ids": sequence} if name in ("t5", "whisper") else {"input_ids": sequence}
    with torch.no_grad():
        whole = model(**given, use_cache=False).logits[:, -len(found.logits) :]
    cached = torch.stack(found.logits, 1)
    assert (whole - cached).abs().max() <= 1e-4 * whole.abs().max()


def test_left_padding_changes_nothing() -> None:
    model, ids = converted("llama", True), tokens(rows=1)
    padded = torch.cat([torch.zeros(1, 3, dtype=torch.long), ids], 1)
    mask = (torch.arange(padded.shape[1]) >= 3).long()[None]
    options: dict[str, Any] = {"max_new_tokens": NEW, "do_sample": False}
    one = model.generate(ids, attention_mask=torch.ones_like(ids), **options)
    other = model.generate(padded, attention_mask=mask, **options)
    assert torch.equal(one[0], other[0, 3:])


def test_beams() -> None:
    options: dict[str, Any] = {"max_new_tokens": 5, "num_beams": 3, "do_sample": False}
    one, other = plain("llama"), converted("llama", False)
    assert torch.equal(one.generate(tokens(), **options), other.generate(tokens(), **options))
