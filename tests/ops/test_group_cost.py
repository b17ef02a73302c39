"""What groups of reads compute, add up and keep: each first phase once, no gradients added, nothing kept too long."""

import gc
import weakref
from collections.abc import Iterator
from math import prod

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.checkpoint import checkpoint

from attention_residuals.ops import Group

from .counting import Additions, FirstPhases
from .groups import (
    COMMON,
    GAIN,
    PROGRAMS,
    QUERIES,
    SHAPE,
    WIDTH,
    DirectGroup,
    Open,
    Program,
    announced_block,
    assert_same_bits,
    block,
    draw_inputs,
    each_program,
    each_pulling_group,
    full,
    gradients,
    loss_of,
    split,
)

TOKENS = prod(SHAPE)


@pytest.mark.parametrize("program", [block, full])
@each_pulling_group
def test_the_first_phase_runs_once(opened: Open, program: Program) -> None:
    inputs = draw_inputs()
    with FirstPhases(TOKENS) as phases:
        loss = loss_of(program(opened, inputs))
        assert phases.count == 1
        loss.backward()
        assert phases.count == 1


@each_pulling_group
def test_a_group_that_is_not_read_computes_nothing(opened: Open) -> None:
    with FirstPhases(TOKENS) as phases:
        loss_of(PROGRAMS["nothing read"](opened, draw_inputs())).backward()
    assert phases.count == 0


@each_pulling_group
def test_a_part_asked_for_again_makes_all_parts_again_once(opened: Open) -> None:
    common, _, queries, key_weights = split(draw_inputs())
    group = opened(common, queries, key_weights)
    with FirstPhases(TOKENS) as phases:
        first = [group.read(r, (), GAIN) for r in range(QUERIES)]
        second = [group.read(r, (), GAIN) for r in reversed(range(QUERIES))]
    assert phases.count == 2
    assert_same_bits(second[::-1], first)


def checkpointed_block(open_group: Open, inputs: list[Tensor]) -> list[Tensor]:
    """`block`, with each of its steps recomputed in the backward."""
    common, outputs, queries, key_weights = split(inputs)
    group = open_group(common, queries, key_weights)

    def step(group: Group, r: int, total: Tensor | None) -> tuple[Group, Tensor]:
        x = group.read(r, () if total is None else (total,), GAIN)
        return group.publish(torch.tanh(x) * outputs[r], total)

    total = None
    for r in range(QUERIES):
        group, total = checkpoint(step, group, r, total, use_reentrant=False)
    assert isinstance(total, Tensor)
    return [total, *group.common]


@each_pulling_group
def test_checkpointed_steps_take_one_more_first_phase(opened: Open) -> None:
    inputs = draw_inputs()
    expected = gradients(loss_of(block(opened, inputs)), inputs)
    with FirstPhases(TOKENS) as phases:
        results = checkpointed_block(opened, inputs)
        assert phases.count == 1
        ours = gradients(loss_of(results), inputs)
        assert phases.count == 2
    assert_same_bits(ours, expected)


def additions_in_the_backward(program: Program, open_group: Open) -> int:
    loss = loss_of(program(open_group, draw_inputs()))
    with Additions((*SHAPE, WIDTH)) as additions:
        loss.backward()
    return additions.count


@pytest.mark.parametrize("program", [block, full, checkpointed_block])
@each_pulling_group
def test_autograd_adds_up_no_gradients_of_sources(opened: Open, program: Program) -> None:
    """Of a group they come in one piece; plain reads give one each. All else in these programs is used once."""
    assert additions_in_the_backward(program, DirectGroup) >= COMMON * QUERIES
    recomputed = QUERIES - 1 if program is checkpointed_block else 0  # the sums of the forward, made again
    assert additions_in_the_backward(program, opened) == recomputed


@each_pulling_group
def test_a_sum_is_made_together_with_the_read_that_was_announced(opened: Open) -> None:
    """But for the last one, which no read follows; and a step that is recomputed makes its sum by itself."""
    inputs = draw_inputs()
    with Additions((*SHAPE, WIDTH)) as additions:
        announced = announced_block(opened, inputs)
    assert additions.count == 1
    with Additions((*SHAPE, WIDTH)) as additions:
        block(opened, inputs)
    assert additions.count == QUERIES - 1
    assert announced


@pytest.fixture
def no_garbage_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@each_program
@each_pulling_group
@pytest.mark.usefixtures("no_garbage_collector")
def test_a_graph_is_freed_when_it_is_dropped(opened: Open, program: Program) -> None:
    """At once: the garbage collector comes too late, and a cycle through a graph it does not see at all.

    After a backward nothing of a source's size is held even if the loss is.
    """
    groups: list[weakref.ref[Group]] = []
    storages: list[StorageWeakRef] = []

    def noted(sources, queries, key_weights) -> Group:
        group = opened(sources, queries, key_weights)
        groups.append(weakref.ref(group))
        storages.extend(StorageWeakRef(source.untyped_storage()) for source in group.common)
        return group

    def walk(backward: bool) -> Tensor:
        loss = loss_of(program(noted, [2 * leaf for leaf in draw_inputs()]))
        if backward:
            loss.backward()
        return loss

    for backward, hold in [(False, False), (True, False), (True, True)]:
        loss = walk(backward)
        assert groups and storages
        if not hold:
            del loss
        assert [group() for group in groups] == [None] * len(groups)
        assert all(storage.expired() for storage in storages)
