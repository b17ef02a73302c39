"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): one sublayer, tensor in, tensor out."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attention_residuals.errors import InputError, require_positive
from attention_residuals.nn.attend import attend
from attention_residuals.nn.context import Context, TokenMixer
from attention_residuals.nn.output import OutputLinear
from attention_residuals.nn.rope import rotate, rotation


class LatentAttention(TokenMixer):
    """Causal attention over keys and values that are made of one latent; `[B, T, width] -> [B, T, width]`.

    The input is already normed. A token's latent, `kv_rank` normed features, gives every head its own key and value;
    `shared_dim` more features are one key for all heads, and they alone carry positions. A cache keeps latent and
    shared key, not those of the heads: it is handed them as one key head, with values of no features.

    Args:
        width: D of the stream.
        heads: of queries, keys and values.
        kv_rank: features of the latent.
        head_dim: features of a head's query that meet its own key.
        shared_dim: features of it that meet the shared key; 0 for none, which leaves the model without positions.
        value_dim: features of a head's value.
        query_rank: features of a normed latent that the queries are made of; None: they are made of the input.
        rope_theta: base of the rotary angles of the shared features; None: they are not rotated, as in Kimi Linear
            (arXiv 2510.26692), and the order of tokens is told by the causal mask alone. A context that is given
            must bring the rotation of `shared_dim` features.
        norm_eps: eps of the norms of the latents.

    Raises:
        InputError: a size below 1, an odd `shared_dim` that is to be rotated.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        kv_rank: int,
        head_dim: int,
        shared_dim: int,
        value_dim: int,
        *,
        query_rank: int | None = None,
        rope_theta: float | None = 10_000.0,
        norm_eps: float = 1e-6,
    ):
        super().__init__()
        self.width, self.heads, self.kv_rank, self.query_rank = width, heads, kv_rank, query_rank
        self.head_dim, self.shared_dim, self.value_dim, self.rope_theta = head_dim, shared_dim, value_dim, rope_theta
        require_positive(self, "width", "heads", "kv_rank", "head_dim", "value_dim")
        if query_rank is not None:
            require_positive(self, "query_rank")
        if shared_dim != 0:
            require_positive(self, "shared_dim")
        if rope_theta is not None and shared_dim % 2:
            raise InputError(f"shared_dim is {shared_dim}; rotary positions need an even number of features")
        self.query_latent = nn.Identity() if query_rank is None else nn.Linear(width, query_rank, bias=False)
        self.query_norm = nn.Identity() if query_rank is None else nn.RMSNorm(query_rank, norm_eps)
        self.query = nn.Linear(query_rank or width, heads * (head_dim + shared_dim), bias=False)
        self.latent = nn.Linear(width, kv_rank, bias=False)
        self.latent_norm = nn.RMSNorm(kv_rank, norm_eps)
        self.shared_key = nn.Linear(width, shared_dim, bias=False) if shared_dim else None
        self.key = nn.Linear(kv_rank, heads * head_dim, bias=False)
        self.value = nn.Linear(kv_rank, heads * value_dim, bias=False)
        self.output = OutputLinear(heads * value_dim, width, bias=False)

    def forward(
        self, x: Float[Tensor, "batch time width"], context: Context | None = None
    ) -> Float[Tensor, "batch time width"]:
        if context is None:
            positions = torch.arange(x.shape[1], device=x.device)
            context = Context(rotation(positions, self.shared_dim, self.rope_theta or 1.0, x.dtype))
        query = self._heads(self.query(self.query_norm(self.query_latent(x))))
        own, shared = query.split((self.head_dim, self.shared_dim), dim=-1)
        query = torch.cat((own, self._turned(shared, context)), dim=-1)
        kept = self._kept(x, context)
        kept, _ = context.extend(kept, kept[..., :0])
        attended = self._by_latents if context.cache is not None and x.shape[1] == 1 else self._by_heads
        return self.output(attended(query, kept, context.mask).transpose(1, 2).flatten(-2))

    def _heads(self, x: Float[Tensor, "batch time features"]) -> Float[Tensor, "batch heads time head"]:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def _turned(self, shared: Tensor, context: Context) -> Tensor:
        if self.rope_theta is None or not self.shared_dim:
            return shared
        assert context.rotation is not None
        width = 2 * context.rotation.cos.shape[-1]
        assert width == self.shared_dim, f"the rotation is of {width} features, the shared key has {self.shared_dim}"
        return rotate(shared, context.rotation)

    def _kept(self, x: Tensor, context: Context) -> Float[Tensor, "batch 1 time kept"]:
        """What there is to know of tokens later on: latent and shared key, side by side."""
        latent = self.latent_norm(self.latent(x)).unsqueeze(1)
        if self.shared_key is None:
            return latent
        return torch.cat((latent, self._turned(self.shared_key(x).unsqueeze(1), context)), dim=-1)

    def _by_heads(self, query: Tensor, kept: Tensor, mask: Tensor | None) -> Float[Tensor, "batch heads time value"]:
        """Every head with keys and values of its own."""
        latent, shared = kept.split((self.kv_rank, self.shared_dim), dim=-1)
        own = self._heads(self.key(latent.squeeze(1)))
        key = torch.cat((own, shared.expand(-1, self.heads, -1, -1)), dim=-1)
        return attend(query, key, self._heads(self.value(latent.squeeze(1))), mask)

    def _by_latents(self, query: Tensor, kept: Tensor, mask: Tensor | None) -> Float[Tensor, "batch heads time value"]:
        """The same, all heads looking at the latents: the maps to keys and values are applied to the one new token
        rather than to every token there is, so it costs as much a token as there are latents, times their width.
        """
        own, shared = query.split((self.head_dim, self.shared_dim), dim=-1)
        by_head = self.key.weight.unflatten(0, (self.heads, -1))
        query = torch.cat((own @ by_head.to(own.dtype), shared), dim=-1)
        # The size of the scores is that of the heads' own keys.
        scale = (self.head_dim + self.shared_dim) ** -0.5
        latents = attend(query, kept, kept[..., : self.kv_rank], mask, scale)
        return latents @ self.value.weight.unflatten(0, (self.heads, -1)).mT.to(latents.dtype)
