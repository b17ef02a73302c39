"""DenseFormer: a learned average over the hidden states behind all earlier blocks, after each block.

    X_i = B_i(Y_(i-1))        Y_i = sum over j <= i of a[i, j] X_j        X_0 = Y_0 the embedding

From Pagliardini et al., arXiv 2402.02622, section 3.1. B_i is a whole Transformer block (attention and MLP) with its
standard residuals inside, so the average is over hidden states and not over outputs, and it comes every
`sublayers_per_layer` sublayers. The head reads the last average Y.

Dilation k keeps the X_j with j = i modulo k; period p averages behind every p-th block alone and passes X_i on
elsewhere (section 3.2). The defaults, 1 and 1, are the plain form; arXiv 2603.15031, which reports no gain, does not
say which one it took. Weights are scalars of any sign, not normalised, and start as in section 3.1: one for X_i and
zero for the rest, so that the network starts as the standard residual.

Choices: sublayers left over behind the last whole block add to the stream without an average. Weights have the
learning rate of depth coefficients and no weight decay.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from attention_residuals.errors import require_positive
from attention_residuals.streams.base import Residual, State, Stream, StreamShape
from attention_residuals.streams.parameters import DepthCoefficients
from attention_residuals.streams.rivals.mixing import fixed_mixing, weighted_sum


@final
@dataclass(frozen=True)
class DenseFormer(Residual):
    """Depth-weighted averages behind blocks; formula and choices at the head of this file.

    Args:
        dilation: an average behind block i takes every `dilation`-th hidden state, counted back from i.
        period: how many blocks there are to an average.
        sublayers_per_layer: sublayers of a block.

    Raises:
        InputError: one of them is below 1.
    """

    dilation: int = 1
    period: int = 1
    sublayers_per_layer: int = 2

    def __post_init__(self) -> None:
        require_positive(self, "dilation", "period", "sublayers_per_layer")

    def _build(self, shape: StreamShape) -> "DenseFormerStream":
        return DenseFormerStream(self, shape)


@final
class DenseFormerStream(Stream):
    """State: `(h, (X_0, X_1, ...))`, the running tensor and the hidden states behind the blocks that have ended."""

    def __init__(self, config: DenseFormer, shape: StreamShape):
        super().__init__(shape)
        self.config = config
        block = config.sublayers_per_layer
        taken = {i: self._taken((i + 1) // block) for i in range(block - 1, shape.sublayers, block)}
        self.averages = DepthCoefficients({i: partial(_last, len(states)) for i, states in taken.items() if states})

    def start(self, embedding: Float[Tensor, "*tokens width"]) -> State:
        return (embedding, (embedding,))

    def mixture(self, state: State, i: int) -> Float[Tensor, "*tokens width"]:
        return state[0]

    def write(self, state: State, i: int, output: Float[Tensor, "*tokens width"]) -> State:
        h, hidden = state[0] + output, state[1]
        if (i + 1) % self.config.sublayers_per_layer:
            return (h, hidden)
        hidden = (*hidden, h)
        taken = self._taken(len(hidden) - 1)
        if not taken:
            return (h, hidden)
        return (weighted_sum([hidden[j] for j in taken], self.averages[str(i)]), hidden)

    def finish(self, state: State) -> Float[Tensor, "*tokens width"]:
        return state[0]

    def carried(self, state: State) -> Float[Tensor, "*tokens width"]:
        return state[0]

    def mixing(self, outputs: Sequence[Float[Tensor, "*tokens width"]]) -> Float[Tensor, "reads sources *tokens"]:
        return fixed_mixing(self, outputs)

    def describe(self) -> str:
        config = self.config
        blocks = self.shape.sublayers // config.sublayers_per_layer
        return f"DenseFormer over {blocks} blocks, dilation {config.dilation}, period {config.period}"

    def _taken(self, block: int) -> list[int]:
        """Which hidden states the average behind block `block` (1-based) takes, none where there is no average."""
        if block % self.config.period:
            return []
        return list(range(block % self.config.dilation, block + 1, self.config.dilation))


def _last(count: int) -> Tensor:
    """`[count]`, the last one and zeros before it."""
    return torch.cat((torch.zeros(count - 1), torch.ones(1)))
