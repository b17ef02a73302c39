"""LayerScale: every output is added through a learned diagonal that starts near zero.

    h_(l+1) = h_l + diag(s_l) f_l(h_l)        s_l of shape [D]

From Touvron et al., arXiv 2103.17239, section 2. Every entry starts at a small number that falls with depth: 0.1 up to
18 layers of attention and MLP, 1e-5 up to 24, 1e-6 beyond. Outputs start at the size of their input, as there, without
the 1/sqrt(L) of a plain sum: the diagonal is what scales them.

There is no depth mixing matrix: a source has a weight per channel.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from attention_residuals.errors import InputError, require_positive
from attention_residuals.streams.base import Residual, State, StreamShape
from attention_residuals.streams.parameters import DepthCoefficients
from attention_residuals.streams.rivals.running import RunningStream

STARTS = ((18, 0.1), (24, 1e-5), (math.inf, 1e-6))
"""Up to how many layers the diagonal starts from which number."""


@final
@dataclass(frozen=True)
class LayerScale(Residual):
    """A diagonal per sublayer, small at the start; formula and choices at the head of this file.

    Args:
        scale: what every entry starts from. None: what the authors take for the depth.
        sublayers_per_layer: sublayers of a layer, for the depth as the authors count it.

    Raises:
        InputError: a scale that is not finite, sublayers below 1.
    """

    scale: float | None = None
    sublayers_per_layer: int = 2

    def __post_init__(self) -> None:
        require_positive(self, "sublayers_per_layer")
        if self.scale is not None and not math.isfinite(self.scale):
            raise InputError(f"scale is {self.scale}; it must be a finite number, for example 0.1, or none")

    def starts_from(self, sublayers: int) -> float:
        """What the entries start from in a network of `sublayers`."""
        if self.scale is not None:
            return self.scale
        layers = sublayers / self.sublayers_per_layer
        return next(scale for most, scale in STARTS if layers <= most)

    def _build(self, shape: StreamShape) -> "LayerScaleStream":
        return LayerScaleStream(self.starts_from(shape.sublayers), shape)


@final
class LayerScaleStream(RunningStream):
    """State: `(h,)`."""

    def __init__(self, scale: float, shape: StreamShape):
        super().__init__(shape)
        self.scale = scale
        start = partial(torch.full, (shape.width,), scale)
        self.diagonals = DepthCoefficients(dict.fromkeys(range(shape.sublayers), start))

    @property
    def output_scale(self) -> float:
        return 1.0

    def write(self, state: State, i: int, output: Float[Tensor, "*tokens width"]) -> State:
        h = state[0]
        return (torch.addcmul(h, output.to(h.dtype), self.diagonals[str(i)]),)

    def describe(self) -> str:
        return f"LayerScale from {self.scale:g} over {self.shape.sublayers} sublayers"
