"""An encoder and a decoder that looks at it, each on a residual stream of its own (arXiv 1706.03762, pre-norm).

The streams are those of any other model: a layer of the decoder has three sublayers instead of two, and that is all.
Blocks are counted in sublayers, so six of them are two layers of the decoder and three of the encoder.

For one device: recomputed steps, pipelines, FSDP2 and shared matrices are for `Decoder`, and so are `TrainConfig` and
the command line. Train it with a loop of your own; `examples/encoder_decoder.py` is one.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attention_residuals.errors import InputError, require_positive
from attention_residuals.models.config import BYTE_VOCABULARY, DecoderConfig
from attention_residuals.models.decoder import Backbone
from attention_residuals.models.init import init_weights
from attention_residuals.models.layers import Gated, GroupedQuery
from attention_residuals.models.meta import without_values
from attention_residuals.nn import Context, CrossAttention, HeadLinear, KeyValueCache, Memory, TokenMixer, rotation
from attention_residuals.nn.attention import require_heads
from attention_residuals.streams import Additive, Residual, State

TARGET_SUBLAYERS = 3
"""Of a layer of the decoder: self-attention, cross-attention, then an MLP."""


@final
@dataclass(frozen=True)
class EncoderDecoderConfig:
    """Sizes of both halves; widths in features. `from_depth` gives good proportions.

    Args:
        vocab_size: of source and target alike; each has an embedding of its own.
        source_layers: pairs of attention and MLP in the encoder.
        target_layers: triples of self-attention, cross-attention and MLP in the decoder.
        width: D of both streams.
        heads, kv_heads, head_dim: of every attention.
        mlp_width: hidden units of every MLP.
        residual: the stream, built once for each half.
        target_residual: that of the decoder, where the unit of `residual` is a layer of two sublayers or depends on
            their number; None: the same.
        rope_theta: base of the rotary angles; cross-attention is not rotated.
        norm_eps: eps of all norms.

    Raises:
        InputError: a size below 1, heads that `kv_heads` do not divide, an odd `head_dim`.
    """

    vocab_size: int
    source_layers: int
    target_layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp_width: int
    residual: Residual = field(default_factory=Additive)
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-6
    target_residual: Residual | None = None

    def __post_init__(self) -> None:
        require_positive(self, "vocab_size", "source_layers", "target_layers", "width")
        require_positive(self, "heads", "kv_heads", "head_dim", "mlp_width")
        require_heads(self.heads, self.kv_heads, self.head_dim)

    @classmethod
    def from_depth(
        cls, layers: int, *, vocab_size: int = BYTE_VOCABULARY, residual: Residual | None = None
    ) -> "EncoderDecoderConfig":
        """Every size from the layers of either half, as in `DecoderConfig.from_depth`.

        Raises:
            InputError: fewer layers than 1.
        """
        like = DecoderConfig.from_depth(layers, vocab_size=vocab_size)
        return cls(
            vocab_size, layers, layers, like.width, like.heads, like.kv_heads, like.head_dim, like.mlp_width,
            residual=residual or Additive(),
        )  # fmt: skip

    @property
    def encoder(self) -> DecoderConfig:
        """The encoder as a backbone; what makes it look both ways is the mask it is given."""
        return DecoderConfig(
            self.vocab_size, self.source_layers, self.width, self.heads, self.kv_heads, self.head_dim, self.mlp_width,
            residual=self.residual, rope_theta=self.rope_theta, norm_eps=self.norm_eps,
        )  # fmt: skip

    @property
    def target_sublayers(self) -> int:
        """Modules that read and write the stream of the decoder."""
        return TARGET_SUBLAYERS * self.target_layers

    def build_target_sublayer(self, i: int) -> nn.Module:
        """Sublayer `i` of the decoder, 0-based: 3k mixes tokens in layer k, 3k + 1 looks up, 3k + 2 mixes channels."""
        kind = i % TARGET_SUBLAYERS
        if kind == 0:
            attention = GroupedQuery(self.heads, self.kv_heads, self.head_dim, self.rope_theta)
            return attention.build(self.width, self.norm_eps)
        if kind == 1:
            return CrossAttention(self.width, self.heads, self.kv_heads, self.head_dim)
        return Gated(self.mlp_width).build(self.width)


class TargetDecoder(nn.Module):
    """Target tokens `[B, T]` and a memory to logits `[B, T, vocab]`."""

    def __init__(self, config: EncoderDecoderConfig):
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.width)
        self.sublayers = nn.ModuleDict(
            {str(i): config.build_target_sublayer(i) for i in range(config.target_sublayers)}
        )
        residual = config.target_residual or config.residual
        self.stream = residual.build(config.target_sublayers, config.width, norm_eps=config.norm_eps)
        self.norm = nn.RMSNorm(config.width, config.norm_eps)
        self.head = HeadLinear(config.width, config.vocab_size, bias=False)

    def forward(
        self, tokens: Int[Tensor, "batch time"], memory: Memory, context: Context | None = None
    ) -> Float[Tensor, "batch time vocab"]:
        return self.logits(self.mix(self.embedding(tokens), memory, context))

    def mix(
        self, embedding: Float[Tensor, "batch time width"], memory: Memory, context: Context | None = None
    ) -> Float[Tensor, "batch time width"]:
        """The plain loop over depth, from embedded tokens to what the final norm is given."""
        state = self.stream.start(embedding)
        for i in range(self.config.target_sublayers):
            state = self.step(state, i, memory, context)
        return self.stream.finish(state)

    def step(self, state: State, i: int, memory: Memory, context: Context | None = None) -> State:
        """One sublayer: read, compute, write. Pure."""
        return self.stream.write(state, i, self.compute(i, self.stream.read(state, i), memory, context))

    def compute(
        self, i: int, x: Float[Tensor, "batch time width"], memory: Memory, context: Context | None = None
    ) -> Float[Tensor, "batch time width"]:
        """The output of sublayer `i` for the normed input `x`; a cache keeps what is its own under its number."""
        sublayer, here = self.sublayers[str(i)], None if context is None else context.at(i)
        if isinstance(sublayer, CrossAttention):
            return sublayer(x, memory, here)
        return sublayer(x, here) if isinstance(sublayer, TokenMixer) else sublayer(x)

    def context(
        self,
        positions: Int[Tensor, "batch time"],
        mask: Tensor | None = None,
        cache: KeyValueCache | None = None,
        valid: Tensor | None = None,
    ) -> Context:
        """What target tokens at these positions are to be told; mask, cache and padding as in `Context`."""
        config, dtype = self.config, self.embedding.weight.dtype
        return Context(
            rotation(positions.unsqueeze(1), config.head_dim, config.rope_theta, dtype), mask, cache, 0, valid
        )

    def logits(self, x: Float[Tensor, "batch time width"]) -> Float[Tensor, "batch time vocab"]:
        """Final norm and head."""
        return self.head(self.norm(x))


class EncoderDecoder(nn.Module):
    """Source tokens `[B, S]` and target tokens `[B, T]` to logits `[B, T, vocab]` of the target token after each."""

    def __init__(self, config: EncoderDecoderConfig):
        super().__init__()
        self.config = config
        self.encoder = Backbone(config.encoder)
        self.decoder = TargetDecoder(config)

    def forward(
        self,
        source: Int[Tensor, "batch source"],
        target: Int[Tensor, "batch time"],
        source_valid: Bool[Tensor, "batch source"] | None = None,
        target_valid: Bool[Tensor, "batch time"] | None = None,
    ) -> Float[Tensor, "batch time vocab"]:
        """`source_valid` and `target_valid` are false where there is padding, which may stand anywhere; None: nowhere.

        Logits of padding mean nothing. Padding behind a target need not be told: no token looks at later ones.

        Raises:
            InputError: a source without a token.
        """
        context = None
        if target_valid is not None:
            mask = target_valid.unsqueeze(1).expand(-1, target.shape[1], -1).tril()
            context = self.decoder.context(*_placed(target_valid, mask))
        return self.decoder(target, self.encode(source, source_valid), context)

    def encode(self, source: Int[Tensor, "batch source"], valid: Bool[Tensor, "batch source"] | None = None) -> Memory:
        """What the decoder looks at; every source token has seen all others.

        Raises:
            InputError: a source without a token.
        """
        if valid is not None and not valid.any(1).all():
            raise InputError(f"source {int(valid.any(1).int().argmin())} has no token; give at least one")
        there = torch.ones_like(source[:1], dtype=torch.bool) if valid is None else valid
        mask = there.unsqueeze(1).expand(-1, source.shape[1], -1)
        return Memory(self.encoder(source, self.encoder.context(*_placed(there, mask))), valid)

    def given(self, memory: Memory) -> "Conditioned":
        """The decoder with its memory, as `inference` takes it: `generate(model.given(memory), starts, tokens=20)`."""
        return Conditioned(self.decoder, memory)


class _Placed(NamedTuple):
    positions: Int[Tensor, "batch time"]
    mask: Bool[Tensor, "batch 1 time time"]


def _placed(valid: Bool[Tensor, "batch time"], mask: Bool[Tensor, "batch time time"]) -> _Placed:
    """Positions that count tokens alone, and a mask in which padding sees itself: softmax over nothing has no value."""
    itself = torch.eye(valid.shape[1], dtype=torch.bool, device=valid.device)
    return _Placed((valid.cumsum(1) - 1).clamp(min=0), (mask | itself).unsqueeze(1))


@final
@dataclass(frozen=True, eq=False)
class Conditioned:
    """A decoder and the memory of a batch, with the interface of a `Decoder` to sessions: row by row they belong."""

    model: TargetDecoder
    memory: Memory

    @property
    def config(self) -> EncoderDecoderConfig:
        """Of the whole."""
        return self.model.config

    @property
    def embedding(self) -> nn.Embedding:
        """Of target tokens."""
        return self.model.embedding

    def mix(
        self, embedding: Float[Tensor, "batch time width"], context: Context | None = None
    ) -> Float[Tensor, "batch time width"]:
        """As `TargetDecoder.mix`."""
        return self.model.mix(embedding, self.memory, context)

    def context(
        self,
        positions: Int[Tensor, "batch time"],
        mask: Tensor | None = None,
        cache: KeyValueCache | None = None,
        valid: Tensor | None = None,
    ) -> Context:
        """As `TargetDecoder.context`."""
        return self.model.context(positions, mask, cache, valid)

    def logits(self, x: Float[Tensor, "batch time width"]) -> Float[Tensor, "batch time vocab"]:
        """As `TargetDecoder.logits`."""
        return self.model.logits(x)

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Of the decoder."""
        return self.model.named_parameters()


def build_encoder_decoder(
    config: EncoderDecoderConfig,
    *,
    seed: int,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> EncoderDecoder:
    """On `device`, built on the meta device and initialised by parameter name, as `build_decoder` does it."""
    with without_values():
        model = EncoderDecoder(config)
    model = model.to(dtype).to_empty(device=device)
    for half, stream in (("encoder", model.encoder.stream), ("decoder", model.decoder.stream)):
        names = {name for name, _ in model.named_parameters() if name.startswith(f"{half}.")}
        init_weights(model, seed=seed, output_scale=stream.output_scale, only=names)
    return model
