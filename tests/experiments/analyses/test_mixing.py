"""Ranks of matrices that are known, weighted sums that are none, shares by hand."""

import pytest
import torch
from torch import Tensor

from attention_residuals.experiments.analyses.mixing import (
    is_weighted_sum,
    largest_possible_rank,
    semiseparable_ranks,
    term_shares,
    weighted_sum,
)
from attention_residuals.streams import Additive, AttnRes, Stream, Sublayers
from tests.streams.support import draw, randomise_depth, toy_sublayer

READS = 12
EXACT = 1e-9


def highway() -> Tensor:
    """Stick-breaking weights of scalar gates: arXiv 2603.15031, section 6.2."""
    gates = draw(READS).sigmoid()
    rows = torch.zeros(READS, READS, dtype=torch.float64)
    rows[0, 0] = 1
    for n in range(1, READS):
        rows[n] = rows[n - 1] * (1 - gates[n])
        rows[n, n] = gates[n]
    return rows


def hyper_connections(streams: int) -> Tensor:
    """M[l, i] = b_i A_{i+1} ... A_l a_l for matrices A that are not special: the state is `streams` vectors."""
    b, a = draw(READS, streams, seed=1), draw(READS, streams, seed=2)
    steps = torch.eye(streams, dtype=torch.float64) + 0.3 * draw(READS, streams, streams, seed=3)
    rows = torch.zeros(READS, READS, dtype=torch.float64)
    for i in range(READS):
        carried = b[i]
        for n in range(i, READS):
            rows[n, i] = carried @ a[n]
            carried = carried @ steps[n]
    return rows


@pytest.mark.parametrize(
    ("matrix", "rank"),
    [
        (torch.ones(READS, READS, dtype=torch.float64).tril(), 1),
        (torch.eye(READS, dtype=torch.float64), 1),
        (highway(), 1),
        *((hyper_connections(streams), streams) for streams in (1, 2, 3, 4)),
        (draw(READS, READS).tril(), largest_possible_rank(READS)),
        (torch.zeros(READS, READS, dtype=torch.float64), 0),
    ],
)
def test_ranks_of_known_matrices(matrix: Tensor, rank: int) -> None:
    assert semiseparable_ranks(matrix, [EXACT]).tolist() == [rank]


def test_what_lies_above_the_diagonal_does_not_count() -> None:
    assert semiseparable_ranks(torch.ones(READS, READS).tril() + draw(READS, READS).triu(1), [EXACT]).tolist() == [1]


def test_a_tolerance_hides_what_is_small() -> None:
    matrix = torch.ones(READS, READS, dtype=torch.float64).tril() + 1e-5 * draw(READS, READS).tril()
    assert semiseparable_ranks(matrix, [1e-3, EXACT]).tolist() == [1, largest_possible_rank(READS)]


def test_many_matrices_at_once() -> None:
    matrices = torch.stack([highway(), hyper_connections(3)]).unsqueeze(0)
    assert semiseparable_ranks(matrices, [EXACT, EXACT]).tolist() == [[[1, 3]], [[1, 3]]]


def test_possible_ranks() -> None:
    assert largest_possible_rank(25) == 13
    assert largest_possible_rank(25, block=4) == 6
    assert largest_possible_rank(13, block=12) == 2


def outputs_and_mixtures(stream: Stream) -> tuple[list[Tensor], list[Tensor]]:
    outputs, mixtures = [draw(5, 6)], []
    state = stream.start(outputs[0])
    for i in range(stream.shape.sublayers):
        mixtures.append(stream.mixture(state, i))
        outputs.append(toy_sublayer(i, stream.read(state, i)))
        state = stream.write(state, i, outputs[-1])
    return outputs, [*mixtures, stream.finish(state)]


@pytest.mark.parametrize("block", [1, 3, 4])
def test_depth_attention_reaches_what_its_blocks_allow(block: int) -> None:
    stream = AttnRes(Sublayers(block)).build(READS - 1, 6).double()
    randomise_depth(stream)
    outputs, mixtures = outputs_and_mixtures(stream)
    mixing = stream.mixing(outputs)
    assert mixing is not None and is_weighted_sum(mixing, outputs, mixtures)
    ranks = semiseparable_ranks(mixing.permute(2, 0, 1), [1e-12])
    assert ranks.tolist() == [[largest_possible_rank(READS, block)] * 5]


def test_a_matrix_that_is_not_what_reads_do_is_told() -> None:
    stream = Additive().build(3, 6).double()
    outputs, mixtures = outputs_and_mixtures(stream)
    mixing = stream.mixing(outputs)
    assert mixing is not None and is_weighted_sum(mixing, outputs, mixtures)
    wrong = mixing.clone()
    wrong[2, 1] = 0.9
    assert not is_weighted_sum(wrong, outputs, mixtures)


def test_shares_are_ratios_of_single_tokens() -> None:
    one, other = torch.tensor([[3.0, 0.0], [0.0, 1.0]]), torch.tensor([[0.0, 4.0], [0.0, 1.0]])
    weights = torch.tensor([[1.0, 2.0], [-1.0, 1.0]])
    mixture = weighted_sum(weights, [one, other])
    assert mixture.tolist() == [[3.0, -4.0], [0.0, 3.0]]
    assert term_shares(weights, [one, other], mixture) == pytest.approx([(3 / 5 + 2 / 3) / 2, (4 / 5 + 1 / 3) / 2])
