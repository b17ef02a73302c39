"""A tiny decoder and the same one for transformers."""

from typing import Any

import torch
from torch import Tensor

from attention_residuals import Additive, AttnRes, Blocks, Decoder, DecoderConfig, ReadScale, Residual, Sublayers
from attention_residuals.hf import AttnResConfig, AttnResForCausalLM
from attention_residuals.models import parameter_roles
from attention_residuals.models.roles import Role

VOCABULARY = 40
STREAMS = [
    Additive(),
    AttnRes(),
    AttnRes(Sublayers(2)),
    AttnRes(Blocks(3), scale=ReadScale.SUM, output_read=False),
    AttnRes(Sublayers(4), two_phase=False),
]
BLOCK = AttnRes(Sublayers(2))


def decoder_config(residual: Residual = BLOCK, **changes: Any) -> DecoderConfig:
    """3 layers of width 32, 2 query heads on one key head."""
    sizes = {"layers": 3, "width": 32, "heads": 2, "kv_heads": 1, "head_dim": 16, "mlp_width": 48}
    return DecoderConfig(**{"vocab_size": VOCABULARY, **sizes, "residual": residual, "qk_norm": True, **changes})


def config(residual: Residual = BLOCK, **changes: Any) -> AttnResConfig:
    fields = {"max_position_embeddings": 64, "eos_token_id": 0, "pad_token_id": 0, **changes}
    return AttnResConfig.from_decoder_config(decoder_config(residual), **fields)


def model(residual: Residual = BLOCK, tied: bool = False) -> Any:
    """An `AttnResForCausalLM` in evaluation mode, with depth queries that are not zero: else depth would not count.

    Typed as anything, since transformers' own methods are not typed for the models of others.
    """
    torch.manual_seed(0)
    made = AttnResForCausalLM(AttnResConfig(**{**config(residual).to_dict(), "tie_word_embeddings": tied}))
    stir(made.model)
    return made.eval()


def stir(decoder: Decoder) -> None:
    roles = parameter_roles(decoder)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, value in decoder.named_parameters():
            if roles[name] in (Role.DEPTH_QUERY, Role.DEPTH_COEFFICIENT, Role.DEPTH_MATRIX):
                value.copy_(torch.randn(value.shape, generator=generator))
            elif roles[name] is Role.DEPTH_NORM:
                value.copy_(1 + 0.3 * torch.randn(value.shape, generator=generator))


def tokens(rows: int = 2, length: int = 9, seed: int = 0) -> Tensor:
    """Without token 0, which pads."""
    return torch.randint(1, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(seed))
