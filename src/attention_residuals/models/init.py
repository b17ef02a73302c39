"""Initialisation by parameter name: values depend on seed, name and shape, never on the order of calls."""

import hashlib
from collections.abc import Container

import torch
from torch import Tensor, nn

from attention_residuals.models.roles import Role, parameter_roles
from attention_residuals.nn import StateDecay
from attention_residuals.streams import DepthCoefficients


def init_weights(
    model: nn.Module,
    *,
    seed: int,
    embedding_std: float = 1.0,
    output_scale: float = 1.0,
    only: Container[str] | None = None,
) -> None:
    """Fill every parameter in place, or those named in `only`.

    A matrix `[out, in]`, or each of a stack of them, is normal with standard deviation in^-1/2, so that a normed input
    gives outputs of size 1; those that write to the stream are smaller by `output_scale`. Convolutions likewise, over
    their tokens. Embeddings are normal with `embedding_std`. Norms are one; biases and depth queries are exactly zero.
    Depth coefficients and matrices start where their stream says, decays of a state where their owner says.
    """
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, role in parameter_roles(model).items():
            if only is not None and name not in only:
                continue
            parameter = parameters[name]
            if role in (Role.NORM, Role.DEPTH_NORM):
                parameter.fill_(1.0)
            elif role in (Role.BIAS, Role.DEPTH_QUERY):
                parameter.zero_()
            elif role in (Role.DEPTH_COEFFICIENT, Role.DEPTH_MATRIX):
                parameter.copy_(_start(model, name))
            elif role is Role.STATE_DECAY:
                parameter.copy_(_start_decay(model, name, parameter, f"{seed}/{name}"))
            elif role is Role.EMBEDDING:
                _fill_normal(parameter, embedding_std, f"{seed}/{name}")
            else:
                scale = output_scale if role in (Role.OUTPUT, Role.EXPERT_OUTPUT) else 1.0
                _fill_normal(parameter, scale * parameter.shape[-1] ** -0.5, f"{seed}/{name}")


def _start(model: nn.Module, name: str) -> Tensor:
    prefix, _, key = name.rpartition(".")
    owner = model.get_submodule(prefix)
    assert isinstance(owner, DepthCoefficients)
    return owner.start(key)


def _start_decay(model: nn.Module, name: str, parameter: Tensor, key: str) -> Tensor:
    prefix, _, name = name.rpartition(".")
    owner = model.get_submodule(prefix)
    assert isinstance(owner, StateDecay)
    uniform = torch.rand(parameter.shape, generator=_generator(key), dtype=torch.float32, device="cpu")
    return owner.start(name, uniform)


def _fill_normal(parameter: Tensor, std: float, key: str) -> None:
    values = torch.randn(parameter.shape, generator=_generator(key), dtype=torch.float32, device="cpu")
    parameter.copy_(values * std)


def _generator(key: str) -> torch.Generator:
    """To draw with on the CPU in float32, so that every device and type starts from the same numbers."""
    return torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") >> 1)
