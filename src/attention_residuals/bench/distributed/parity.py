"""One small pipeline against the whole model on one process, in float64: loss, gradients, and what was sent."""

import hashlib
import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention_residuals.bench.distributed.counting import Counted, counted
from attention_residuals.distributed.cuts import Cuts, Transport
from attention_residuals.distributed.layout import PipelineConfig, Schedule
from attention_residuals.distributed.pipeline import Pipeline, build_chunks
from attention_residuals.models import DecoderConfig, build_decoder, recompute_steps
from attention_residuals.streams import Additive, AttnRes, Residual, Sublayers

VOCABULARY, WIDTH, TOKENS, SEQUENCES, MICRO_BATCHES = 11, 8, 6, 2, 4
BYTES_A_NUMBER = 8
UNIT_BYTES = MICRO_BATCHES * SEQUENCES * TOKENS * WIDTH * BYTES_A_NUMBER
"""Of one tensor of the state, for all micro-batches of a step."""

ALLOWED = 1e-10
"""The most that a loss (about 2.5) or an entry of a gradient (the largest is about 0.5) may differ by."""


@dataclass(frozen=True)
class Case:
    """A pipeline; `block` is the sublayers of a block of Block, 1 for Full, None for the standard residual."""

    layers: int
    block: int | None
    cuts: tuple[int, ...]
    ranks: int
    schedule: Schedule
    transport: Transport
    recompute: bool = False

    @property
    def config(self) -> DecoderConfig:
        """The model."""
        return DecoderConfig(VOCABULARY, self.layers, WIDTH, 2, 1, 4, 12, residual=residual_of(self.block))

    @property
    def chunks(self) -> Cuts:
        """Where it is cut."""
        return Cuts(self.cuts, self.config.sublayers, self.ranks)


@dataclass(frozen=True)
class Whole:
    """What one process finds."""

    loss: Tensor
    gradients: dict[str, Tensor]


@dataclass(frozen=True)
class Found:
    """What a rank found; differences are the largest ones, that of the loss 0 where there is none.

    Args:
        missing: a parameter without a gradient, or a gradient without parameter here, if there is one.
        most_held: blocks that the rank kept at a time.
    """

    loss: float
    gradient: float
    missing: str
    counted: Counted
    most_held: int

    @property
    def right(self) -> bool:
        """Whether nothing differs by more than is allowed; what is no number does."""
        return not self.missing and self.loss <= ALLOWED and self.gradient <= ALLOWED


def residual_of(block: int | None) -> Residual:
    """The residual of a case."""
    return Additive() if block is None else AttnRes(Sublayers(block))


def find_whole(case: Case) -> Whole:
    """Loss and gradients of the model on one process, from the plain forward over the whole batch."""
    model, tokens = build_decoder(case.config, seed=0, dtype=torch.float64), draw_tokens()
    vary_depth(model)
    loss = mean_loss(model(tokens[:, :-1]), tokens[:, 1:])
    loss.backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    return Whole(loss.detach(), gradients)


def run_case(case: Case, rank: int, whole: Whole, steps: int = 1) -> Found:
    """Run the pipeline on this rank; the last of so many steps is the one that counts."""
    chunks = build_chunks(case.config, case.chunks, rank, case.transport, seed=0, dtype=torch.float64)
    parts = [chunk.part for chunk in chunks.values()]
    for part in parts:
        vary_depth(part)
        if case.recompute:
            recompute_steps(part, lambda i: True)
    config = PipelineConfig(MICRO_BATCHES, case.schedule, case.transport)
    pipeline, tokens = Pipeline(chunks, config, (SEQUENCES, TOKENS), mean_loss), draw_tokens()
    for _ in range(steps - 1):
        pipeline.step(tokens[:, :-1], tokens[:, 1:])
        for part in parts:
            part.zero_grad()
    with counted() as sends:
        loss = pipeline.step(tokens[:, :-1], tokens[:, 1:])
    missing, largest = "", 0.0
    for name, parameter in (named for part in parts for named in part.named_parameters()):
        wanted = whole.gradients.get(name)
        if wanted is None or parameter.grad is None:
            missing = name
        else:
            largest = larger(largest, (parameter.grad - wanted).abs().max().item())
    off = 0.0 if loss is None else abs((loss.detach() - whole.loss).item())
    return Found(off, largest, missing, sends, next(iter(chunks.values())).depot.most_held)


def mean_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """The mean over the tokens of a micro-batch."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def draw_tokens() -> Tensor:
    """The batch: as many rows as micro-batches take, with a token more than a forward takes."""
    shape = (MICRO_BATCHES * SEQUENCES, TOKENS + 1)
    return torch.randint(VOCABULARY, shape, generator=torch.Generator().manual_seed(0))


def vary_depth(model: nn.Module) -> None:
    """Move queries and key norms away from their start, by name, so that parts and the whole have the same values."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "queries." in name or "key_norms." in name:
                seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
                generator = torch.Generator().manual_seed(seed)
                values = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                parameter.copy_(0.3 * values + ("norms" in name))


def larger(one: float, other: float) -> float:
    """The larger; what is no number is larger than any."""
    return one if math.isnan(one) or other <= one else other
