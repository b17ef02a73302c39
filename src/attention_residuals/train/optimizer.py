"""AdamW with parameter groups by role, and the learning-rate schedule."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from attention_residuals.errors import InputError
from attention_residuals.models import Role, parameter_roles

DECAYED = (Role.MATRIX, Role.OUTPUT)
DEPTH = (Role.DEPTH_QUERY, Role.DEPTH_NORM)


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW. Rates are peaks of the schedule: linear warm-up, then a cosine down to `final_share` of the peak.

    Queries and depth norms have a rate of their own and are never decayed: their size is the temperature of the depth
    softmax. Matrices alone are decayed; embeddings, norms and biases are not.
    """

    learning_rate: float = 5e-3
    depth_learning_rate: float = 1.5e-3
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    warmup_share: float = 0.05
    final_share: float = 0.05
    clip_norm: float = 1.0

    def __post_init__(self) -> None:
        for name in ("learning_rate", "depth_learning_rate", "clip_norm"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise InputError(f"{name} is {value}; it must be a positive number")

    def factor(self, step: int, steps: int) -> float:
        """What the rates are multiplied by at `step` (0-based) of `steps`."""
        warmup = max(1, round(self.warmup_share * steps))
        if step < warmup:
            return (step + 1) / warmup
        progress = (step - warmup) / max(1, steps - warmup)
        return self.final_share + (1 - self.final_share) * 0.5 * (1 + math.cos(math.pi * progress))


def build_adamw(model: nn.Module, config: OptimizerConfig) -> torch.optim.AdamW:
    """AdamW over groups that each carry `role`, `names` and `peak_lr` besides what torch needs."""
    parameters = dict(model.named_parameters())
    names_of_role: dict[Role, list[str]] = {}
    for name, role in parameter_roles(model).items():
        names_of_role.setdefault(role, []).append(name)
    groups: list[dict[str, Any]] = []
    for role, names in names_of_role.items():
        rate = config.depth_learning_rate if role in DEPTH else config.learning_rate
        groups.append(
            {
                "params": [parameters[name] for name in names],
                "names": names,
                "role": role.value,
                "lr": rate,
                "peak_lr": rate,
                "weight_decay": config.weight_decay if role in DECAYED else 0.0,
            }
        )
    return torch.optim.AdamW(groups, betas=config.betas, fused=True)


def set_rate(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Set every group to its peak rate times `factor`."""
    for group in optimizer.param_groups:
        group["lr"] = group["peak_lr"] * factor


def describe_groups(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """The groups as rows for people: role, tensors, parameters, rate, decay."""
    return [
        {
            "role": group["role"],
            "tensors": len(group["params"]),
            "parameters": sum(parameter.numel() for parameter in group["params"]),
            "learning_rate": group["peak_lr"],
            "weight_decay": group["weight_decay"],
        }
        for group in optimizer.param_groups
    ]
