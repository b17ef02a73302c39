"""Initialisation by parameter name: values depend on seed, name and shape, never on the order of calls."""

import hashlib

import torch
from torch import Tensor, nn

from attention_residuals.models.roles import Role, parameter_roles


def init_weights(model: nn.Module, *, seed: int) -> None:
    """Fill every parameter in place.

    Matrices and embeddings are normal, with standard deviation in^-1/2 for a matrix `[out, in]` and D^-1/2 for an
    embedding `[V, D]`, so that a normed input gives outputs of size about 1. Norms are one; biases and depth queries
    are exactly zero.
    """
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, role in parameter_roles(model).items():
            _fill(parameters[name], role, f"{seed}/{name}")


def _fill(parameter: Tensor, role: Role, key: str) -> None:
    if role in (Role.NORM, Role.DEPTH_NORM):
        parameter.fill_(1.0)
    elif role in (Role.BIAS, Role.DEPTH_QUERY):
        parameter.zero_()
    else:
        # Drawn on the CPU in float32, so that every device and type starts from the same numbers.
        generator = torch.Generator().manual_seed(_number(key))
        values = torch.randn(parameter.shape, generator=generator)
        parameter.copy_(values * parameter.shape[-1] ** -0.5)


def _number(key: str) -> int:
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") >> 1
