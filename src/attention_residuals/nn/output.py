"""The matrix a sublayer ends with."""

from torch import nn


class OutputLinear(nn.Linear):
    """A linear map whose result is written to the residual stream: a type of its own, since its initial size is."""
