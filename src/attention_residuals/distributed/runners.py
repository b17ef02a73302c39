"""Forward and backward of what one process holds, in a pipeline or without one. All its methods are collective."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from attention_residuals.distributed.expert_parallel import share_experts, spread_experts
from attention_residuals.distributed.initial import fill_shares
from attention_residuals.distributed.layout import Parallel
from attention_residuals.distributed.pipeline import Pipeline, build_chunks
from attention_residuals.distributed.sharding import replicate, shard_parameters
from attention_residuals.distributed.stage import Chunk
from attention_residuals.distributed.tensor import own_tokens, shard_matrices
from attention_residuals.models import BackboneConfig, Decoder
from attention_residuals.models.meta import without_values

LossFunction = Callable[[Tensor, Tensor], Tensor]
"""Of logits `[B, T, vocab]` and next tokens `[B, T]`: a loss for each token, `[B, T]`."""


class Runner(ABC):
    """The parts of a model that this process holds, and how they run.

    `windows [B, T + 1]` are the sequences of this process's place in the data. A loss is this process's share of it:
    shares add up, over stages and tokens, to the mean over those sequences.
    """

    parts: Sequence[Decoder]

    @abstractmethod
    def backward(self, windows: Int[Tensor, "batch time"], *, weight: float, last: bool) -> Tensor:
        """Share of `weight` x mean loss, 0-d; gradients are added. Data parallel ranks share them after the `last`."""

    @abstractmethod
    def losses(self, windows: Int[Tensor, "batch time"]) -> Float[Tensor, "batch"]:
        """Share of the mean loss of each sequence, without gradients."""


def build_runner(
    config: BackboneConfig,
    layout: Parallel,
    mesh: DeviceMesh,
    *,
    seed: int,
    device: torch.device | str,
    dtype: torch.dtype = torch.float32,
    compute: torch.dtype = torch.float32,
    rows: int,
    tokens: int,
    loss: LossFunction,
    precision: Callable[[], AbstractContextManager[object]] = nullcontext,
    prepare: Callable[[Decoder], None],
    expert_mesh: DeviceMesh | None = None,
) -> Runner:
    """What the process at its place in `mesh` runs.

    Args:
        compute: the type in which FSDP gathers the parameters of sublayers.
        rows, tokens: of the windows the runner will get: sequences, and predicted tokens of each.
        precision: the context of a forward.
        prepare: applied to every part before its parameters are shared: compilation, recomputation.
        expert_mesh: of `open_expert_mesh`, where the layout spreads experts.
    """
    share, own = 1 / layout.tensor, tokens // layout.tensor

    def mean_loss(logits: Tensor, targets: Tensor) -> Tensor:
        return loss(logits, targets).mean(-1) * share

    if layout.stages > 1:
        chunks = build_chunks(
            config, layout.cut(config.sublayers), mesh["stage"].get_local_rank(), layout.pipeline.transport,
            seed=seed, device=device, dtype=dtype,
        )  # fmt: skip
        for chunk in chunks.values():
            chunk.precision = precision
            prepare(chunk.part)
            # It does, so that gradients find back (see `relay`), and nobody writes to what was sent.
            warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
            _share(chunk, chunk.part, layout, mesh, compute)
        shape = (rows // layout.pipeline.micro_batches, own)
        return PipelineRunner(chunks, layout, mesh, shape, mean_loss)
    with without_values():  # no process need hold all of it
        model = Decoder(config).to(dtype)
    prepare(model)
    if expert_mesh is not None:
        spread_experts(model, expert_mesh["expert"])
        share_experts(model, expert_mesh, compute)
    _share(model, model, layout, mesh, compute)
    fill_shares(model.to_empty(device=device), seed=seed)
    return WholeRunner(model, layout, mesh, mean_loss, precision)


def _share(module: nn.Module, part: Decoder, layout: Parallel, mesh: DeviceMesh, compute: torch.dtype) -> None:
    if layout.tensor > 1:
        shard_matrices(part, mesh["tensor"])
    if layout.shares_parameters:
        names = ("replica", "shard") if layout.replicas > 1 else ("shard",)
        shard_parameters(module, part.sublayers, mesh[names], compute)


class WholeRunner(Runner):
    """Without a pipeline: the whole depth on every process."""

    def __init__(
        self,
        model: Decoder,
        layout: Parallel,
        mesh: DeviceMesh,
        mean_loss: LossFunction,
        precision: Callable[[], AbstractContextManager[object]],
    ):
        self.parts, self._mesh, self._mean_loss, self._precision = (model,), mesh, mean_loss, precision
        copies = layout.replicas > 1 and not layout.shares_parameters
        self._forward: nn.Module = replicate(model, mesh["replica"]) if copies else model

    def backward(self, windows: Int[Tensor, "batch time"], *, weight: float, last: bool) -> Tensor:
        with _shared_after(self._forward, last):
            loss = self._losses(windows).mean() * weight
            loss.backward()
        return loss.detach()

    @torch.no_grad()
    def losses(self, windows: Int[Tensor, "batch time"]) -> Float[Tensor, "batch"]:
        return self._losses(windows)

    def _losses(self, windows: Tensor) -> Tensor:
        inputs, targets = (own_tokens(part, self._mesh["tensor"]) for part in (windows[:, :-1], windows[:, 1:]))
        with self._precision():
            return self._mean_loss(self._forward(inputs), targets)


@contextmanager
def _shared_after(module: nn.Module, last: bool) -> Iterator[None]:
    """Whether data parallel ranks share gradients in this backward, or add them up for a later one."""
    if isinstance(module, FSDPModule):
        module.set_requires_gradient_sync(last)
    held: AbstractContextManager[object] = nullcontext()
    if isinstance(module, DistributedDataParallel) and not last:
        held = module.no_sync()
    with held:
        yield


class PipelineRunner(Runner):
    """The chunks of one rank of a pipeline."""

    def __init__(
        self,
        chunks: dict[int, Chunk],
        layout: Parallel,
        mesh: DeviceMesh,
        micro_batch_shape: tuple[int, int],
        mean_loss: LossFunction,
    ):
        self.parts = [chunk.part for chunk in chunks.values()]
        self._mesh, self._mean_loss, self._weight = mesh, mean_loss, 1.0
        self._pipeline = Pipeline(
            chunks, layout.pipeline, micro_batch_shape, self._weighted_loss, mesh["stage"].get_group()
        )

    def backward(self, windows: Int[Tensor, "batch time"], *, weight: float, last: bool) -> Tensor:
        self._weight = weight
        loss = self._pipeline.step(*self._own(windows))
        return torch.zeros((), device=windows.device) if loss is None else loss

    def losses(self, windows: Int[Tensor, "batch time"]) -> Float[Tensor, "batch"]:
        self._weight = 1.0
        losses = self._pipeline.losses(*self._own(windows))
        return torch.zeros(len(windows), device=windows.device) if losses is None else losses

    def _own(self, windows: Tensor) -> tuple[Tensor, Tensor]:
        inputs, targets = (own_tokens(part, self._mesh["tensor"]) for part in (windows[:, :-1], windows[:, 1:]))
        return inputs, targets

    def _weighted_loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        return self._mean_loss(logits, targets) * self._weight
