"""Which tensors each read mixes: against the released schedule, the paper's listing, and wrong ones."""

import pytest
import torch
from torch import Tensor

from attention_residuals.streams import AttnRes, AttnResStream, Blocks, BlockSize, Layers, Sublayers

from . import k3_schedules as k3
from .support import assert_equal_to_rounding, draw, walk

CASES = [(5, 2), (13, 3), (4, 2), (6, 6), (7, 10), (5, 1), (93, 12)]
WRONG_BY = 0.05
"""How far a wrong schedule is from the right one at least, on values of size 3."""


def k3_stream(size: BlockSize, layers: int, two_phase: bool = False) -> AttnResStream:
    """Our stream with the vectors of the toy network; its sublayers bring their own norms."""
    residual = AttnRes(size, key_eps=k3.EPS, two_phase=two_phase)
    stream = residual.build(sublayers=2 * layers, width=k3.WIDTH, pre_norm=False).double()
    assert isinstance(stream, AttnResStream)
    kinds = [(str(i), i % 2, i // 2) for i in range(1, 2 * layers)]
    with torch.no_grad():
        for key, kind, layer in [*kinds, ("output", k3.OUTPUT, 0)]:
            norm, query = k3.read_vectors(kind, layer)
            stream.queries[key].copy_(query)
            stream.key_norms[key].copy_(norm)
    return stream


def run(stream: AttnResStream) -> tuple[Tensor, list[Tensor]]:
    """The output of the toy network, and the weights of every read."""
    state, weights = stream.start(k3.EMBEDDING), []
    sublayers = stream.shape.sublayers
    for i in range(sublayers):
        weights.append(stream.weights(state, i))
        sublayer = k3.mlp if i % 2 else k3.attention
        state = stream.write(state, i, sublayer(i // 2, stream.read(state, i)))
    return stream.finish(state), [*weights, stream.weights(state, sublayers)]


@pytest.mark.parametrize("two_phase", [False, True])
def test_golden_numbers(two_phase: bool) -> None:
    size = Layers(k3.GOLDEN_BLOCK)
    output, weights = run(k3_stream(size, k3.GOLDEN_LAYERS, two_phase))
    assert (output - k3.GOLDEN_OUTPUT).abs().max() <= k3.GOLDEN_ROUNDING
    assert (weights[-1] - k3.GOLDEN_OUTPUT_WEIGHTS).abs().max() <= k3.GOLDEN_ROUNDING


@pytest.mark.filterwarnings("ignore:a block of 20 sublayers is longer than the network of 14")
@pytest.mark.parametrize("two_phase", [False, True])
@pytest.mark.parametrize(("layers", "block"), CASES)
def test_released_schedule(layers: int, block: int, two_phase: bool) -> None:
    schedule = k3.Schedule()
    expected = schedule.run(layers, block)
    output, weights = run(k3_stream(Layers(block), layers, two_phase))
    assert_equal_to_rounding(output, expected)
    for ours, theirs in zip(weights, schedule.weights, strict=True):
        assert_equal_to_rounding(ours, theirs)


def test_units_mean_the_same_cut() -> None:
    expected = k3.Schedule().run(8, 2)
    for size in (Layers(2), Sublayers(4), Blocks(4), Layers(4, sublayers_per_layer=1)):
        assert_equal_to_rounding(run(k3_stream(size, 8))[0], expected)


@pytest.mark.parametrize("wrong", k3.WRONG_OUTPUT)
def test_wrong_schedules_differ(wrong: type[k3.Schedule]) -> None:
    output, _ = run(k3_stream(Layers(k3.GOLDEN_BLOCK), k3.GOLDEN_LAYERS))
    assert (wrong().run(k3.GOLDEN_LAYERS, k3.GOLDEN_BLOCK) - output).abs().max() > WRONG_BY


def test_a_row_of_zeros_would_take_weight() -> None:
    wrong = k3.ZeroRow()
    wrong.run(k3.GOLDEN_LAYERS, k3.GOLDEN_BLOCK)
    _, weights = run(k3_stream(Layers(k3.GOLDEN_BLOCK), k3.GOLDEN_LAYERS))
    openings = range(0, 2 * k3.GOLDEN_LAYERS, 2 * k3.GOLDEN_BLOCK)
    for i in openings:
        assert len(wrong.weights[i]) == len(weights[i]) + 1
        assert (wrong.weights[i][-1] > WRONG_BY).all()
        assert (wrong.weights[i][:-1].sum(0) < weights[i].sum(0) - WRONG_BY).all()


PAPER_CASES = [(8, 4), (7, 6), (5, 4), (6, 12), (4, 2)]


@pytest.mark.parametrize(("layers", "sublayers"), PAPER_CASES)
def test_paper_listing(layers: int, sublayers: int) -> None:
    output, _ = run(k3_stream(Sublayers(sublayers), layers))
    assert_equal_to_rounding(output, k3.paper_pseudocode(layers, sublayers))


@pytest.mark.parametrize(("layers", "sublayers"), PAPER_CASES)
def test_paper_listing_with_preloaded_blocks_is_another(layers: int, sublayers: int) -> None:
    output, _ = run(k3_stream(Sublayers(sublayers), layers))
    assert (k3.paper_pseudocode(layers, sublayers, preloaded=True) - output).abs().max() > WRONG_BY


# Not with blocks of one layer, where every layer number is a multiple of the block.
@pytest.mark.parametrize(("layers", "sublayers"), [case for case in PAPER_CASES if case[1] > 2])
def test_paper_listing_counting_from_one_is_another(layers: int, sublayers: int) -> None:
    output, _ = run(k3_stream(Sublayers(sublayers), layers))
    assert (k3.paper_pseudocode(layers, sublayers, first_layer_number=1) - output).abs().max() > WRONG_BY


@pytest.mark.parametrize("two_phase", [False, True])
@pytest.mark.parametrize("block", [1, 2, 3, 4, 5, 7, 12])
@pytest.mark.parametrize("sublayers", [12, 13, 26])
def test_sources_per_read(sublayers: int, block: int, two_phase: bool) -> None:
    """One for the embedding, and one for each block begun before: the ceiling of i / S."""
    stream = AttnRes(Sublayers(block), two_phase=two_phase).build(sublayers, width=4).double()
    assert isinstance(stream, AttnResStream)
    counts = [len(stream.sources(state)) for state in walk(stream, draw(2, 4))]
    assert counts == [1 + (i + block - 1) // block for i in range(sublayers + 1)]


def test_sources_are_the_embedding_the_block_sums_and_the_partial_sum() -> None:
    stream = AttnRes(Sublayers(3)).build(8, width=4, pre_norm=False).double()
    assert isinstance(stream, AttnResStream)
    embedding, outputs = draw(2, 4), [draw(2, 4, seed=n) for n in range(1, 9)]
    state = stream.start(embedding)
    for i, output in enumerate(outputs):
        state = stream.write(state, i, output)
    sums = [torch.stack(outputs[a : a + 3]).sum(0) for a in (0, 3, 6)]
    for ours, expected in zip(stream.sources(state), [embedding, *sums], strict=True):
        assert_equal_to_rounding(ours, expected)
    assert torch.equal(stream.carried(state), stream.sources(state)[-1])
