"""SiameseNorm: a post-norm and a pre-norm stream side by side, fed by the same outputs.

    z_l = X_l + Norm_y,l(Y_l)                  what sublayer l reads, in front of its pre-norm
    X_(l+1) = Norm_x,l+1(X_l + f_l / c_l)      Y_(l+1) = Y_l + f_l
    X_1 = Norm_x,1(embedding)                  Y_1 = embedding

From Li et al., arXiv 2602.08064. The head sees X + Norm_y(Y) in front of the final norm of the network. Norms of X,
norms of Y and the norm in front of the sublayer all have weights of their own, and c_l is the square root of the number
of sublayers to the end of the layer of l: that is how the authors' published DeiT and OLMo models have it. Table 5 of
arXiv 2603.15031 quotes the two updates without c.

Choices: RMSNorm for LayerNorm. The authors' language model leaves out some of the three norms around attention; here
every sublayer has them all, as in their DeiT. `build(pre_norm=False)` drops the norm in front of the sublayer alone.

There is no depth mixing matrix: the weights of the norms give every channel of a source a weight of its own.
"""

import math
from dataclasses import dataclass
from typing import final

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from attention_residuals.errors import require_positive
from attention_residuals.streams.base import Residual, State, Stream, StreamShape
from attention_residuals.streams.parameters import Norms


@final
@dataclass(frozen=True)
class SiameseNorm(Residual):
    """Paired streams; formula and choices at the head of this file.

    Args:
        sublayers_per_layer: sublayers of a layer, for the divisor c as the authors count it.

    Raises:
        InputError: sublayers below 1.
    """

    sublayers_per_layer: int = 2

    def __post_init__(self) -> None:
        require_positive(self, "sublayers_per_layer")

    def _build(self, shape: StreamShape) -> "SiameseNormStream":
        return SiameseNormStream(self, shape)


@final
class SiameseNormStream(Stream):
    """State: `(X, Y)`. Norms are keyed by the sublayer that reads, and `output` for the head."""

    OUTPUT = "output"

    def __init__(self, config: SiameseNorm, shape: StreamShape):
        super().__init__(shape)
        self.config = config
        reads = [*range(shape.sublayers), self.OUTPUT]
        self.x_norms = Norms(reads, shape.width, fill=1.0)
        self.y_norms = Norms(reads, shape.width, fill=1.0)

    def start(self, embedding: Float[Tensor, "*tokens width"]) -> State:
        return (self._norm(embedding, self.x_norms, 0), embedding)

    def mixture(self, state: State, i: int) -> Float[Tensor, "*tokens width"]:
        x, y = state
        return x + self._norm(y, self.y_norms, i)

    def write(self, state: State, i: int, output: Float[Tensor, "*tokens width"]) -> State:
        (x, y), output = state, output.to(state[0].dtype)
        total = torch.add(x, output, alpha=1 / self.divisor(i))
        return (self._norm(total, self.x_norms, i + 1), y + output)

    def finish(self, state: State) -> Float[Tensor, "*tokens width"]:
        return self.mixture(state, self.shape.sublayers)

    def carried(self, state: State) -> Float[Tensor, "*tokens width"]:
        return state[1]

    def divisor(self, i: int) -> float:
        """What the output of sublayer `i` is divided by on its way into the post-norm stream."""
        layers = i // self.config.sublayers_per_layer + 1
        return math.sqrt(layers * self.config.sublayers_per_layer)

    def describe(self) -> str:
        return f"SiameseNorm over {self.shape.sublayers} sublayers"

    def _norm(self, x: Tensor, norms: Norms, read: int) -> Tensor:
        key = self.OUTPUT if read == self.shape.sublayers else str(read)
        return F.rms_norm(x, (self.shape.width,), norms[key], self.shape.norm_eps)
