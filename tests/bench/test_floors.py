"""The floors are the formulas they are documented by."""

import pytest

from attention_residuals.bench.floors import (
    block_units,
    full_units,
    group_units,
    read_units,
)


@pytest.mark.parametrize("sources", [1, 8, 32])
def test_read(sources: int) -> None:
    assert read_units(sources) == (sources + 1, 2 * sources + 1)


@pytest.mark.parametrize(("sources", "reads"), [(8, 8), (1, 2), (4, 24)])
def test_block(sources: int, reads: int) -> None:
    assert block_units(sources, reads) == (sources + 6 * reads - 7, 3 * sources + 6 * reads - 5)


def test_reads_without_local_sources_are_their_first_phase() -> None:
    assert group_units(5, [0, 0, 0], []) == (5 + 3, 3 * 5 + 3)


def test_full_is_its_groups_and_the_output_read() -> None:
    # Four sublayers by twos: sublayer 1 over the embedding and output 0; sublayers 2 and 3 over three common sources.
    first = (1 + 1 + (1 + 2), 3 + 1 + (3 + 1) + 1)
    second = (3 + 2 + (1 + 2), 9 + 2 + (3 + 1) + 1)
    output = (5 + 1, 2 * 5 + 1)
    assert full_units(4, 2) == tuple(map(sum, zip(first, second, output, strict=True)))


def test_full_in_groups_of_one_is_a_first_phase_each() -> None:
    common = (2, 3, 4)  # of sublayers 1 to 3; nothing is local, and the part is the mixture
    forward = sum(count + 1 for count in common) + 6
    assert full_units(4, 1) == (forward, sum(3 * count + 1 for count in common) + 11)


def test_two_phases_move_a_fifth_of_what_single_reads_move() -> None:
    """48 reads: autograd adds up a gradient a read and source, 6N + 2 units a read in all."""
    single = sum(6 * sources + 2 for sources in range(2, 50))
    assert sum(full_units(48, 8)) < single / 5
