"""A pre-norm decoder whose forward is the plain loop: start; write(read -> sublayer) for each; finish; norm; head."""

from collections.abc import Container

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from attention_residuals.models.config import SUBLAYERS_PER_LAYER, BackboneConfig
from attention_residuals.models.init import init_weights
from attention_residuals.models.meta import without_values
from attention_residuals.nn import Context, HeadLinear, KeyValueCache, TokenMixer, rotation
from attention_residuals.streams import State


class Backbone(nn.Module):
    """Tokens `[B, T]` to features `[B, T, D]`. Sublayer 2k mixes tokens in layer k, 2k + 1 channels, 0-based."""

    def __init__(self, config: BackboneConfig):
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.width)
        self.sublayers = nn.ModuleDict({str(i): config.build_sublayer(i) for i in range(config.sublayers)})
        self.stream = config.residual.build(config.sublayers, config.width, norm_eps=config.norm_eps)
        self.norm = nn.RMSNorm(config.width, config.norm_eps)

    def forward(
        self, tokens: Int[Tensor, "batch time"], context: Context | None = None
    ) -> Float[Tensor, "batch time width"]:
        """Normed features; what the final norm is given is `finish` of the stream."""
        return self.norm(self.mix(self.embedding(tokens), context))

    def mix(
        self, embedding: Float[Tensor, "batch time width"], context: Context | None = None
    ) -> Float[Tensor, "batch time width"]:
        """The plain loop over depth, from embedded tokens to what the final norm is given."""
        state = self.stream.start(embedding)
        for i in range(self.config.sublayers):
            state = self.step(state, i, context)
        return self.stream.finish(state)

    def step(self, state: State, i: int, context: Context | None = None) -> State:
        """One sublayer: read, compute, write. Pure, so it is the unit to recompute in an activation checkpoint."""
        return self.stream.write(state, i, self.compute(i, self.stream.read(state, i), context))

    def compute(
        self, i: int, x: Float[Tensor, "batch time width"], context: Context | None = None
    ) -> Float[Tensor, "batch time width"]:
        """The output of sublayer `i` for the normed input `x`."""
        sublayer = self.sublayers[str(i)]
        if context is None or not isinstance(sublayer, TokenMixer):
            return sublayer(x)
        return sublayer(x, context.at(i // SUBLAYERS_PER_LAYER))

    def context(
        self,
        positions: Int[Tensor, "batch time"],
        mask: Tensor | None = None,
        cache: KeyValueCache | None = None,
        valid: Tensor | None = None,
    ) -> Context:
        """What tokens at these positions are to be told; mask, cache and padding as in `Context`."""
        turn, dtype = self.config.turn, self.embedding.weight.dtype
        turned = None if turn is None else rotation(positions.unsqueeze(1), turn.features, turn.theta, dtype)
        return Context(turned, mask, cache, valid=valid)


class Decoder(Backbone):
    """Tokens `[B, T]` to logits `[B, T, vocab]`."""

    def __init__(self, config: BackboneConfig):
        super().__init__(config)
        self.head = None if config.tied_embeddings else HeadLinear(config.width, config.vocab_size, bias=False)

    def forward(
        self, tokens: Int[Tensor, "batch time"], context: Context | None = None
    ) -> Float[Tensor, "batch time vocab"]:
        return self.logits(self.mix(self.embedding(tokens), context))

    def logits(self, x: Float[Tensor, "batch time width"]) -> Float[Tensor, "batch time vocab"]:
        """Final norm and head; with tied embeddings the head is the embedding."""
        x = self.norm(x)
        return F.linear(x, self.embedding.weight) if self.head is None else self.head(x)


def build_decoder(
    config: BackboneConfig, *, seed: int, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> Decoder:
    """A decoder on `device`, built on the meta device and initialised by parameter name.

    Two decoders of one seed that differ in their residual alone have equal values in every parameter they share, up to
    the factor `output_scale` that a stream asks for on output matrices.
    """
    with without_values():
        model = Decoder(config)
    model = model.to(dtype).to_empty(device=device)
    init_decoder(model, seed=seed)
    return model


def init_decoder(model: Backbone, *, seed: int, only: Container[str] | None = None) -> None:
    """Fill the parameters of a decoder in place by name, or those named in `only`."""
    config = model.config
    # An embedding that is the head too must leave logits of size about 1. The standard residual learns better from
    # outputs that shrink with their number (docs/log.md); what else suits another scheme is for its stream to say.
    embedding_std = config.width**-0.5 if config.tied_embeddings else 1.0
    init_weights(model, seed=seed, embedding_std=embedding_std, output_scale=model.stream.output_scale, only=only)
