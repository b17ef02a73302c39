"""DeepNorm: post-norm with a longer carry and smaller weights, both by the depth.

    h_(l+1) = Norm_l(alpha h_l + f_l(h_l))        alpha = (2M)^(1/4), beta = (8M)^(-1/4) for M layers

From Wang et al., arXiv 2203.00555, section 3 (decoder alone). A layer is attention and MLP, so with L sublayers
alpha = L^(1/4) and beta = (4L)^(-1/4); neither is learned. RMSNorm for LayerNorm; the rest is as in post-norm.

beta is the initial gain of the value and output matrices of attention and of both matrices of the MLP. Initialisation
here knows of the matrices that write to the stream alone, so they carry the square, beta^2 = (4L)^(-1/2), and the inner
ones keep a gain of one: outputs start at the same size as with beta on both, the gradients of the two matrices do not.
"""

from dataclasses import dataclass
from typing import final

from attention_residuals.streams.base import Residual, StreamShape
from attention_residuals.streams.rivals.postnorm import PostNormStream


@final
@dataclass(frozen=True)
class DeepNorm(Residual):
    """Post-norm with fixed factors by the depth; formula and choices at the head of this file."""

    def _build(self, shape: StreamShape) -> "DeepNormStream":
        return DeepNormStream(shape)


@final
class DeepNormStream(PostNormStream):
    """State as in `PostNormStream`."""

    def __init__(self, shape: StreamShape):
        super().__init__(shape)
        self.carry = shape.sublayers**0.25

    @property
    def output_scale(self) -> float:
        return (4 * self.shape.sublayers) ** -0.5

    def describe(self) -> str:
        return f"DeepNorm over {self.shape.sublayers} sublayers, alpha {self.carry:.3f}"
