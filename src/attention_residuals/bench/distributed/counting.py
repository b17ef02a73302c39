"""What a rank of a pipeline sends and runs, counted where torch hands it to the process group."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage

from attention_residuals.distributed.orders import Action


@dataclass
class Counted:
    """Of one rank.

    Args:
        states, gradients: bytes sent, by the chunk behind the cut that they crossed.
        other: bytes sent that belong to no stage; there should be none.
        actions: what ran, in its order.
    """

    states: Counter[int] = field(default_factory=Counter)
    gradients: Counter[int] = field(default_factory=Counter)
    other: int = 0
    actions: list[Action] = field(default_factory=list)


@contextmanager
def counted() -> Iterator[Counted]:
    """Count while the body runs; the first step of a pipeline also makes connections, so count a later one."""
    found = Counted()
    owners: dict[int, tuple[Any, Counter[int], int]] = {}  # tensors about to be sent, kept alive so that ids are theirs

    def note(ops: list[dist.P2POp], counter: Counter[int], cut: int) -> list[dist.P2POp]:
        owners.update({id(op.tensor): (op.tensor, counter, cut) for op in ops})
        return ops

    def states(original: Any, stage: PipelineStage, *rest: Any) -> list[dist.P2POp]:
        return note(original(stage, *rest), found.states, stage.stage_index + 1)

    def gradients(original: Any, stage: PipelineStage, *rest: Any) -> list[dist.P2POp]:
        return note(original(stage, *rest), found.gradients, stage.stage_index)

    def send(original: Any, group: dist.ProcessGroup, tensors: list[Any], *rest: Any) -> Any:
        for tensor in tensors:
            _, counter, cut = owners.pop(id(tensor), (None, None, 0))
            if counter is None:
                found.other += tensor.nbytes
            else:
                counter[cut] += tensor.nbytes
        return original(group, tensors, *rest)

    def forward(original: Any, stage: PipelineStage, micro_batch: int, *rest: Any, **options: Any) -> Any:
        found.actions.append(Action(stage.stage_index, micro_batch, backward=False))
        return original(stage, micro_batch, *rest, **options)

    def backward(original: Any, stage: PipelineStage, micro_batch: int, *rest: Any, **options: Any) -> Any:
        found.actions.append(Action(stage.stage_index, micro_batch, backward=True))
        return original(stage, micro_batch, *rest, **options)

    with (
        _wrapped(PipelineStage, "get_fwd_send_ops", states),
        _wrapped(PipelineStage, "get_bwd_send_ops", gradients),
        _wrapped(PipelineStage, "forward_one_chunk", forward),
        _wrapped(PipelineStage, "backward_one_chunk", backward),
        _wrapped(dist.ProcessGroup, "send", send),
    ):
        yield found


@contextmanager
def _wrapped(owner: type, name: str, wrapper: Any) -> Iterator[None]:
    """Meanwhile the method `name` is `wrapper(original, self, ...)`."""
    original, own = getattr(owner, name), vars(owner).get(name)  # `own` binds as it did, `original` may not
    setattr(owner, name, lambda self, *rest, **options: wrapper(original, self, *rest, **options))
    try:
        yield
    finally:
        if own is None:
            delattr(owner, name)
        else:
            setattr(owner, name, own)
