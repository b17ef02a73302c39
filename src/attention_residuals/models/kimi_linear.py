"""Kimi Linear (arXiv 2510.26692), the model that Attention Residuals were shown on: the whole, and small ones like it.

Three layers of Kimi Delta Attention to one of latent attention without positions, each followed by a mixture of
experts, the first by one dense MLP.
"""

from attention_residuals.errors import InputError
from attention_residuals.models.config import BYTE_VOCABULARY
from attention_residuals.models.hybrid import HybridConfig
from attention_residuals.models.layers import Experts, Gated, KimiDelta, Latent, repeated
from attention_residuals.streams import Additive, AttnRes, Residual, Sublayers

PAPER_BLOCK = Sublayers(6)
"""Block size of the paper's run: 9 blocks of 54 sublayers (arXiv 2603.15031, section 5)."""

NORM_EPS = 1e-5
"""Eps of all norms of the 48B, those of depth keys among them, but for the next ones."""

LATENT_EPS = 1e-6
"""Eps of the norms of latents in the published code, whatever that of its other norms is."""


def kimi_linear_48b(residual: Residual | None = None) -> HybridConfig:
    """48B-A3B: 27 layers, 256 experts of which 8 and a shared one work for a token; Block with the paper's blocks.

    Every fourth layer and the last one are latent attention.
    """
    delta = KimiDelta(heads=32, head_dim=128)
    latent = Latent(heads=32, kv_rank=512, head_dim=128, shared_dim=64, value_dim=128, latent_eps=LATENT_EPS)
    experts = Experts(hidden=1024, experts=256, top_k=8, shared=1, scale=2.446)
    return HybridConfig(
        vocab_size=163_840,
        width=2304,
        mixers=(*repeated((delta, delta, delta, latent), 26), latent),
        channels=(Gated(hidden=9216), *repeated((experts,), 26)),
        residual=AttnRes(PAPER_BLOCK, key_eps=NORM_EPS) if residual is None else residual,
        norm_eps=NORM_EPS,
    )


def kimi_linear(layers: int, *, vocab_size: int = BYTE_VOCABULARY, residual: Residual | None = None) -> HybridConfig:
    """A small one, every size from the depth: deep and thin, a quarter of the layers latent, 8 experts of which 2 work.

    Raises:
        InputError: fewer layers than one round of the pattern.
    """
    if layers < 4:
        raise InputError(f"depth is {layers} layers; three of Kimi Delta Attention and one of latent attention take 4")
    head_dim = 16
    heads = max(1, round(layers / 3))
    width = head_dim * heads
    delta = KimiDelta(heads, head_dim)
    latent = Latent(heads, kv_rank=max(8, width // 4), head_dim=head_dim, shared_dim=8, value_dim=head_dim)
    hidden = 8 * max(1, round(width / 9))  # three experts at work are together 8/3 of the width
    experts = Experts(hidden, experts=8, top_k=2, shared=1)
    return HybridConfig(
        vocab_size=vocab_size,
        width=width,
        mixers=repeated((delta, delta, delta, latent), layers),
        channels=(Gated(3 * hidden), *repeated((experts,), layers - 1)),
        residual=residual or Additive(),
    )
