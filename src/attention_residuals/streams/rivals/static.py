"""Static depth weights: learned constants in the place of query and keys.

    h_l = sum over i < l of a[l, i] v_i        v_0 the embedding, v_i the output of sublayer i

The input-independent mixing of arXiv 2603.15031 (section 5.3, Table 4), which removes query and keys and gives every
read learned scalars; the head has a read too, as there. The paper leaves open whether the scalars are normalised:

* `softmax=True`, the default: a[l] is the softmax of learned logits, so that nothing but the dependence on the input
  is taken from Attention Residuals. Logits start at zero: the mean of all sources, which is what AttnRes starts from,
  and the standard residual up to a factor that the norm behind it forgets.
* `softmax=False`: a[l] are the scalars themselves, of any sign. They start at one: the standard residual, exactly.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from attention_residuals.streams.base import Residual, StreamShape
from attention_residuals.streams.parameters import DepthCoefficients
from attention_residuals.streams.rivals.cross_layer import CrossLayerStream
from attention_residuals.streams.rivals.mixing import fixed_mixing, weighted_sum


@final
@dataclass(frozen=True)
class StaticDepth(Residual):
    """Static depth weights over all earlier outputs; formula and choices at the head of this file.

    Args:
        softmax: the weights of a read are the softmax of what is learned. False: what is learned itself.
    """

    softmax: bool = True

    def _build(self, shape: StreamShape) -> "StaticDepthStream":
        return StaticDepthStream(self, shape)


@final
class StaticDepthStream(CrossLayerStream):
    """State: all sources. A read of N sources has N scalars."""

    def __init__(self, config: StaticDepth, shape: StreamShape):
        super().__init__(shape)
        self.config = config
        fill = 0.0 if config.softmax else 1.0
        reads = self.sources_of_reads().items()
        self.scalars = DepthCoefficients({key: partial(torch.full, (count,), fill) for key, count in reads})

    def mix(self, sources: tuple[Tensor, ...], key: str) -> Float[Tensor, "*tokens width"]:
        scalars = self.scalars[key]
        return weighted_sum(sources, scalars.softmax(0) if self.config.softmax else scalars)

    def mixing(self, outputs: Sequence[Float[Tensor, "*tokens width"]]) -> Float[Tensor, "reads sources *tokens"]:
        return fixed_mixing(self, outputs)

    def describe(self) -> str:
        kind = "softmax of learned scalars" if self.config.softmax else "learned scalars"
        return f"static depth weights, {kind}, over {self.shape.sublayers} sublayers"
