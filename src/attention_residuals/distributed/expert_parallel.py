"""Experts spread over ranks that see different tokens: each row goes to the rank of its expert, and back.

Two all-to-alls a layer, of exactly the rows there are (GShard, arXiv 2006.16668, without its capacity): no token is
dropped. Each rank first says how many rows of each expert it will send. In the backward they run the other way.

A rank's loss is the mean over its own tokens, and what is learned from is the mean of these over the ranks. Experts see
the tokens of all ranks at once, so the gradient that reaches them is divided by the number of ranks, and multiplied
again where it goes back to the tokens: gradients of experts are then averaged, as all others are, over those that hold
the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from attention_residuals.distributed.layout import require_divided_experts
from attention_residuals.distributed.sharding import sharing_policy
from attention_residuals.nn import ExpertLinear, MixtureOfExperts
from attention_residuals.nn.experts import grouped_product
from attention_residuals.ops.compiler import uncompiled


def spread_experts(model: nn.Module, mesh: DeviceMesh) -> None:
    """Give each rank of the one dimension of `mesh` its part of the experts of every mixture in `model`, in place.

    Parameters keep their names and become DTensors. From here on a forward or backward is collective over `mesh`, and
    each rank has tokens of its own, as many or few as it likes. The gradient of a rank's loss is that of its tokens in
    all other parameters, and in those of its experts 1 / ranks of the sum over all ranks.

    Raises:
        InputError: no experts, or a number that the ranks do not divide, on every rank alike and before any waits.
    """
    mixtures = _mixtures(model)
    require_divided_experts((mixture.router.experts for mixture in mixtures), mesh.size())
    for mixture in mixtures:
        for linear in (mixture.gate, mixture.up, mixture.output):
            # Every rank has the same values, or none yet, so nothing need be sent.
            own = distribute_tensor(linear.weight, mesh, [Shard(0)], src_data_rank=None)
            linear.weight = nn.Parameter(own)
            linear.forward = OwnProduct(linear)
        mixture.through_experts = SpreadExperts(mixture, mesh.get_group())


def share_experts(model: nn.Module, mesh: DeviceMesh, compute: torch.dtype) -> None:
    """Share spread experts among the ranks that hold the same, FSDP2 or, if there are copies, HSDP, in place.

    `mesh` is that of `open_expert_mesh`, of which `spread_experts` had the last dimension. What is left of the model is
    for `shard_parameters`, later.
    """
    copies = mesh["expert_replica"].size() > 1
    same = mesh["expert_replica", "expert_shard"] if copies else mesh["expert_shard"]
    for mixture in _mixtures(model):
        fully_shard([mixture.gate, mixture.up, mixture.output], mesh=same, mp_policy=sharing_policy(compute))


def _mixtures(model: nn.Module) -> list[MixtureOfExperts]:
    return [module for module in model.modules() if isinstance(module, MixtureOfExperts)]


@dataclass(frozen=True, eq=False)
class OwnProduct:
    """The forward of an `ExpertLinear` with the matrices of this rank alone, and rows of its experts."""

    linear: ExpertLinear

    def __call__(self, x: Float[Tensor, "n inputs"], load: Int[Tensor, "own"]) -> Float[Tensor, "n outputs"]:
        weight = self.linear.weight
        assert isinstance(weight, DTensor)
        return grouped_product(x, weight.to_local(), load)


@dataclass(frozen=True, eq=False)
class SpreadExperts:
    """`MixtureOfExperts.through_experts` where the experts are spread over the ranks of `group`."""

    mixture: MixtureOfExperts
    group: dist.ProcessGroup

    # Left out of compiled graphs: how many rows come is another number each time.
    @uncompiled
    def __call__(self, rows: Float[Tensor, "n width"], load: Int[Tensor, "experts"]) -> Float[Tensor, "n width"]:
        ranks = dist.get_world_size(self.group)
        plan, coming = exchange_loads(load.view(ranks, -1), self.group)
        arrived = _Exchange.apply(rows, plan, self.group, float(ranks))
        # They lie rank by rank, and in each expert by expert.
        kinds = torch.arange(coming.shape[1], device=load.device).repeat(ranks)
        order = kinds.repeat_interleave(coming.flatten(), output_size=len(arrived)).argsort(stable=True)
        outputs = MixtureOfExperts.through_experts(self.mixture, arrived[order], coming.sum(0))
        return _Exchange.apply(outputs[order.argsort()], plan.turned, self.group, 1 / ranks)


class Plan(NamedTuple):
    """How many rows go to each rank, and how many come from each."""

    going: Sequence[int]
    coming: Sequence[int]

    @property
    def turned(self) -> "Plan":
        """The way back."""
        return Plan(self.coming, self.going)


def exchange_loads(load: Int[Tensor, "ranks own"], group: dist.ProcessGroup) -> tuple[Plan, Int[Tensor, "ranks own"]]:
    """Tell each rank of `group` how many rows its experts get from here, `load`, and hear the same from each."""
    coming = torch.empty_like(load)
    dist.all_to_all_single(coming, load.contiguous(), group=group)
    return Plan(load.sum(1).tolist(), coming.sum(1).tolist()), coming


class _Exchange(torch.autograd.Function):
    """Rows to other ranks by a plan; their gradients, times `factor`, the other way."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, plan: Plan, group: dist.ProcessGroup, factor: float) -> Tensor:
        ctx.plan, ctx.group, ctx.factor = plan, group, factor
        arrived = rows.new_empty(sum(plan.coming), *rows.shape[1:])
        dist.all_to_all_single(arrived, rows.contiguous(), list(plan.coming), list(plan.going), group=group)
        return arrived

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grad_outputs
        return _Exchange.apply(grad, ctx.plan.turned, ctx.group, 1.0) * ctx.factor, None, None, None
