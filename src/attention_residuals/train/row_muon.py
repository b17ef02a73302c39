"""A control for experiments: Muon on vectors, which is what it does to depth queries that are stored as `[1, D]`."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn


class RowMuon(torch.optim.Muon):
    """`torch.optim.Muon` over vectors `[D]`, each taken for a matrix `[1, D]` of the same memory.

    Torch's Muon takes matrices alone, so the groups hold the rows; gradients are read from and dropped at the vectors.
    `vectors` has those of the rows, in the order of the groups.
    """

    def __init__(self, groups: Sequence[dict[str, Any]], **settings: Any):
        self.vectors: list[nn.Parameter] = [vector for group in groups for vector in group["params"]]
        super().__init__(
            [{**group, "params": [_row(vector) for vector in group["params"]]} for group in groups], **settings
        )

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        rows = [row for group in self.param_groups for row in group["params"]]
        for row, vector in zip(rows, self.vectors, strict=True):
            row.grad = None if vector.grad is None else vector.grad.unsqueeze(0)
        return super().step(closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)
        for vector in self.vectors:
            vector.grad = None


def _row(vector: nn.Parameter) -> nn.Parameter:
    return nn.Parameter(vector.detach().unsqueeze(0))
