"""What is said of depth maps, on maps made by hand."""

import pytest

from attention_residuals.experiments.depth import paper
from attention_residuals.experiments.depth.findings import (
    by_sublayer,
    habits,
    largest_effects,
    masked_pairs,
    rank_correlation,
    read_name,
    sink,
)

ROWS = [[1.0], [0.4, 0.6], [0.1, 0.7, 0.2], [0.1, 0.5, 0.1, 0.3], [0.0, 0.6, 0.1, 0.1, 0.2]]


def test_habits_of_reads_that_have_a_choice() -> None:
    found = habits(ROWS)
    assert found is not None and found.reads == 4
    assert found.newest == pytest.approx((0.6 + 0.2 + 0.3 + 0.2) / 4)
    assert found.embedding == pytest.approx((0.4 + 0.1 + 0.1 + 0.0) / 4)
    assert found.equal == pytest.approx((1 / 2 + 1 / 3 + 1 / 4 + 1 / 5) / 4)
    assert found.newest_first == 1 / 4
    assert habits([[1.0]]) is None


def test_reads_by_what_they_are_in_front_of() -> None:
    assert by_sublayer(ROWS) == {"pre-attention": [ROWS[0], ROWS[2]], "pre-MLP": [ROWS[1], ROWS[3]]}


def test_a_sink_attracts_weight_when_it_is_long_past() -> None:
    source, excess = sink(ROWS) or (None, None)
    assert source == 1
    assert excess == pytest.approx((0.7 * 3 + 0.5 * 4 + 0.6 * 5) / 3)
    assert sink([[1.0], [0.5, 0.5]]) is None


def test_reads_have_names() -> None:
    assert [read_name(n, 5) for n in range(5)] == [
        "layer 1 attention",
        "layer 1 MLP",
        "layer 2 attention",
        "layer 2 MLP",
        "head",
    ]


MASKING = {
    "weights": [[1.0], [0.2, 0.8], [0.5, 0.4, 0.1]],
    "shares": [[1.0], [0.3, 0.9], [0.5, 0.5, 0.2]],
    "effects": [[None], [0.1, 0.4], [0.3, 0.2, -0.1]],
    "errors": [[None], [0.01, 0.02], [0.03, None, 0.01]],
}


def test_pairs_are_those_that_can_be_masked() -> None:
    assert masked_pairs(MASKING, "weights") == [(0.2, 0.1), (0.8, 0.4), (0.5, 0.3), (0.4, 0.2), (0.1, -0.1)]


def test_correlation_is_of_ranks() -> None:
    assert rank_correlation(masked_pairs(MASKING, "weights")) == pytest.approx(1)
    assert rank_correlation([(1.0, 3.0), (1.0, 2.0), (1.0, 1.0)]) is None
    assert rank_correlation([(1.0, 3.0), (2.0, 2.0), (9.0, 1.0)]) == pytest.approx(-1)
    assert rank_correlation([]) is None


def test_the_costliest_come_first() -> None:
    rows = largest_effects(MASKING, ["embedding", "block 1", "block 2"], 3)
    assert rows == [
        ["layer 1 MLP", "block 1", "0.800", "0.900", "+0.4000 ± 0.0400"],
        ["head", "embedding", "0.500", "0.500", "+0.3000 ± 0.0600"],
        ["head", "block 1", "0.400", "0.500", "+0.2000"],
    ]


def test_the_paper_reads_as_its_blocks_allow() -> None:
    for offset, rows in enumerate((paper.BLOCK_ATTENTION, paper.BLOCK_MLP)):
        assert [len(row) for row in rows] == [1 + -(-(2 * n + offset) // 4) for n in range(16)]
        assert all(sum(row) == pytest.approx(1, abs=4e-3) for row in rows)
