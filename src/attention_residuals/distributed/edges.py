"""What every sublayer of a model with shared matrices does where it begins and where it ends."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

TOKENS = 1
"""The dimension of `[B, T, D]` that is sharded."""


class Layout(NamedTuple):
    """Of the tensors between sublayers: where their tokens are.

    `tokens`: how many there are on all ranks together, what follows being padding; None: no padding.
    """

    placement: Placement
    tokens: int | None = None


class SublayerEdges:
    """The edges of all sublayers of one model, so that all change together.

    A sublayer's matrices want every token on every rank, and leave on each rank a summand of every output. What lies
    outside is one of two plans:

    * each rank has its own tokens (the default): gathered in front, summed and scattered behind;
    * every rank has all tokens (`whole`): taken as they are, summed behind. A single token has no other.
    """

    def __init__(self, mesh: DeviceMesh):
        self.mesh = mesh
        self._layout = Layout(Shard(TOKENS))

    def attach(self, sublayer: nn.Module) -> None:
        """Put these edges around a sublayer whose last matrix gives summands."""

        def enter(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            return self._enter(*inputs)

        def leave(_: nn.Module, __: tuple[Any, ...], output: DTensor) -> Tensor:
            return self._leave(output)

        sublayer.register_forward_pre_hook(enter)
        sublayer.register_forward_hook(leave)

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Inside, every rank has all tokens."""
        with self._as(Layout(Replicate())):
            yield

    @contextmanager
    def padded(self, tokens: int) -> Iterator[None]:
        """Inside, the ranks have equal shares of so many tokens and of padding behind them, which no sublayer sees."""
        with self._as(Layout(Shard(TOKENS), tokens)):
            yield

    @contextmanager
    def _as(self, layout: Layout) -> Iterator[None]:
        before, self._layout = self._layout, layout
        try:
            yield
        finally:
            self._layout = before

    def _enter(self, x: Tensor, *context: Any) -> tuple[Any, ...]:
        placement, tokens = self._layout
        gathered = self._as_dtensor(x, placement).redistribute(placements=(Replicate(),))
        if tokens is not None and tokens < gathered.shape[TOKENS]:
            gathered = self._as_dtensor(gathered.to_local()[:, :tokens], Replicate())
        return (gathered, *context)

    def _leave(self, output: DTensor) -> Tensor:
        placement, tokens = self._layout
        if tokens is not None and tokens % self.mesh.size():
            padding = -tokens % self.mesh.size()
            output = self._as_dtensor(F.pad(output.to_local(), (0, 0, 0, padding)), Partial())
        return output.redistribute(placements=(placement,)).to_local()

    def _as_dtensor(self, x: Tensor, placement: Placement) -> DTensor:
        return DTensor.from_local(x, self.mesh, (placement,), run_check=False)
