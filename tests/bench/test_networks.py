"""A decoder is judged by the formula, read by read."""

import pytest
import torch

from attention_residuals.bench.networks import (
    MODELS,
    decoder_config,
    judge_decoder,
    reference_loss,
    residual_of,
    vary_depth_weights,
)
from attention_residuals.errors import InputError
from attention_residuals.models import Decoder, build_decoder
from attention_residuals.streams import AttnResStream
from attention_residuals.train import token_losses


def small(name: str, dtype: torch.dtype = torch.float32) -> Decoder:
    model = build_decoder(decoder_config(32, 3, residual_of(name, 4)), seed=0, dtype=dtype)
    vary_depth_weights(model)
    return model


@pytest.mark.parametrize("name", MODELS)
def test_decoders_are_right(name: str) -> None:
    assert judge_decoder(small(name)).right


@pytest.mark.parametrize("name", MODELS)
def test_the_walk_by_the_formula_is_the_decoder(name: str) -> None:
    model = small(name, torch.float64)
    tokens = torch.randint(256, (2, 9), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(reference_loss(model, tokens), token_losses(model, tokens).mean(), rtol=1e-12, atol=0)


def test_a_wrong_read_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small("full")
    stream = model.stream
    assert isinstance(stream, AttnResStream)
    right = stream.read
    monkeypatch.setattr(stream, "read", lambda state, i: state[0][-1] if i == 4 else right(state, i))
    verdict = judge_decoder(model)
    # The copy in float64 shares the method, but the formula does not go through it.
    assert not verdict.right and "is off by" in verdict.words


def test_a_width_that_heads_cannot_share_is_refused() -> None:
    with pytest.raises(InputError, match="take a multiple of 16"):
        decoder_config(40, 2, residual_of("full", 1))
