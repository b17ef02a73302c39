"""Optimisers by role: frozen configs, and the torch optimisers they build. Shapes decide nothing here."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, final

import torch
from torch import nn

from attention_residuals.errors import InputError
from attention_residuals.models import Role, parameter_roles
from attention_residuals.train.row_muon import RowMuon
from attention_residuals.train.stacked_muon import StackedMuon

HIDDEN_MATRICES = (Role.MATRIX, Role.OUTPUT)
"""Matrices inside sublayers, from features to features."""

EXPERT_MATRICES = (Role.EXPERT_MATRIX, Role.EXPERT_OUTPUT)
"""Those of experts, one stack a layer; wherever hidden matrices are trained, these are trained alike."""

DECAYED = (*HIDDEN_MATRICES, *EXPERT_MATRICES, Role.HEAD)
DEPTH = (Role.DEPTH_QUERY, Role.DEPTH_NORM, Role.DEPTH_COEFFICIENT)
"""What routes over depth, at a rate of its own; depth matrices have the rate of all others. Neither is decayed."""

MATRICES_AND_QUERIES = (*HIDDEN_MATRICES, Role.DEPTH_QUERY)
"""A control for experiments, not for training: the depth queries wrongly under Muon. See `Muon`."""

FUSED_DEVICES = ("cpu", "cuda", "mps", "xpu")
"""Where torch has AdamW as one kernel."""

Groups: TypeAlias = dict[Role, dict[str, Any]]
"""A torch parameter group for each role, with `names`, `role` and `peak_lr` besides what torch needs."""


@dataclass(frozen=True, eq=False)
class Optimizers:
    """The torch optimisers of one model, by name, that step together.

    `clip_norm` is the norm to clip the gradient of the whole model to before `step`.
    """

    by_name: dict[str, torch.optim.Optimizer]
    clip_norm: float

    def set_rate(self, factor: float) -> None:
        """Set every group to its peak rate times `factor`."""
        for _, group in self._groups():
            group["lr"] = group["peak_lr"] * factor

    def step(self) -> None:
        """One step of each optimiser, from the gradients at hand."""
        for optimizer in self.by_name.values():
            optimizer.step()

    def zero_grad(self) -> None:
        """Drop the gradients."""
        for optimizer in self.by_name.values():
            optimizer.zero_grad(set_to_none=True)

    def describe(self) -> list[dict[str, Any]]:
        """The groups as rows for people: role, optimizer, tensors, parameters, learning_rate (peak), weight_decay."""
        return [
            {
                "role": group["role"],
                "optimizer": name,
                "tensors": len(group["params"]),
                "parameters": sum(parameter.numel() for parameter in group["params"]),
                "learning_rate": group["peak_lr"],
                "weight_decay": group["weight_decay"],
            }
            for name, group in self._groups()
        ]

    def _groups(self) -> list[tuple[str, dict[str, Any]]]:
        return [(name, group) for name, optimizer in self.by_name.items() for group in optimizer.param_groups]


@dataclass(frozen=True)
class Optimizer(ABC):
    """A frozen choice of optimiser; its type says which one. Rates are peaks, to be multiplied by a `Schedule`."""

    learning_rate: float

    @abstractmethod
    def rate(self, role: Role) -> float:
        """Peak learning rate of a role."""

    @abstractmethod
    def decay(self, role: Role) -> float:
        """Weight decay of a role, decoupled: each step shrinks a weight by the share rate x decay."""

    @abstractmethod
    def _build(self, groups: Groups) -> Optimizers: ...


@final
@dataclass(frozen=True)
class AdamW(Optimizer):
    """AdamW for every parameter.

    Queries and depth norms have a rate of their own and are never decayed: their size is the temperature of the depth
    softmax. Matrices alone are decayed; embeddings, norms and biases are not.

    Raises:
        InputError: a rate or clip norm that is not positive, a decay below 0, a beta outside [0, 1).
    """

    learning_rate: float = 5e-3
    depth_learning_rate: float = 1.5e-3
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    clip_norm: float = 1.0

    def __post_init__(self) -> None:
        _require_positive_numbers(self, "learning_rate", "depth_learning_rate", "clip_norm")
        if not (math.isfinite(self.weight_decay) and self.weight_decay >= 0):
            raise InputError(f"weight_decay is {self.weight_decay}; it must be a number of at least 0, for example 0.1")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise InputError(f"betas are {self.betas}; each must be at least 0 and below 1, for example (0.9, 0.95)")

    def rate(self, role: Role) -> float:
        return self.depth_learning_rate if role in DEPTH else self.learning_rate

    def decay(self, role: Role) -> float:
        return self.weight_decay if role in DECAYED else 0.0

    def _build(self, groups: Groups) -> Optimizers:
        return Optimizers(_present(adamw=_adamw(list(groups.values()), self)), self.clip_norm)


@final
@dataclass(frozen=True)
class Muon(Optimizer):
    """Muon (`torch.optim.Muon`) for the matrices inside sublayers, AdamW for everything else.

    An update is the momentum made orthogonal, scaled by 0.2 sqrt(longest side) so that its entries are about as large
    as those of AdamW (Liu et al., 2025, arXiv 2502.16982); rate and decay mean what they mean there. Embeddings and
    head stay with AdamW, as Muon's authors do it, and so do the depth queries: to make one row orthogonal is to give it
    length 1, so their step would not shrink with their gradient, though their size is a temperature.

    Args:
        learning_rate: peak rate of the matrices under Muon; those of depth parameters are `adamw`'s in any case.
        momentum: of the gradient's moving average, with Nesterov's look-ahead.
        roles: what Muon trains, besides the matrices of experts, each of which is one by itself.
            `MATRICES_AND_QUERIES` is a control: it also gives Muon the depth queries, each as a matrix `[1, D]`, with
            the rate and the missing decay that they have under AdamW, so the optimiser is all that changes. Its steps
            are then about a fifth of AdamW's where gradients agree; match rates if need be.
        adamw: everything else, the decay of the matrices included.

    Raises:
        InputError: a learning rate that is not positive, a momentum outside [0, 1), a role that Muon cannot train.
    """

    learning_rate: float = 5e-3
    momentum: float = 0.95
    roles: tuple[Role, ...] = HIDDEN_MATRICES
    adamw: AdamW = field(default_factory=AdamW)

    def __post_init__(self) -> None:
        _require_positive_numbers(self, "learning_rate")
        if not 0 <= self.momentum < 1:
            raise InputError(f"momentum is {self.momentum}; it must be at least 0 and below 1, for example 0.95")
        if self.roles not in (HIDDEN_MATRICES, MATRICES_AND_QUERIES):
            given = ", ".join(role.value if isinstance(role, Role) else repr(role) for role in self.roles) or "empty"
            raise InputError(f"roles of Muon are {given}; choose HIDDEN_MATRICES, or the control MATRICES_AND_QUERIES")

    def rate(self, role: Role) -> float:
        return self.learning_rate if role in (*HIDDEN_MATRICES, *EXPERT_MATRICES) else self.adamw.rate(role)

    def decay(self, role: Role) -> float:
        return self.adamw.decay(role)

    def _build(self, groups: Groups) -> Optimizers:
        settings: dict[str, Any] = {"momentum": self.momentum, "adjust_lr_fn": "match_rms_adamw"}
        matrices = [group for role, group in groups.items() if role in HIDDEN_MATRICES]
        queries = [group for role, group in groups.items() if role in self.roles and role in DEPTH]
        stacks = [group for role, group in groups.items() if role in EXPERT_MATRICES]
        others = [group for role, group in groups.items() if role not in (*self.roles, *EXPERT_MATRICES)]
        return Optimizers(
            _present(
                muon=torch.optim.Muon(matrices, **settings) if matrices else None,
                stacked_muon=StackedMuon(stacks, momentum=self.momentum) if stacks else None,
                row_muon=RowMuon(queries, **settings) if queries else None,
                adamw=_adamw(others, self.adamw),
            ),
            self.adamw.clip_norm,
        )


def build_optimizers(model: nn.Module, config: Optimizer) -> Optimizers:
    """The optimisers of `model`, every parameter in the group of its role.

    Raises:
        TypeError: a parameter whose role is unknown.
    """
    return build_optimizers_of((model,), config)


def build_optimizers_of(parts: Sequence[nn.Module], config: Optimizer) -> Optimizers:
    """As `build_optimizers`, of several parts of one model, whose parameters are named as in the whole."""
    parameters = {name: parameter for part in parts for name, parameter in part.named_parameters()}
    names_of_role: dict[Role, list[str]] = {}
    for part in parts:
        for name, role in parameter_roles(part).items():
            names_of_role.setdefault(role, []).append(name)
    groups: Groups = {
        role: {
            "params": [parameters[name] for name in names],
            "names": names,
            "role": role.value,
            "lr": config.rate(role),
            "peak_lr": config.rate(role),
            "weight_decay": config.decay(role),
        }
        for role, names in names_of_role.items()
    }
    return config._build(groups)


def _adamw(groups: Sequence[dict[str, Any]], config: AdamW) -> torch.optim.Optimizer | None:
    """One torch AdamW for the groups, None for none."""
    if not groups:
        return None
    devices = {parameter.device.type for group in groups for parameter in group["params"]}
    fused = True if devices <= set(FUSED_DEVICES) else None
    return torch.optim.AdamW(groups, betas=config.betas, fused=fused)


def _present(**optimizers: torch.optim.Optimizer | None) -> dict[str, torch.optim.Optimizer]:
    return {name: optimizer for name, optimizer in optimizers.items() if optimizer is not None}


def _require_positive_numbers(config: object, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        if not (math.isfinite(value) and value > 0):
            raise InputError(f"{name} is {value}; it must be a positive number")
