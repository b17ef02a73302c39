"""Pipeline parallel training on `torch.distributed.pipelining`."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Int
from torch import Tensor
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

from attention_residuals.distributed.cuts import Cuts, Transport
from attention_residuals.distributed.layout import PipelineConfig, Schedule
from attention_residuals.distributed.relay import Depot
from attention_residuals.distributed.stage import Chunk, build_part
from attention_residuals.errors import InputError
from attention_residuals.models import BackboneConfig

_SCHEDULES = {
    Schedule.GPIPE: ScheduleGPipe,
    Schedule.ONE_F_ONE_B: Schedule1F1B,
    Schedule.INTERLEAVED_1F1B: ScheduleInterleaved1F1B,
}


class Pipeline:
    """The chunks of one rank, and the schedule that runs them.

    Args:
        chunks: by number.
        micro_batch_shape: sequences and tokens `(B, T)` of one micro-batch.
        loss: of logits `[B, T, vocab]` and next tokens `[B, T]`: their mean, or one number for each sequence.

    Raises:
        InputError: several chunks in a schedule that has one.
    """

    def __init__(
        self,
        chunks: dict[int, Chunk],
        config: PipelineConfig,
        micro_batch_shape: tuple[int, int],
        loss: Callable[[Tensor, Tensor], Tensor],
        group: dist.ProcessGroup | None = None,
    ):
        self.config, self.chunks = config, chunks
        stages = [_stage(chunk, micro_batch_shape, group) for chunk in chunks.values()]
        kind = _SCHEDULES[config.schedule]
        interleaved = config.schedule is Schedule.INTERLEAVED_1F1B
        if not interleaved and len(stages) > 1:
            raise InputError(
                f"the schedule {config.schedule.value} has one chunk a rank, not {len(stages)}; choose interleaved-1f1b"
            )
        self._loss, self._found = loss, list[Tensor]()
        # The loss is divided here and not the gradients there: those of earlier calls may be in them already.
        self._schedule = kind(
            stages if interleaved else stages[0], config.micro_batches, loss_fn=self._share_of_loss, scale_grads=False
        )
        self._first = any(chunk.is_first for chunk in chunks.values())
        self._last = any(chunk.is_last for chunk in chunks.values())

    def step(self, tokens: Int[Tensor, "batch time"], targets: Int[Tensor, "batch time"]) -> Tensor | None:
        """Forward and backward of a batch; the mean loss on the rank of the last chunk, None elsewhere."""
        found = self._run(self._schedule.step, tokens, targets)
        return None if found is None else torch.stack(found).mean()

    @torch.no_grad()
    def losses(self, tokens: Int[Tensor, "batch time"], targets: Int[Tensor, "batch time"]) -> Tensor | None:
        """Forward alone; the losses of the micro-batches in a row on the rank of the last chunk, None elsewhere."""
        found = self._run(self._schedule.eval, tokens, targets)
        return None if found is None else torch.stack(found).flatten()

    def _run(self, schedule: Callable[..., Any], tokens: Tensor, targets: Tensor) -> list[Tensor] | None:
        self._found = []
        numbers = torch.arange(self.config.micro_batches)
        given = {"target": targets, "losses": []} if self._last else {}
        schedule(*((tokens,) if self._first else ()), micro_batch=numbers, **given)
        return self._found if self._last else None

    def _share_of_loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        loss = self._loss(logits, targets)
        self._found.append(loss.detach())
        return loss.mean() / self.config.micro_batches


def build_chunks(
    config: BackboneConfig,
    cuts: Cuts,
    rank: int,
    transport: Transport,
    *,
    seed: int,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> dict[int, Chunk]:
    """The chunks of `rank` by number, with the values the whole model has from `seed`."""
    depot, chunks = Depot(), {}
    for number in range(rank, cuts.chunks, cuts.ranks):
        part = build_part(config, cuts.part(number), seed=seed, device=device, dtype=dtype)
        chunks[number] = Chunk(part, cuts, number, transport, depot)
    return chunks


def _stage(chunk: Chunk, micro_batch_shape: tuple[int, int], group: dist.ProcessGroup | None) -> PipelineStage:
    """The shapes of what crosses its cuts follow from positions alone, so that no stage waits to be told."""
    part, cuts = chunk.part, chunk.cuts
    parameter = next(part.parameters())

    def crossing(number: int) -> tuple[Tensor, ...]:
        count = cuts.crossing(number, part.stream.boundary, chunk.transport).received
        shape = (*micro_batch_shape, part.config.width)
        return tuple(torch.empty(shape, device="meta", dtype=parameter.dtype, requires_grad=True) for _ in range(count))

    tokens = torch.empty(micro_batch_shape, device="meta", dtype=torch.int64)
    logits = torch.empty((*micro_batch_shape, part.config.vocab_size), device="meta", dtype=parameter.dtype)
    return PipelineStage(
        chunk,
        chunk.number,
        cuts.chunks,
        parameter.device,
        input_args=(tokens,) if chunk.is_first else crossing(chunk.number),
        output_args=(logits.requires_grad_(),) if chunk.is_last else crossing(chunk.number + 1),
        group=group,
    )
