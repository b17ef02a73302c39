"""The variants of Attention Residuals that the paper ablates (arXiv 2603.15031, Table 4), as one plain stream.

The paper names them and leaves their details open; what was chosen, and why, stands beside each.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import final

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from attention_residuals.errors import InputError
from attention_residuals.ops import compute_dtype
from attention_residuals.streams.base import StreamShape
from attention_residuals.streams.depth import DepthReads
from attention_residuals.streams.direct import OneByOneStream
from attention_residuals.streams.parameters import DepthCoefficients, DepthMatrices
from attention_residuals.streams.scores import inverse_rms, logits, weighted_sum


class Query(Enum):
    """What the logits of a read come from. All start at zero, so that every read starts with equal weights."""

    LEARNED = "learned"
    """A learned vector `[D]` a read, against the keys: the paper's method."""

    PROJECTED = "projected"
    """The input-dependent query: a learned projection `[D, D]` a read, of the current hidden state, in its place.

    Which state is open. Chosen is the newest source, RMS-normed without a weight: the paper's listing (Figure 2) calls
    the running sum of the open block `hidden_states`, and in Full that is the last output; its norm keeps the size of
    the query a matter of the projection. Projections start at zero, as the vectors do that they replace. Their input is
    divided by D, so that an Adam step moves a query about as far as it moves a learned one: D inputs of size 1 move it
    D times as far, and at our rates such a network learned worse than all others (docs/variants.md).
    """

    NONE = "none"
    """Input-independent mixing: no query and no keys, a learned logit for each source of each read.

    Whether the paper's scalars are normalised is open. Chosen is the weighting of the other reads, so that their
    dependence on the input is all that goes; scalars that are weights themselves are DenseFormer's.
    """


class Weighting(Enum):
    """How the N logits of a read become weights."""

    SOFTMAX = "softmax"
    """Against each other, as in the paper's method; they sum to 1."""

    SIGMOID = "sigmoid"
    """Each source by itself: `2/N sigmoid(logit)`, with no sum.

    Whether the paper's sigmoids are normalised is open. Chosen is not: that sources do not compete is the point. The
    factor, which the norm of the consumer forgets, makes a read start as the mean, like that of a softmax.
    """


@dataclass(frozen=True)
class Variant:
    """The fields of `AttnRes` that leave the paper's method; see there."""

    query: Query
    weighting: Weighting
    key_norm: bool
    window_sublayers: int | None
    heads: int
    normed_sources: bool
    logit_scale: float

    @property
    def is_the_method(self) -> bool:
        """Whether nothing leaves it."""
        return self == Variant(Query.LEARNED, Weighting.SOFTMAX, True, None, 1, normed_sources=False, logit_scale=1.0)

    @property
    def weighs_keys(self) -> bool:
        """Whether keys have an RMSNorm with a weight of their own."""
        return self.key_norm and not self.normed_sources and self.query is not Query.NONE

    def describe(self) -> str:
        """What leaves the method, in words."""
        parts = {
            f"query {self.query.value}": self.query is not Query.LEARNED,
            self.weighting.value: self.weighting is not Weighting.SOFTMAX,
            "keys not normed": not self.key_norm,
            f"window of {self.window_sublayers} sublayers": self.window_sublayers is not None,
            f"{self.heads} heads": self.heads > 1,
            "sources normed": self.normed_sources,
            f"logits times {self.logit_scale:g}": self.logit_scale != 1,
        }
        return ", ".join(words for words, there in parts.items() if there)


