"""Small trained-looking models and ragged prompts."""

import torch
from torch import Tensor

from attention_residuals import (
    Additive,
    AttnRes,
    Decoder,
    DecoderConfig,
    Query,
    Residual,
    Sublayers,
    Weighting,
    build_decoder,
)
from attention_residuals.streams import DeltaAttnRes, LowRankAttnRes, RmsBlockAttnRes

RESIDUALS = {
    "additive": Additive(),
    "full": AttnRes(),
    "block": AttnRes(Sublayers(3)),
    "direct": AttnRes(Sublayers(4), two_phase=False),
}
VARIANTS = {
    "dynamic heads": AttnRes(Sublayers(3), query=Query.PROJECTED, heads=2),
    "static window": AttnRes(query=Query.NONE, weighting=Weighting.SIGMOID, window_sublayers=4),
    "rms-block": RmsBlockAttnRes(Sublayers(3)),
    "delta": DeltaAttnRes(),
    "low rank": LowRankAttnRes(key_features=4),
}
LAYERS = 5


def build(residual: Residual, *, vocab_size: int = 256, dtype: torch.dtype = torch.float32) -> Decoder:
    """A decoder whose depth queries are as large as those of a trained one, so that every read has its own weights."""
    model = build_decoder(
        DecoderConfig.from_depth(LAYERS, residual=residual, vocab_size=vocab_size), seed=0, dtype=dtype
    )
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "queries" in name or "depth_logits" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / 4)
            if "query_projections" in name:  # the queries they give are then as large
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / 4 * parameter.shape[-1] ** 0.5)
    return model.requires_grad_(False)


def prompts(*lengths: int) -> list[Tensor]:
    """Prompts of these lengths."""
    generator = torch.Generator().manual_seed(2)
    return [torch.randint(256, (length,), generator=generator) for length in lengths]


def assert_same_logits(ours: Tensor, expected: Tensor, allowed: float = 1e-5) -> None:
    """Equal to `allowed` of the largest logit."""
    assert ours.shape == expected.shape
    assert (ours - expected).abs().max() <= allowed * expected.abs().max()
