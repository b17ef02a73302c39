"""Sampling."""

import pytest
import torch

from attention_residuals import AttnRes, DecoderConfig, InputError, build_decoder
from attention_residuals.inference import sample

MODEL = build_decoder(DecoderConfig.from_depth(2, residual=AttnRes()), seed=0)
PROMPT = torch.tensor([1, 2, 3])


def test_a_seed_gives_the_same_text_again() -> None:
    drawn = [sample(MODEL, PROMPT, tokens=12, context_tokens=8, seed=seed) for seed in (0, 0, 1)]
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])
    assert drawn[0].shape == (12,)


def test_a_low_temperature_takes_the_likeliest_token() -> None:
    drawn = sample(MODEL, PROMPT, tokens=1, context_tokens=8, temperature=1e-4)
    with torch.no_grad():
        assert drawn.item() == MODEL(PROMPT.unsqueeze(0))[0, -1].argmax().item()


def test_only_the_context_is_seen() -> None:
    longer = torch.cat((torch.tensor([9, 9]), PROMPT))
    first, second = (sample(MODEL, prompt, tokens=5, context_tokens=3) for prompt in (PROMPT, longer))
    assert torch.equal(first, second)


def test_an_empty_prompt_and_a_wrong_temperature_are_refused() -> None:
    with pytest.raises(InputError, match="prompt is empty"):
        sample(MODEL, PROMPT[:0], tokens=1, context_tokens=8)
    with pytest.raises(InputError, match="temperature is 0"):
        sample(MODEL, PROMPT, tokens=1, context_tokens=8, temperature=0)
