"""What every execution of Attention Residuals shares: parameters, schedule, and the softmax over depth itself."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import torch
from jaxtyping import Float
from torch import Tensor

from attention_residuals.ops import attn_res, compute_dtype
from attention_residuals.streams.base import OUTPUT, Boundary, State, Stream, StreamShape
from attention_residuals.streams.blocks import Partition
from attention_residuals.streams.parameters import Vectors


class ReadScale(Enum):
    """What the weights of a read sum to."""

    MEAN = "mean"
    """1, as in the paper: a zero query reads the mean of its sources."""

    SUM = "sum"
    """The number of sources: a zero query reads their sum, which *is* the standard residual, exactly, eps included."""


class Queries(Vectors):
    """Depth queries, one a read, zero at the start and through initialisation."""


class KeyNorms(Vectors):
    """Weights of the RMSNorm on the keys of each read."""


@dataclass(frozen=True)
class DepthReads:
    """The settings of `AttnRes`, resolved for one network; see there."""

    partition: Partition
    scale: ReadScale
    output_read: bool
    key_eps: float


class AttnResStream(Stream):
    """Parameters and schedule, whatever the order of execution.

    The sources of sublayer `i` are the embedding, the sums of the closed blocks and, inside a block, its partial sum:
    `sources + (output,)` where a block opens, `sources[:-1] + (sources[-1] + output,)` elsewhere (Eq. 5-6).
    Sublayer 0 reads one source, so it has no query: a softmax over one source has no gradient.
    """

    OUTPUT = OUTPUT

    def __init__(
        self,
        reads: DepthReads,
        shape: StreamShape,
        *,
        queries: bool = True,
        key_norms: bool = True,
        key_features: int | None = None,
    ):
        """`queries`, `key_norms`: whether reads have them. `key_features`: how many features a key has; None is D."""
        super().__init__(shape)
        self.reads = reads
        output = (self.OUTPUT,) if reads.output_read else ()
        self.read_keys = (*(str(i) for i in range(1, shape.sublayers)), *output)
        features = shape.width if key_features is None else key_features
        self.queries = Queries(self.read_keys if queries else (), features, fill=0.0)
        self.key_norms = KeyNorms(self.read_keys if key_norms else (), features, fill=1.0)

    @abstractmethod
    def sources(self, state: State) -> tuple[Tensor, ...]:
        """The sources `[..., D]` of the next read, in order of depth."""

    def gain(self, sources: int) -> float:
        """Factor on a mixture of that many sources."""
        return float(sources) if self.reads.scale is ReadScale.SUM else 1.0

    def finish(self, state: State) -> Float[Tensor, "*tokens width"]:
        sources = self.sources(state)
        if not self.reads.output_read:
            return sum(sources[1:], start=sources[0])
        return self._attend(sources, self.OUTPUT)

    def carried(self, state: State) -> Float[Tensor, "*tokens width"]:
        return self.sources(state)[-1]

    def weights(self, state: State, i: int) -> Float[Tensor, "sources *tokens"]:
        """Depth weights of read `i` (`i = sublayers`: the output read), for looking at.

        They sum to 1, save where a stream says otherwise. In float32, float64 for float64 sources, whether the read is
        learned or not.
        """
        sources = self.sources(state)
        key = self.OUTPUT if i == self.shape.sublayers else str(i)
        if key not in self.read_keys:
            shape = (len(sources), *sources[0].shape[:-1])
            return sources[0].new_full(shape, 1 / len(sources), dtype=compute_dtype(sources[0].dtype))
        return self._weights(sources, key)

    def mixing(
        self, outputs: Sequence[Float[Tensor, "*tokens width"]]
    ) -> Float[Tensor, "reads sources *tokens"] | None:
        """As in `Stream`; all outputs of a block share the weight of their sum."""
        state, rows = self.start(outputs[0]), []
        for i in range(len(outputs)):
            weights = self._weights_with_gain(state, i)
            row = weights.new_zeros(len(outputs), *weights.shape[1:])
            for v in range(i + 1):
                row[v] = weights[self.reads.partition.sources(v) - 1]
            rows.append(row)
            if i < self.shape.sublayers:
                state = self.write(state, i, outputs[i + 1])
        return torch.stack(rows)

    def _weights_with_gain(self, state: State, i: int) -> Float[Tensor, "sources *tokens"]:
        weights = self.weights(state, i)
        if i == self.shape.sublayers and not self.reads.output_read:
            return torch.ones_like(weights)
        return weights * self.gain(len(weights))

    def describe(self) -> str:
        return f"AttnRes {self.reads.partition.describe()}, read scale {self.reads.scale.value}"

    def _weights(self, sources: tuple[Tensor, ...], key: str) -> Tensor:
        """The weights `[N, ...]` of the read `key`, without its gain."""
        query, norm = self.queries[key], self.key_norms[key]
        return attn_res(sources, query, norm, eps=self.reads.key_eps, return_weights=True)[1]

    def _attend(self, sources: tuple[Tensor, ...], key: str) -> Tensor:
        """The mixture of the read `key`."""
        query, norm = self.queries[key], self.key_norms[key]
        return attn_res(sources, query, norm, eps=self.reads.key_eps, gain=self.gain(len(sources)))

    def _extend(self, sources: tuple[Tensor, ...], i: int, output: Tensor) -> tuple[Tensor, ...]:
        """The sources once sublayer `i` has written."""
        assert len(sources) == self.reads.partition.sources(i), f"state holds {len(sources)} sources, not those of {i}"
        output = output.to(sources[0].dtype)  # under autocast a sublayer may answer in a narrower type
        if self.reads.partition.opens_block(i):
            return (*sources, output)
        return (*sources[:-1], sources[-1] + output)


class CutStream(AttnResStream):
    """One whose state is its sources, and what can be made of them again; so it can be cut between any sublayers."""

    def boundary(self, i: int) -> Boundary:
        sources = self.reads.partition.sources(i)
        return Boundary(sources, sources if self.reads.partition.opens_block(i) else sources - 1)

    def pack(self, state: State) -> tuple[Float[Tensor, "*tokens width"], ...]:
        return self.sources(state)

    def keep(self, sublayers: range, *, head: bool) -> None:
        super().keep(sublayers, head=head)
        self.read_keys = tuple(key for key in self.read_keys if key in self._kept_keys(sublayers, head))
