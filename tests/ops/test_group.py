"""Groups of reads are the reads they stand for, in outputs and every gradient, whatever is asked of them and when."""

import gc
import weakref

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from attention_residuals.ops.group import EagerGroup, TracedGroup

from .groups import (
    COMMON,
    GAIN,
    PROGRAMS,
    QUERIES,
    SHAPE,
    WIDTH,
    DirectGroup,
    Program,
    assert_equal_to_rounding,
    block,
    counted_mixes,
    draw_inputs,
    each_program,
    full,
    gradients,
    grouped,
    loss_of,
    split,
)
from .support import Kernels, each_kernel


@each_program
@each_kernel
def test_results_and_gradients_are_those_of_plain_reads(kernels: Kernels, program: Program) -> None:
    inputs = draw_inputs()
    with kernels():
        ours, expected = program(grouped, inputs), program(DirectGroup, inputs)
        assert_equal_to_rounding(ours, expected)
        assert_equal_to_rounding(gradients(loss_of(ours), inputs), gradients(loss_of(expected), inputs))


@each_program
def test_gradients_of_some_inputs_at_a_time(program: Program) -> None:
    """Each pass computes its own, and leaves nothing for the next one."""
    inputs = draw_inputs()
    expected = gradients(loss_of(program(DirectGroup, inputs)), inputs)
    loss = loss_of(program(grouped, inputs))
    for chosen in ([COMMON], [0], [len(inputs) - 2], [COMMON + 1, 1], [len(inputs) - 1, COMMON], range(len(inputs))):
        ours = gradients(loss, [inputs[n] for n in chosen], retain_graph=True)
        assert_equal_to_rounding(ours, [expected[n] for n in chosen])


@each_program
def test_gradients_of_one_result_at_a_time(program: Program) -> None:
    inputs = draw_inputs()
    for ours, expected in zip(program(grouped, inputs), program(DirectGroup, inputs), strict=True):
        assert_equal_to_rounding(
            gradients(loss_of([ours]), inputs, retain_graph=True),
            gradients(loss_of([expected]), inputs, retain_graph=True),
        )


@each_program
def test_a_second_backward_gives_the_same_bits(program: Program) -> None:
    inputs = draw_inputs()
    loss = loss_of(program(grouped, inputs))
    first, second = gradients(loss, inputs, retain_graph=True), gradients(loss, inputs, retain_graph=True)
    third = gradients(loss, inputs)
    for one, *others in zip(first, second, third, strict=True):
        for other in others:
            assert (one is None and other is None) or torch.equal(one, other)


@each_program
def test_a_backward_that_broke_off_leaves_nothing(program: Program) -> None:
    inputs = draw_inputs()
    results = program(grouped, inputs)
    expected = gradients(loss_of(results), inputs, retain_graph=True)

    class Interrupted(Exception):
        pass

    def interrupt(_: Tensor) -> None:
        raise Interrupted

    handle = inputs[0].register_hook(interrupt)
    with pytest.raises(Interrupted):
        gradients(loss_of(results).square(), inputs, retain_graph=True)
    handle.remove()
    for ours, theirs in zip(gradients(loss_of(results), inputs), expected, strict=True):
        assert (ours is None and theirs is None) or torch.equal(ours, theirs)


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
def test_frozen_inputs_change_nothing_for_the_others(program: Program, frozen: list[int]) -> None:
    inputs = draw_inputs()
    expected = gradients(loss_of(program(DirectGroup, inputs)), inputs)
    inputs = [tensor.detach() if n in frozen else tensor for n, tensor in enumerate(inputs)]
    results = [result for result in program(grouped, inputs) if result.requires_grad]
    if not results:
        pytest.skip("nothing here depends on what is left")
    free = [n for n in range(len(inputs)) if n not in frozen]
    # Results that do not depend on what is free have no share in its gradient.
    every = program(grouped, inputs)
    loss = loss_of(every)
    assert_equal_to_rounding(gradients(loss, [inputs[n] for n in free]), [expected[n] for n in free])


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@each_program
def test_without_gradients(program: Program, mode: type) -> None:
    inputs = draw_inputs()
    expected = program(grouped, inputs)
    with mode():
        ours = program(grouped, inputs)
    for one, reference in zip(ours, expected, strict=True):
        assert not one.requires_grad
        assert torch.equal(one, reference)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@each_program
def test_types_are_those_of_plain_reads(program: Program, dtype: torch.dtype) -> None:
    inputs = draw_inputs(dtype)
    ours, expected = program(grouped, inputs), program(DirectGroup, inputs)
    assert [one.dtype for one in ours] == [reference.dtype for reference in expected]
    assert [g and g.dtype for g in gradients(loss_of(ours), inputs) if g is None] == []
    for one, reference in zip(ours, expected, strict=True):
        # Two orders of summation, of numbers of the narrow type: a rounding of it each, here and in what was read.
        allowed = 4 * torch.finfo(dtype).eps * reference.abs().max()
        assert (one - reference).abs().max() <= allowed


@pytest.mark.parametrize("program", [block, full])
def test_the_first_phase_runs_once(program: Program) -> None:
    inputs = draw_inputs()
    with counted_mixes() as calls:
        results = program(grouped, inputs)
        assert calls == ["phase", *["read"] * (QUERIES - 1)]
        loss_of(results).backward()
        assert len(calls) == QUERIES


