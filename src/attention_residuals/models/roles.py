"""What each parameter is for. Initialisation and optimisers go by role, never by shape or number of dimensions."""

from enum import Enum

from torch import nn

from attention_residuals.nn import (
    ExpertLinear,
    ExpertOutputLinear,
    HeadLinear,
    OutputLinear,
    ShortConvolution,
    StateDecay,
)
from attention_residuals.streams import DepthCoefficients, DepthMatrices, KeyNorms, Norms, PreNorms, Queries


class Role(Enum):
    """The use of a parameter; the value is its name for people.

    A tensor of an expert role is a stack of matrices, one an expert. The matrix of a router is a matrix as any other.
    """

    EMBEDDING = "embedding"
    MATRIX = "matrix"
    OUTPUT = "output matrix"
    EXPERT_MATRIX = "expert matrix"
    EXPERT_OUTPUT = "expert output matrix"
    HEAD = "head"
    BIAS = "bias"
    NORM = "norm"
    DEPTH_QUERY = "depth query"
    DEPTH_NORM = "depth norm"
    DEPTH_COEFFICIENT = "depth coefficient"
    DEPTH_MATRIX = "depth matrix"
    CONVOLUTION = "convolution"
    STATE_DECAY = "state decay"


_ROLE_OF_MODULE: tuple[tuple[type[nn.Module], Role], ...] = (
    (Queries, Role.DEPTH_QUERY),
    (KeyNorms, Role.DEPTH_NORM),
    (DepthMatrices, Role.DEPTH_MATRIX),
    (DepthCoefficients, Role.DEPTH_COEFFICIENT),
    (PreNorms, Role.NORM),
    (Norms, Role.NORM),
    (nn.RMSNorm, Role.NORM),
    (nn.LayerNorm, Role.NORM),
    (nn.Embedding, Role.EMBEDDING),
    (ExpertOutputLinear, Role.EXPERT_OUTPUT),
    (ExpertLinear, Role.EXPERT_MATRIX),
    (OutputLinear, Role.OUTPUT),
    (HeadLinear, Role.HEAD),
    (nn.Linear, Role.MATRIX),
    (ShortConvolution, Role.CONVOLUTION),
    (StateDecay, Role.STATE_DECAY),  # its own parameters, that is; its matrices are matrices
)


def parameter_roles(model: nn.Module) -> dict[str, Role]:
    """Role of every parameter by name.

    Raises:
        TypeError: a module that owns parameters and is of no known type: a guess could decay what must not be decayed.
    """
    roles: dict[str, Role] = {}
    for prefix, module in model.named_modules():
        for name, _ in module.named_parameters(prefix, recurse=False):
            roles[name] = _role(module, name)
    return roles


def _role(module: nn.Module, name: str) -> Role:
    for kind, role in _ROLE_OF_MODULE:
        if isinstance(module, kind):
            return Role.BIAS if name.endswith(".bias") else role
    raise TypeError(f"{name} belongs to a {type(module).__name__}, whose role is unknown; add it to models/roles.py")
