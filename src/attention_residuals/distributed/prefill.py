"""Inference on several processes that share a model: prefill with sharded tokens, then one token at a time.

In a prefill every token's sources lie on exactly one rank (arXiv 2603.15031, section 4.2): a rank embeds, mixes and
norms its own tokens of a chunk, and keeps keys and values of its own heads for all of them.
"""

from typing import final

import torch
import torch.distributed as dist
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard

from attention_residuals.distributed.edges import TOKENS, SublayerEdges
from attention_residuals.models import Decoder
from attention_residuals.nn import Context


@final
class SharedForward:
    """How new tokens go through a model after `shard_matrices`: a `Forward` of `inference`, to be used on every rank
    with the same tokens.

    ::

        edges = shard_matrices(model, mesh)
        generate(model, prompts, tokens=100, forward=SharedForward(model, edges))

    Tokens are shared by the ranks in equal parts; where these do not come out even, the last ones are filled up, and no
    cache ever sees the padding. Fewer tokens than ranks, such as the one of decoding, go through on every rank: each
    reads over their depth itself, and sums up the outputs of the shared sublayers. What is returned is whole, and the
    same on every rank.
    """

    def __init__(self, model: Decoder, edges: SublayerEdges):
        self.model, self.edges = model, edges
        self.mesh = edges.mesh

    @torch.no_grad()
    def features(self, tokens: Int[Tensor, "batch time"], context: Context) -> Float[Tensor, "batch time width"]:
        """What the final norm is given for each new token."""
        if self._too_few(tokens):
            return self._mix_whole(tokens, context)
        own = self._mix_own(tokens, context)
        everything = DTensor.from_local(own, self.mesh, (Shard(TOKENS),), run_check=False).full_tensor()
        return everything[:, : tokens.shape[TOKENS]]

    @torch.no_grad()
    def features_at(
        self, tokens: Int[Tensor, "batch time"], context: Context, rows: Int[Tensor, "n"], places: Int[Tensor, "n"]
    ) -> Float[Tensor, "n width"]:
        """The same for the tokens `places` of the sequences `rows` alone: nothing else is gathered."""
        if self._too_few(tokens):
            return self._mix_whole(tokens, context)[rows, places]
        own = self._mix_own(tokens, context)
        begin = self.mesh.get_local_rank() * own.shape[TOKENS]
        mine = (places >= begin) & (places < begin + own.shape[TOKENS])
        found = own.new_zeros(len(rows), own.shape[-1])
        found[mine] = own[rows[mine], places[mine] - begin]
        if len(rows):  # the same on every rank
            dist.all_reduce(found, group=self.mesh.get_group())
        return found

    def _too_few(self, tokens: Tensor) -> bool:
        return tokens.shape[TOKENS] < self.mesh.size()

    def _mix_whole(self, tokens: Tensor, context: Context) -> Tensor:
        with self.edges.whole():
            return self.model.mix(self.model.embedding(tokens), context)

    def _mix_own(self, tokens: Tensor, context: Context) -> Tensor:
        """`[B, share, D]` of this rank's tokens, and of the padding among them."""
        count = tokens.shape[TOKENS]
        share = share_of(count, self.mesh.size())
        padded = F.pad(tokens, (0, share * self.mesh.size() - count))
        own = padded[:, share * self.mesh.get_local_rank() :][:, :share]
        with self.edges.padded(count):
            return self.model.mix(self.model.embedding(own), context)


def share_of(tokens: int, ranks: int) -> int:
    """Tokens and padding of which a rank holds the depth."""
    return -(-tokens // ranks)