def test_a_group_that_is_not_read_computes_nothing() -> None:
    inputs = draw_inputs()
    with counted_mixes() as calls:
        loss_of(PROGRAMS["nothing read"](grouped, inputs)).backward()
    assert calls == []


def test_a_part_asked_for_again_makes_all_parts_again_once() -> None:
    common, _, queries, key_weights = split(draw_inputs())
    group = grouped(common, queries, key_weights)
    with counted_mixes() as calls:
        first = [group.read(r, {}, GAIN) for r in range(QUERIES)]
        second = [group.read(r, {}, GAIN) for r in reversed(range(QUERIES))]
    assert calls == ["phase", "phase"]
    for one, other in zip(first, reversed(second), strict=True):
        assert torch.equal(one, other)


def test_a_checkpointed_read_is_recomputed_from_one_more_first_phase() -> None:
    inputs = draw_inputs()
    expected = gradients(loss_of(block(grouped, inputs)), inputs)

    def checkpointed(inputs: list[Tensor]) -> list[Tensor]:
        common, outputs, queries, key_weights = split(inputs)
        group = grouped(common, queries, key_weights)

        def step(r: int, total: Tensor | None) -> Tensor:
            local = {} if total is None else {r - 1: total}
            return group.publish(r, torch.tanh(group.read(r, local, GAIN)) * outputs[r], total)

        total = None
        for r in range(QUERIES - 1):
            total = checkpoint(step, r, total, use_reentrant=False)
        x = group.read(QUERIES - 1, {QUERIES - 2: total}, GAIN)
        return [x, total + torch.tanh(x) * outputs[-1], *group.common]

    with counted_mixes() as calls:
        results = checkpointed(inputs)
        assert calls.count("phase") == 1
        ours = gradients(loss_of(results), inputs)
    assert calls.count("phase") == 2
    for one, reference in zip(ours, expected, strict=True):
        assert torch.equal(one, reference)


class Additions(TorchDispatchMode):
    """Counts additions of two tensors of a source's size."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        adds = func in (torch.ops.aten.add.Tensor, torch.ops.aten.add_.Tensor)
        self.count += adds and result.shape == (*SHAPE, WIDTH)
        return result


@pytest.mark.parametrize(("program", "direct"), [(block, QUERIES * (COMMON + 1)), (full, QUERIES * COMMON)])
def test_autograd_adds_up_no_gradients_of_sources(program: Program, direct: int) -> None:
    """Of a group they come in one piece; plain reads give one each. All else here is used once."""
    for open_group, least, most in [(grouped, 0, 0), (DirectGroup, direct, 10 * direct)]:
        inputs = draw_inputs()
        loss = loss_of(program(open_group, inputs))
        with Additions() as additions:
            loss.backward()
        assert least <= additions.count <= most


@each_program
def test_a_graph_that_is_dropped_is_freed_at_once(program: Program) -> None:
    """Without the garbage collector, which does not run in time, or does not see a cycle through a graph at all."""
    kept: list[StorageWeakRef] = []
    groups: list[weakref.ref[object]] = []

    def opened(*inputs) -> EagerGroup:
        group = grouped(*inputs)
        assert isinstance(group, EagerGroup)
        groups.append(weakref.ref(group))
        kept.extend(StorageWeakRef(source.untyped_storage()) for source in group.common)
        return group

    def walk(backward: bool) -> Tensor:
        inputs = [tensor.clone() for tensor in draw_inputs()]
        loss = loss_of(program(opened, inputs))
        if backward:
            loss.backward()
        return loss

    gc.disable()
    try:
        for backward, hold in [(False, False), (True, False), (True, True)]:
            loss = walk(backward)
            if not hold:
                del loss
            assert not [group for group in groups if group() is not None]
            assert not [storage for storage in kept if not storage.expired()]
    finally:
        gc.enable()


@each_program
def test_function_transforms(program: Program) -> None:
    inputs = [tensor.detach() for tensor in draw_inputs()]
    kinds: set[type] = set()

    def opened(*inputs):
        group = grouped(*inputs)
        kinds.add(type(group))
        return group

    def loss(*inputs: Tensor) -> Tensor:
        return loss_of(program(opened, list(inputs)))

    ours = torch.func.grad(loss, argnums=tuple(range(len(inputs))))(*inputs)
    assert kinds == {TracedGroup}
    leaves = [tensor.requires_grad_() for tensor in inputs]
    assert_equal_to_rounding(ours, gradients(loss_of(program(DirectGroup, leaves)), leaves))


@each_program
def test_compiled_as_one_graph(program: Program) -> None:
    torch._dynamo.reset()
    inputs = draw_inputs()
    compiled = torch.compile(lambda inputs: program(grouped, inputs), fullgraph=True, backend="aot_eager")
    ours, expected = compiled(inputs), program(grouped, inputs)
    assert_equal_to_rounding(ours, expected)
    assert_equal_to_rounding(gradients(loss_of(ours), inputs), gradients(loss_of(expected), inputs))
    torch._dynamo.reset()
