"""A pre-norm decoder whose forward is the plain loop: start; write(read -> sublayer) for each; finish; norm; head."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from attention_residuals.models.config import DecoderConfig
from attention_residuals.models.init import init_weights
from attention_residuals.nn import Attention, HeadLinear, SwiGLU
from attention_residuals.streams import State


class Decoder(nn.Module):
    """Tokens `[B, T]` to logits `[B, T, vocab]`. Sublayer 2k is the attention of layer k, 2k + 1 its MLP (0-based)."""

    def __init__(self, config: DecoderConfig):
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.width)
        self.sublayers = nn.ModuleDict({str(i): _sublayer(config, i) for i in range(config.sublayers)})
        self.stream = config.residual.build(config.sublayers, config.width, norm_eps=config.norm_eps)
        self.norm = nn.RMSNorm(config.width, config.norm_eps)
        self.head = None if config.tied_embeddings else HeadLinear(config.width, config.vocab_size, bias=False)

    def forward(self, tokens: Int[Tensor, "batch time"]) -> Float[Tensor, "batch time vocab"]:
        state = self.stream.start(self.embedding(tokens))
        for i in range(self.config.sublayers):
            state = self.step(state, i)
        return self.logits(self.stream.finish(state))

    def step(self, state: State, i: int) -> State:
        """One sublayer: read, compute, write. Pure, so it is the unit to recompute in an activation checkpoint."""
        output = self.sublayers[str(i)](self.stream.read(state, i))
        return self.stream.write(state, i, output)

    def logits(self, x: Float[Tensor, "batch time width"]) -> Float[Tensor, "batch time vocab"]:
        """Final norm and head; with tied embeddings the head is the embedding."""
        weight = self.embedding.weight if self.head is None else self.head.weight
        return F.linear(self.norm(x), weight)


def _sublayer(config: DecoderConfig, i: int) -> nn.Module:
    if i % 2:
        return SwiGLU(config.width, config.mlp_width)
    return Attention(
        config.width,
        config.heads,
        config.kv_heads,
        config.head_dim,
        rope_theta=config.rope_theta,
        qk_norm=config.qk_norm,
        norm_eps=config.norm_eps,
    )


def build_decoder(
    config: DecoderConfig, *, seed: int, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> Decoder:
    """A decoder on `device`, built on the meta device and initialised by parameter name.

    Two decoders of one seed that differ in their residual alone have equal values in every parameter they share.
    """
    with torch.device("meta"):
        model = Decoder(config)
    model = model.to(dtype).to_empty(device=device)
    # An embedding that is the head too must leave logits of size about 1. Outputs shrink with their number, so that
    # their sum starts as large as the embedding; the standard residual learns better so (docs/log.md).
    embedding_std = config.width**-0.5 if config.tied_embeddings else 1.0
    init_weights(model, seed=seed, embedding_std=embedding_std, output_scale=config.sublayers**-0.5)
    return model
