"""Pipelines on processes of one machine: loss and gradients of the whole model, and what crosses the cuts."""

import hashlib
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from attention_residuals.distributed.cuts import Cuts, Transport
from attention_residuals.distributed.layout import PipelineConfig, Schedule
from attention_residuals.distributed.pipeline import Pipeline, build_chunks
from attention_residuals.distributed.ranks import run_on_ranks
from attention_residuals.models import Decoder, DecoderConfig, build_decoder, recompute_steps
from attention_residuals.streams import Additive, AttnRes, Residual, Sublayers

VOCABULARY, LAYERS, WIDTH = 11, 5, 8
MICRO_BATCHES, MICRO_BATCH_SEQUENCES, TOKENS = 4, 2, 6

RESIDUALS: dict[str, Residual] = {
    "standard": Additive(),
    "block": AttnRes(Sublayers(4)),
    "block of 3, read by read": AttnRes(Sublayers(3), two_phase=False),
    "full": AttnRes(),
}


def config_of(residual: Residual) -> DecoderConfig:
    return DecoderConfig(VOCABULARY, LAYERS, WIDTH, 2, 1, 4, 12, residual=residual)


def vary_depth(model: nn.Module) -> None:
    """Queries and key norms away from their start, by name, so that parts and the whole get the same values."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "queries." in name or "key_norms." in name:
                seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
                values = torch.randn(
                    parameter.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
                )
                parameter.copy_(0.3 * values + ("norms" in name))


def mean_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def draw_tokens() -> Tensor:
    shape = (MICRO_BATCHES * MICRO_BATCH_SEQUENCES, TOKENS + 1)
    return torch.randint(VOCABULARY, shape, generator=torch.Generator().manual_seed(0))


def whole(residual: Residual) -> tuple[Tensor, dict[str, Tensor | None]]:
    """Loss and gradients of the model on one process."""
    model, tokens = build_decoder(config_of(residual), seed=0, dtype=torch.float64), draw_tokens()
    vary_depth(model)
    loss = mean_loss(model(tokens[:, :-1]), tokens[:, 1:])
    loss.backward()
    return loss.detach(), {name: parameter.grad for name, parameter in model.named_parameters()}


@contextmanager
def counted_sends(found: list[int]) -> Iterator[None]:
    """Add to `found` the elements of every tensor that this rank sends meanwhile."""
    original = dist.P2POp.__new__

    def count(cls: type, op: Any, tensor: Tensor, *rest: Any, **options: Any) -> object:
        if op is dist.isend:
            found.append(tensor.numel())
        return original(cls, op, tensor, *rest, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist.P2POp, "__new__", count)
        yield


def check(rank: int, cuts: Cuts, residual: Residual, schedule: Schedule, transport: Transport, recompute: bool) -> None:
    """Two steps of a pipeline, the second of which is compared with the whole model."""
    expected, gradients = whole(residual)
    chunks = build_chunks(config_of(residual), cuts, rank, transport, seed=0, dtype=torch.float64)
    parts: list[Decoder] = [chunk.part for chunk in chunks.values()]
    for part in parts:
        vary_depth(part)
        if recompute:
            recompute_steps(part, lambda i: True)
    pipe = Pipeline(
        chunks, PipelineConfig(MICRO_BATCHES, schedule, transport), (MICRO_BATCH_SEQUENCES, TOKENS), mean_loss
    )
    tokens = draw_tokens()
    pipe.step(tokens[:, :-1], tokens[:, 1:])
    for part in parts:
        part.zero_grad()
    sends: list[int] = []
    with counted_sends(sends):
        loss = pipe.step(tokens[:, :-1], tokens[:, 1:])
    if loss is not None:
        torch.testing.assert_close(loss, expected, rtol=0, atol=1e-10)
    for part in parts:
        for name, parameter in part.named_parameters():
            wanted = gradients[name]
            assert parameter.grad is not None and wanted is not None, name
            torch.testing.assert_close(parameter.grad, wanted, rtol=0, atol=1e-10, msg=name)
    unit = MICRO_BATCH_SEQUENCES * TOKENS * WIDTH
    assert sum(sends) == MICRO_BATCHES * unit * sum(
        cuts.crossing(other, parts[0].stream.boundary, transport).received
        for number in chunks
        for other in (number, number + 1)  # gradients go back over the cut in front, states over the one behind
        if 0 < other < cuts.chunks
    )


def one_chunk_a_rank(rank: int, folder: Path) -> None:
    cuts = [Cuts((0, place), 2 * LAYERS, 2) for place in (1, 4, 6, 9)]
    for (name, residual), cut in itertools.product(RESIDUALS.items(), cuts):
        for schedule in (Schedule.GPIPE, Schedule.ONE_F_ONE_B):
            check(rank, cut, residual, schedule, Transport.CACHED, recompute=name == "block" and cut is cuts[0])
    (folder / f"done-{rank}").touch()


def many_chunks_a_rank(rank: int, folder: Path) -> None:
    for residual, transport in itertools.product(RESIDUALS.values(), Transport):
        for cuts in (Cuts.even(2 * LAYERS, 2, 2), Cuts((0, 1, 2, 5, 8, 9), 2 * LAYERS, 2)):
            check(rank, cuts, residual, Schedule.INTERLEAVED_1F1B, transport, recompute=transport is Transport.RECEIVED)
    (folder / f"done-{rank}").touch()


@pytest.mark.dist
@pytest.mark.parametrize("body", [one_chunk_a_rank, many_chunks_a_rank])
def test_a_pipeline_of_two_is_the_whole_model(body, tmp_path: Path) -> None:
    run_on_ranks(2, tmp_path, body)
    assert len(list(tmp_path.glob("done-*"))) == 2
