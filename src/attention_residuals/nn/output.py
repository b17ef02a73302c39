"""The matrices a sublayer and a decoder end with."""

from torch import nn


class OutputLinear(nn.Linear):
    """A linear map whose result is written to the residual stream: a type of its own, since its initial size is."""


class HeadLinear(nn.Linear):
    """The linear map from features to logits: a type of its own, since an optimiser may treat it as an embedding."""
