"""Learned parameters of a residual stream, keyed by sublayer number; their class says what they are for."""

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

import torch
from torch import Tensor, nn

Start: TypeAlias = Callable[[], Tensor]
"""Makes the value that a parameter starts from, on torch's default device."""


class Vectors(nn.ParameterDict):
    """Learned vectors `[D]` keyed by sublayer number, so that names survive when a pipeline stage drops sublayers."""

    def __init__(self, keys: Iterable[int | str], width: int, fill: float):
        super().__init__({str(key): nn.Parameter(torch.full((width,), fill)) for key in keys})

    def __getitem__(self, key: str) -> nn.Parameter:
        # Looked up at every read: the way of ParameterDict takes as long as a small kernel.
        parameter = self._parameters[key]
        assert parameter is not None
        return parameter

    @property
    def by_key(self) -> dict[str, nn.Parameter | None]:
        """The vectors in the dictionary that holds them: even a look at an attribute of a module takes long."""
        return self._parameters


class PreNorms(Vectors):
    """Weights of the RMSNorm in front of each sublayer. They live in the stream: `read` returns the normed input."""


class Norms(Vectors):
    """Weights of other RMSNorms of a stream."""


class DepthCoefficients(nn.ParameterDict):
    """Gates, mixing weights and scales, each kept at the value it starts from until training changes it."""

    def __init__(self, starts: Mapping[int | str, Start]):
        super().__init__({str(key): nn.Parameter(start()) for key, start in starts.items()})
        self.starts = {str(key): start for key, start in starts.items()}

    def __getitem__(self, key: str) -> nn.Parameter:
        parameter = self._parameters[key]
        assert parameter is not None
        return parameter

    def start(self, key: str) -> Tensor:
        """The value that parameter `key` starts from, on the CPU."""
        with torch.device("cpu"):
            return self.starts[key]()


class DepthMatrices(DepthCoefficients):
    """Projections `[out, in]` from features, for schemes whose routing or mixing needs them."""
