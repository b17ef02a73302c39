"""Post-norm: the sum is normed after every sublayer, and the sublayer sees what was normed.

    h_(l+1) = Norm_l(h_l + f_l(h_l))

From Vaswani et al., arXiv 1706.03762, section 3.1, with RMSNorm for LayerNorm as everywhere in this library.

A post-norm network has no pre-norms, so `build(pre_norm=True)` makes none: `read` returns h_l, which is normed but for
h_1, the embedding, which enters as it is. The norm behind the last sublayer is the final norm of the network, for
`finish` answers what is not yet normed; a norm of its own in front of that one would be one too many. Outputs start at
the size of their input, as there, without the 1/sqrt(L) of a plain sum: the norm is what scales them.

There is no depth mixing matrix: the weight of a norm gives every channel of a source a weight of its own.
"""

import dataclasses
from dataclasses import dataclass
from typing import final

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from attention_residuals.streams.base import Residual, State, Stream, StreamShape
from attention_residuals.streams.parameters import Norms


@final
@dataclass(frozen=True)
class PostNorm(Residual):
    """A norm behind every sum; formula and choices at the head of this file."""

    def _build(self, shape: StreamShape) -> "PostNormStream":
        return PostNormStream(shape)


class PostNormStream(Stream):
    """State: `(h, s)`, what the next sublayer reads and the sum it is the norm of; `(s, s)` after the last one.

    `post_norms` are keyed by the sublayer they stand behind.
    """

    carry: float = 1.0
    """Factor on h in the sum."""

    def __init__(self, shape: StreamShape):
        super().__init__(dataclasses.replace(shape, pre_norm=False))
        self.post_norms = Norms(range(shape.sublayers - 1), shape.width, fill=1.0)

    @property
    def output_scale(self) -> float:
        return 1.0

    def start(self, embedding: Float[Tensor, "*tokens width"]) -> State:
        return (embedding, embedding)

    def mixture(self, state: State, i: int) -> Float[Tensor, "*tokens width"]:
        return state[0]

    def write(self, state: State, i: int, output: Float[Tensor, "*tokens width"]) -> State:
        h = state[0]
        total = torch.add(output.to(h.dtype), h, alpha=self.carry)
        if i + 1 == self.shape.sublayers:
            return (total, total)
        return (F.rms_norm(total, (self.shape.width,), self.post_norms[str(i)], self.shape.norm_eps), total)

    def finish(self, state: State) -> Float[Tensor, "*tokens width"]:
        return state[1]

    def carried(self, state: State) -> Float[Tensor, "*tokens width"]:
        return state[1]

    def describe(self) -> str:
        return f"post-norm over {self.shape.sublayers} sublayers"
