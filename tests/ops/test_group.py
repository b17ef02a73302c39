"""Groups of reads are the reads they stand for, in outputs and every gradient, whatever is asked of them and when."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager

import pytest
import torch
from torch import Tensor

from attention_residuals.ops import Group
from attention_residuals.ops.group import EagerGroup, NativeGroup, TracedGroup
from attention_residuals.ops.plain_group import PlainGroup

from .groups import (
    COMMON,
    QUERIES,
    DirectGroup,
    Open,
    Program,
    assert_equal_to_rounding,
    assert_same_bits,
    chosen,
    draw_inputs,
    each_group,
    each_program,
    each_pulling_group,
    eager,
    gradients,
    loss_of,
    native,
    plain,
    plain_in_halves,
    split,
)
from .support import compiled_operators, plain_operators, signed


@each_program
@each_group
def test_results_and_gradients_are_those_of_plain_reads(opened: Open, program: Program) -> None:
    inputs = draw_inputs()
    ours, expected = program(opened, inputs), program(DirectGroup, inputs)
    assert_equal_to_rounding(ours, expected)
    assert_equal_to_rounding(gradients(loss_of(ours), inputs), gradients(loss_of(expected), inputs))


@each_program
def test_the_plain_operators_serve_a_group_as_well(program: Program) -> None:
    inputs = draw_inputs()
    expected = program(DirectGroup, inputs)
    with plain_operators():
        ours = program(eager, inputs)
        assert_equal_to_rounding(ours, expected)
        assert_equal_to_rounding(gradients(loss_of(ours), inputs), gradients(loss_of(expected), inputs))


@each_program
def test_both_pulling_groups_give_the_same_bits(program: Program) -> None:
    inputs = draw_inputs()
    with compiled_operators():
        ours, expected = program(native, inputs), program(eager, inputs)
        assert_same_bits(ours, expected)
        assert_same_bits(gradients(loss_of(ours), inputs), gradients(loss_of(expected), inputs))


@each_program
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("operators", "opened", "trained"),
    [
        (compiled_operators, plain, native),
        (compiled_operators, plain_in_halves, eager),
        (plain_operators, plain_in_halves, eager),
    ],
)
def test_without_gradients_the_results_are_the_same_bits(
    program: Program,
    dtype: torch.dtype,
    operators: Callable[[], AbstractContextManager[object]],
    opened: Open,
    trained: Open,
) -> None:
    inputs = draw_inputs(dtype)
    with operators():
        expected = program(trained, inputs)
        with torch.no_grad():
            assert_same_bits(program(opened, inputs), expected)


@each_program
def test_a_group_opened_without_gradients_gives_them_when_they_are_asked_for(program: Program) -> None:
    """As where the lower part of a network is frozen."""
    inputs = draw_inputs()

    def frozen(kind: Open) -> Open:
        def opened(sources: Sequence[Tensor], queries: Tensor, key_weights: Tensor) -> Group:
            with torch.no_grad():
                return kind([source.detach() for source in sources], queries, key_weights)

        return opened

    ours, expected = program(frozen(chosen), inputs), program(frozen(DirectGroup), inputs)
    assert_equal_to_rounding(ours, expected)
    assert_equal_to_rounding(gradients(loss_of(ours), inputs), gradients(loss_of(expected), inputs))


def test_the_group_that_is_chosen() -> None:
    class Subclass(Tensor):
        pass

    common, _, queries, key_weights = split(draw_inputs())
    with compiled_operators():
        assert isinstance(chosen(common, queries, key_weights), NativeGroup)
        subclassed = [source.as_subclass(Subclass) for source in common]
        assert isinstance(chosen(subclassed, queries, key_weights), EagerGroup)
        with torch.no_grad():
            assert isinstance(chosen(common, queries, key_weights), PlainGroup)


@each_program
@each_pulling_group
def test_gradients_of_some_inputs_at_a_time(opened: Open, program: Program) -> None:
    """Each pass computes its own, and leaves nothing for the next one."""
    inputs = draw_inputs()
    expected = gradients(loss_of(program(DirectGroup, inputs)), inputs)
    loss = loss_of(program(opened, inputs))
    for some in ([COMMON], [0], [len(inputs) - 2], [COMMON + 1, 1], [len(inputs) - 1, COMMON], range(len(inputs))):
        ours = gradients(loss, [inputs[n] for n in some], retain_graph=True)
        assert_equal_to_rounding(ours, [expected[n] for n in some])


@each_program
@each_pulling_group
def test_gradients_of_one_result_at_a_time(opened: Open, program: Program) -> None:
    inputs = draw_inputs()
    for ours, expected in zip(program(opened, inputs), program(DirectGroup, inputs), strict=True):
        assert_equal_to_rounding(
            gradients(loss_of([ours]), inputs, retain_graph=True),
            gradients(loss_of([expected]), inputs, retain_graph=True),
        )


@each_program
@each_pulling_group
def test_a_second_backward_gives_the_same_bits(opened: Open, program: Program) -> None:
    inputs = draw_inputs()
    loss = loss_of(program(opened, inputs))
    first = gradients(loss, inputs, retain_graph=True)
    assert_same_bits(gradients(loss, inputs, retain_graph=True), first)
    assert_same_bits(gradients(loss, inputs), first)


@each_program
@each_pulling_group
def test_gradients_that_others_hold_are_left_alone(opened: Open, program: Program) -> None:
    """A backward may write where it reads, but only what nobody else can see."""
    inputs = draw_inputs()
    results = program(opened, inputs)
    incoming = [signed(result.shape, result.dtype, 3001 + n) for n, result in enumerate(results)]
    expected = torch.autograd.grad(results, inputs, incoming, retain_graph=True, allow_unused=True)
    held = [grad.clone() for grad in incoming]
    seen: list[tuple[Tensor, Tensor]] = []

    def look(grad: Tensor) -> None:
        seen.append((grad, grad.clone()))

    for tensor in (*results, *inputs):
        tensor.register_hook(look)
    ours = torch.autograd.grad(results, inputs, incoming, allow_unused=True)
    assert_same_bits(ours, expected)
    assert_same_bits(incoming, held)
    assert seen
    for grad, then in seen:
        assert torch.equal(grad, then)


class BreakError(Exception):
    """Ends a backward pass half-way."""


@each_program
@each_pulling_group
def test_a_backward_that_broke_off_leaves_nothing(opened: Open, program: Program) -> None:
    def break_off(_: Tensor) -> None:
        raise BreakError

    inputs = draw_inputs()
    results = program(opened, inputs)
    expected = gradients(loss_of(results), inputs, retain_graph=True)
    for leaf in inputs:
        handle = leaf.register_hook(break_off)
        try:
            gradients(loss_of(results).square(), inputs, retain_graph=True)
        except BreakError:
            pass
        else:
            assert expected[[one is leaf for one in inputs].index(True)] is None
        handle.remove()
        assert_same_bits(gradients(loss_of(results), inputs, retain_graph=True), expected)


FROZEN = {
    "common sources": range(COMMON),
    "one common source": [1],
    "outputs": range(COMMON, COMMON + QUERIES),
    "queries": [COMMON + QUERIES],
    "vectors": [COMMON + QUERIES, COMMON + QUERIES + 1],
    "all but an output": [n for n in range(COMMON + QUERIES + 2) if n != COMMON + 1],
    "all but the queries": [n for n in range(COMMON + QUERIES + 2) if n != COMMON + QUERIES],
}


@pytest.mark.parametrize("frozen", FROZEN.values(), ids=FROZEN.keys())
@each_program
@each_pulling_group
def test_frozen_inputs_change_nothing_for_the_others(opened: Open, program: Program, frozen: list[int]) -> None:
    inputs = draw_inputs()
    expected = gradients(loss_of(program(DirectGroup, inputs)), inputs)
    inputs = [tensor.detach() if n in frozen else tensor for n, tensor in enumerate(inputs)]
    free = [n for n in range(len(inputs)) if n not in frozen]
    loss = loss_of(program(opened, inputs))
    if loss.requires_grad:
        assert_equal_to_rounding(gradients(loss, [inputs[n] for n in free]), [expected[n] for n in free])
    else:
        assert all(expected[n] is None for n in free)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@each_program
@each_pulling_group
def test_without_gradients(opened: Open, program: Program, mode: type) -> None:
    inputs = draw_inputs()
    expected = program(opened, inputs)
    with mode():
        ours = program(opened, inputs)
    assert not any(one.requires_grad for one in ours)
    assert_same_bits(ours, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@each_program
@each_group
def test_types_are_those_of_plain_reads(opened: Open, program: Program, dtype: torch.dtype) -> None:
    inputs = draw_inputs(dtype)
    ours, expected = program(opened, inputs), program(DirectGroup, inputs)
    for one, reference in zip(ours, expected, strict=True):
        assert one.dtype == reference.dtype
        # Two orders of summation in the compute type: one rounding to the narrow type apart, here and in what was read.
        allowed = 8 * torch.finfo(dtype).eps * reference.abs().max()
        assert (one - reference).abs().max() <= allowed
    for grad, leaf in zip(gradients(loss_of(ours), inputs), inputs, strict=True):
        assert grad is None or grad.dtype == leaf.dtype


@each_program
def test_function_transforms(program: Program) -> None:
    inputs = [tensor.detach() for tensor in draw_inputs()]
    kinds: set[type] = set()

    def opened(*inputs):
        group = chosen(*inputs)
        kinds.add(type(group))
        return group

    def loss(*inputs: Tensor) -> Tensor:
        return loss_of(program(opened, list(inputs)))

    ours = torch.func.grad(loss, argnums=tuple(range(len(inputs))))(*inputs)
    assert kinds == {TracedGroup}
    leaves = [tensor.requires_grad_() for tensor in inputs]
    assert_equal_to_rounding(ours, gradients(loss_of(program(DirectGroup, leaves)), leaves))


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    """Compiles anew and leaves nothing behind."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@each_program
@pytest.mark.usefixtures("fresh_compiler")
def test_compiled_as_one_graph(program: Program) -> None:
    inputs = draw_inputs()
    compiled = torch.compile(lambda inputs: program(chosen, inputs), fullgraph=True, backend="aot_eager")
    ours, expected = compiled(inputs), program(chosen, inputs)
    assert_equal_to_rounding(ours, expected)
    assert_equal_to_rounding(gradients(loss_of(ours), inputs), gradients(loss_of(expected), inputs))
