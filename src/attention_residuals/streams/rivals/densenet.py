"""DenseNet: every read is a learned projection of the concatenation of all earlier outputs.

    h_l = W_l [v_0; v_1; ...; v_(l-1)]        W_l of shape [D, l D]

From Huang et al., arXiv 1608.06993, section 3: each layer gets the concatenation of all feature maps before it. Theirs
is convolved inside the layer; here a matrix brings it back to the width of the sublayers, as in Table 5 of arXiv
2603.15031 ("ConvPool" of the concatenation). The projection is computed source by source, so that no concatenation is
ever made. It is the costly one among the schemes: D^2 parameters for every pair of a read and a source, more than the
sublayers themselves in a deep network.

Choices: the head has a projection too; no nonlinearity, for the norm and the sublayer behind it bring their own. Each
block of W_l starts as the identity, so that the network starts as the standard residual, as the others here do; the
authors draw their convolutions at random. There is no depth mixing matrix: a weight of a pair of channels is no weight
of a source.
"""

from dataclasses import dataclass
from functools import partial
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from attention_residuals.streams.base import Residual, StreamShape
from attention_residuals.streams.parameters import DepthMatrices
from attention_residuals.streams.rivals.cross_layer import CrossLayerStream


@final
@dataclass(frozen=True)
class DenseNet(Residual):
    """A projection of the concatenation of all earlier outputs; formula and choices at the head of this file."""

    def _build(self, shape: StreamShape) -> "DenseNetStream":
        return DenseNetStream(shape)


@final
class DenseNetStream(CrossLayerStream):
    """State: all sources. A read of N sources has a matrix `[D, N D]`."""

    def __init__(self, shape: StreamShape):
        super().__init__(shape)
        reads = self.sources_of_reads().items()
        self.projections = DepthMatrices({key: partial(_identities, count, shape.width) for key, count in reads})

    def mix(self, sources: tuple[Tensor, ...], key: str) -> Float[Tensor, "*tokens width"]:
        width = self.shape.width
        blocks = self.projections[key].split(width, dim=1)
        rows = [source.reshape(-1, width) for source in sources]
        mixed = rows[0] @ blocks[0].t()
        for row, block in zip(rows[1:], blocks[1:], strict=True):
            mixed = torch.addmm(mixed, row, block.t())
        return mixed.to(sources[0].dtype).view(sources[0].shape)

    def describe(self) -> str:
        return f"DenseNet over {self.shape.sublayers} sublayers"


def _identities(count: int, width: int) -> Tensor:
    """`[width, count * width]`."""
    return torch.eye(width).repeat(1, count)
