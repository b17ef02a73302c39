"""Bytes a stream holds above the standard residual, in units U of one tensor `[T, D]`: between forward and backward,
and at the peak of both under activation checkpointing."""

import gc
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from attention_residuals.bench.peaks import LiveBytes
from attention_residuals.streams import Additive, AttnRes, Residual, State, Stream, Sublayers
from attention_residuals.streams.two_phase import FULL_GROUP_SUBLAYERS

TOKENS, WIDTH = 512, 128
"""Enough of both: the scalars of a token and the vectors of a stream are small beside U."""

BLOCK = 6
DEPTHS = (8, 24, 48)


class Sublayer(nn.Module):
    """Its output is a tensor that it does not keep for itself, so that what is kept of it is kept by the stream."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x) * self.scale


class Network(nn.Module):
    def __init__(self, residual: Residual, depth: int, dtype: torch.dtype, recompute: bool):
        super().__init__()
        self.stream: Stream = residual.build(depth, width=WIDTH).to(dtype)
        self.sublayers = nn.ModuleList([Sublayer() for _ in range(depth)]).to(dtype)
        self.recompute = recompute

    def step(self, state: State, i: int) -> State:
        return self.stream.write(state, i, self.sublayers[i](self.stream.read(state, i)))

    def forward(self, embedding: Tensor) -> Tensor:
        state = self.stream.start(embedding)
        for i in range(self.stream.shape.sublayers):
            state = checkpoint(self.step, state, i, use_reentrant=False) if self.recompute else self.step(state, i)
        return self.stream.finish(state).sum()


def bytes_of_a_step(
    residual: Residual, depth: int, dtype: torch.dtype = torch.float32, recompute: bool = False
) -> tuple[int, int]:
    """Bytes held between forward and backward, and at the peak of both; gradients of parameters left out."""
    network = Network(residual, depth, dtype, recompute)
    embedding = torch.ones(TOKENS, WIDTH, dtype=dtype).requires_grad_()
    live = LiveBytes()
    live.leave_out_gradients(network)
    with live:
        loss = network(embedding)
        held = live.now
        loss.backward()
    return held, live.peak


def unit(dtype: torch.dtype) -> int:
    return TOKENS * WIDTH * dtype.itemsize


@pytest.mark.parametrize("two_phase", [False, True])
@pytest.mark.parametrize("block", [1, BLOCK])
@pytest.mark.parametrize("depth", DEPTHS)
def test_a_read_keeps_at_most_two_tensors(depth: int, block: int, two_phase: bool) -> None:
    held, _ = bytes_of_a_step(AttnRes(Sublayers(block), two_phase=two_phase), depth)
    additive, _ = bytes_of_a_step(Additive(), depth)
    assert 0 < held - additive <= 2 * depth * unit(torch.float32)


@pytest.mark.parametrize("block", [1, BLOCK])
@pytest.mark.parametrize("depth", DEPTHS)
def test_what_a_read_keeps_of_narrow_types(depth: int, block: int) -> None:
    """A source, and the mixture in the compute type, which the gradients of the softmax and of the norm need unrounded.

    Together they are no more than what the standard residual keeps for a norm in several steps, and two tensors a read.
    """
    held, _ = bytes_of_a_step(AttnRes(Sublayers(block)), depth, torch.bfloat16)
    additive, _ = bytes_of_a_step(Additive(), depth, torch.bfloat16)
    assert held - additive <= 2 * depth * unit(torch.bfloat16)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("block", [1, BLOCK])
@pytest.mark.parametrize("depth", DEPTHS)
def test_peak_with_checkpoints(depth: int, block: int, dtype: torch.dtype) -> None:
    """Sources and their gradients, and for the reads of one block a part of the first phase and a gradient each."""
    blocks = -(-depth // block)
    reads = FULL_GROUP_SUBLAYERS if block == 1 else block
    held, peak = bytes_of_a_step(AttnRes(Sublayers(block)), depth, dtype, recompute=True)
    additive_held, additive = bytes_of_a_step(Additive(), depth, dtype, recompute=True)
    assert 0 < peak - additive <= (2 * (blocks + 1) + 2 * reads) * unit(dtype)
    # Between forward and backward: what the standard residual holds, one state a step, and the output read.
    assert held - additive_held <= 2 * unit(dtype)


@pytest.fixture
def no_garbage_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("end", [lambda loss: loss.backward(), lambda loss: None], ids=["backward", "dropped"])
@pytest.mark.parametrize("residual", [Additive(), AttnRes(), AttnRes(Sublayers(BLOCK)), AttnRes(two_phase=False)])
@pytest.mark.usefixtures("no_garbage_collector")
def test_steps_leave_nothing_behind(residual: Residual, end: Callable[[Tensor], None], recompute: bool) -> None:
    network = Network(residual, 9, torch.float32, recompute)
    embedding = torch.ones(TOKENS, WIDTH)
    live = LiveBytes()
    live.leave_out_gradients(network)
    with live:
        for _ in range(3):
            loss = network(embedding)
            end(loss)
            del loss
            assert live.now == 0


@pytest.mark.parametrize("residual", [Additive(), AttnRes(), AttnRes(Sublayers(BLOCK)), AttnRes(two_phase=False)])
@pytest.mark.usefixtures("no_garbage_collector")
def test_a_loss_that_is_kept_keeps_no_activations(residual: Residual) -> None:
    """As in a loop that prints the loss of a step while the next one runs."""
    network = Network(residual, 9, torch.float32, recompute=False)
    live = LiveBytes()
    live.leave_out_gradients(network)
    with live:
        loss = network(torch.ones(TOKENS, WIDTH))
        loss.backward()
        assert live.now < unit(torch.float32)