@final
class VariantStream(OneByOneStream):
    """Reads with any of the variants, in ordinary torch operations.

    Beside `queries` and `key_norms`, which are there where a variant has them, it learns `query_projections [D, D]`
    (`Query.PROJECTED`) or `depth_logits [N, heads]` (`Query.NONE`) for each read.
    """

    def __init__(self, reads: DepthReads, variant: Variant, shape: StreamShape):
        if shape.width % variant.heads:
            raise InputError(f"heads is {variant.heads}, which does not divide the width {shape.width}; take a divisor")
        keyed = variant.query is not Query.NONE
        super().__init__(reads, shape, queries=variant.query is Query.LEARNED, key_norms=variant.weighs_keys)
        self.variant = variant
        projected = self.read_keys if variant.query is Query.PROJECTED else ()
        self.query_projections = DepthMatrices(
            {key: partial(torch.zeros, shape.width, shape.width) for key in projected}
        )
        free = () if keyed else self.read_keys
        self.depth_logits = DepthCoefficients(
            {
                key: partial(torch.zeros, self._seen(reads.partition.sources(self._number(key))), variant.heads)
                for key in free
            }
        )

    def gain(self, sources: int) -> float:
        """As for all, of the sources inside the window."""
        return super().gain(self._seen(sources))

    def mixing(
        self, outputs: Sequence[Float[Tensor, "*tokens width"]]
    ) -> Float[Tensor, "reads sources *tokens"] | None:
        """As in `Stream`; None with several heads, which have weights of their own, and where sources are normed."""
        return None if self.variant.heads > 1 or self.variant.normed_sources else super().mixing(outputs)

    def describe(self) -> str:
        return f"{super().describe()}; {self.variant.describe()}"

    def _weights(self, sources: tuple[Tensor, ...], key: str) -> Tensor:
        """Mean over heads, 0 for sources outside the window; those of a sigmoid need not sum to 1."""
        weights = self._weigh(self._visible(sources), key).mean(-1)
        hidden = weights.new_zeros(len(sources) - len(weights), *weights.shape[1:])
        return torch.cat((weights[:1], hidden, weights[1:]))

    def _attend(self, sources: tuple[Tensor, ...], key: str) -> Tensor:
        visible = self._visible(sources)
        mixed = weighted_sum(visible, self._weigh(visible, key), self.gain(len(sources)))
        return mixed.to(sources[0].dtype)

    def _weigh(self, sources: tuple[Tensor, ...], key: str) -> Float[Tensor, "sources *tokens heads"]:
        """The weights of all sources given, head by head."""
        scores = self._logits(sources, key) * self.variant.logit_scale
        if self.variant.weighting is Weighting.SIGMOID:
            return scores.sigmoid() * (2 / len(sources))
        return scores.softmax(0)

    def _logits(self, sources: tuple[Tensor, ...], key: str) -> Float[Tensor, "sources *tokens heads"]:
        variant, like = self.variant, sources[0]
        if variant.query is Query.NONE:
            scalars = self.depth_logits[key].to(compute_dtype(like.dtype))
            tokens = like.shape[:-1]
            return scalars.view(len(sources), *(1 for _ in tokens), variant.heads).expand(-1, *tokens, -1)
        # One norm over all heads, as the method has one norm a read: it leaves what is large in a key large.
        weight = self.key_norms[key] if variant.weighs_keys else None
        query = self._query(sources[-1], key)
        return logits(sources, query, weight, key_eps=self.reads.key_eps, heads=variant.heads)

    def _query(self, newest: Tensor, key: str) -> Tensor:
        """`[D]`, or `[..., D]` where it depends on the newest source."""
        if self.variant.query is Query.LEARNED:
            return self.queries[key]
        normed = newest.to(compute_dtype(newest.dtype)) * inverse_rms(newest, self.reads.key_eps) / self.shape.width
        with torch.autocast(newest.device.type, enabled=False):  # a stream keeps its precision
            return F.linear(normed, self.query_projections[key].to(normed.dtype))

    def _visible(self, sources: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The embedding and what is inside the window; normed, in the compute type, where the variant says so."""
        outputs = self._seen(len(sources)) - 1
        visible = (sources[0], *sources[len(sources) - outputs :])
        if not self.variant.normed_sources:
            return visible
        return tuple(source * inverse_rms(source, self.reads.key_eps) for source in visible)

    def _seen(self, sources: int) -> int:
        """How many of that many sources a read sees."""
        window = self.variant.window_sublayers
        return sources if window is None else min(sources, 1 + window)

    def _number(self, key: str) -> int:
        return self.shape.sublayers if key == self.OUTPUT else int(key)
