"""Programs of grouped reads, and a group without a first phase to compare with: each of its reads is an `attn_res`."""

from collections.abc import Callable, Sequence
from typing import TypeAlias, final

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from attention_residuals.ops import Ahead, Group, PreNorm, attn_res, attn_res_partial, open_group
from attention_residuals.ops.checks import fold
from attention_residuals.ops.group import EagerGroup, NativeGroup, SlotGroup, TracedGroup
from attention_residuals.ops.plain_group import Parts, PlainGroup

from .reads import EPS
from .support import assert_rounded_once, compiled_operators, signed, size

COMMON, QUERIES, SHAPE, WIDTH = 3, 4, (2, 5), 8
GAIN = 1.5

Open: TypeAlias = Callable[[Sequence[Tensor], Tensor, Tensor], Group]
Program: TypeAlias = Callable[[Open, list[Tensor]], list[Tensor]]
"""A way to open groups and inputs (common sources, local outputs, queries, key weights) to results."""


@final
class DirectGroup(SlotGroup):
    def __init__(self, sources: Sequence[Tensor], queries: Tensor, key_weights: Tensor):
        super().__init__(sources)
        self.queries, self.key_weights = queries, key_weights

    def _publish(self, slot: int, output: Tensor, partial_sum: Tensor | None, ahead: Ahead | None) -> Tensor:
        return output if partial_sum is None else partial_sum + output

    def _read(self, slots: tuple[int, ...], local: Sequence[Tensor], asked: Ahead, announced: bool) -> Tensor:
        r, gain, norm = asked
        mixed = attn_res([*self.common, *local], self.queries[r], self.key_weights[r], eps=EPS, gain=gain)
        if norm is None:
            return mixed
        return F.rms_norm(mixed, norm.weight.shape, norm.weight.to(mixed.dtype), norm.eps)


def native(sources: Sequence[Tensor], queries: Tensor, key_weights: Tensor) -> Group:
    with compiled_operators():
        return NativeGroup(sources, fold(queries, key_weights, sources[0].dtype), EPS)


def eager(sources: Sequence[Tensor], queries: Tensor, key_weights: Tensor) -> Group:
    return EagerGroup(sources, fold(queries, key_weights, sources[0].dtype), EPS)


def traced(sources: Sequence[Tensor], queries: Tensor, key_weights: Tensor) -> Group:
    part = attn_res_partial(sources, queries, key_weights, eps=EPS)
    return TracedGroup(sources, part, queries, key_weights, EPS)


def vectors(rows: Tensor) -> tuple[Tensor, ...]:
    """Rows as vectors that have gradients like parameters, whatever is recorded at the moment."""
    with torch.enable_grad():
        return rows.unbind()


def plain(sources: Sequence[Tensor], queries: Tensor, key_weights: Tensor) -> Group:
    return PlainGroup(Parts(sources, vectors(queries), vectors(key_weights), EPS, halved=False))


def plain_in_halves(sources: Sequence[Tensor], queries: Tensor, key_weights: Tensor) -> Group:
    return PlainGroup(Parts(sources, vectors(queries), vectors(key_weights), EPS, halved=True))


def chosen(sources: Sequence[Tensor], queries: Tensor, key_weights: Tensor) -> Group:
    """The one that is for where it is opened."""
    return open_group(sources, vectors(queries), vectors(key_weights), eps=EPS)


each_pulling_group = pytest.mark.parametrize("opened", [native, eager])
each_group = pytest.mark.parametrize("opened", [native, eager, traced])


def draw_inputs(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Common sources, one output a query, queries and key weights: leaves that need a gradient."""
    outputs = [signed((*SHAPE, WIDTH), dtype, seed) for seed in range(COMMON + QUERIES)]
    queries = signed((QUERIES, WIDTH), dtype, seed=1001) / WIDTH**0.5
    return [tensor.requires_grad_() for tensor in (*outputs, queries, signed((QUERIES, WIDTH), dtype, seed=1002))]


def split(inputs: list[Tensor]) -> tuple[list[Tensor], list[Tensor], Tensor, Tensor]:
    return inputs[:COMMON], inputs[COMMON:-2], inputs[-2], inputs[-1]


def sublayer(x: Tensor, output: Tensor) -> Tensor:
    """Something of what was read and of an input."""
    return torch.tanh(x) * output


def block(open_group: Open, inputs: list[Tensor]) -> list[Tensor]:
    """The reads of a block: of the common sources and of the sum that all outputs so far make."""
    common, outputs, queries, key_weights = split(inputs)
    group = open_group(common, queries, key_weights)
    common, x, total = group.common, group.read(0, (), GAIN), None
    for r, output in enumerate(outputs[:-1]):
        group, total = group.publish(sublayer(x, output), total)
        x = group.read(r + 1, (total,), GAIN)
    assert total is not None
    return [total + sublayer(x, outputs[-1]), *common]


def full(open_group: Open, inputs: list[Tensor]) -> list[Tensor]:
    """The reads of a group of Full: every output is a source of all later reads."""
    common, outputs, queries, key_weights = split(inputs)
    group = open_group(common, queries, key_weights)
    local: list[Tensor] = []
    for r, output in enumerate(outputs):
        group, source = group.publish(sublayer(group.read(r, local, GAIN), output))
        local = [*local, source]
    return [*group.common, *local]


def normed_block(open_group: Open, inputs: list[Tensor]) -> list[Tensor]:
    """The reads of a block, each with a norm behind it, whose weights are the key weights once more."""
    common, outputs, queries, key_weights = split(inputs)
    norms = [PreNorm(weight, 0.1) for weight in key_weights]
    group = open_group(common, queries, key_weights)
    common, x, total = group.common, group.read(0, (), GAIN, norms[0]), None
    for r, output in enumerate(outputs[:-1]):
        group, total = group.publish(sublayer(x, output), total, Ahead(r + 1, GAIN, norms[r + 1]))
        x = group.read(r + 1, (total,), GAIN, norms[r + 1])
    assert total is not None
    return [total + sublayer(x, outputs[-1]), *common]


def announced_block(open_group: Open, inputs: list[Tensor]) -> list[Tensor]:
    """The reads of a block, each told before its source is made; then the last one again, and one not as told."""
    common, outputs, queries, key_weights = split(inputs)
    group = open_group(common, queries, key_weights)
    common, x, total = group.common, group.read(0, (), GAIN), None
    for r, output in enumerate(outputs[:-1]):
        group, total = group.publish(sublayer(x, output), total, Ahead(r + 1, GAIN, None))
        x = group.read(r + 1, (total,), GAIN)
    assert total is not None
    again, other = group.read(QUERIES - 1, (total,), GAIN), group.read(QUERIES - 1, (total,), 2 * GAIN)
    return [total + sublayer(x, outputs[-1]), again * outputs[0], other, *common]


def normed_full(open_group: Open, inputs: list[Tensor]) -> list[Tensor]:
    """The reads of a group of Full, a norm behind every other one."""
    common, outputs, queries, key_weights = split(inputs)
    group = open_group(common, queries, key_weights)
    local: list[Tensor] = []
    for r, output in enumerate(outputs):
        norm = PreNorm(key_weights[r], 0.1) if r % 2 else None
        group, source = group.publish(sublayer(group.read(r, local, GAIN, norm), output))
        local = [*local, source]
    return [*group.common, *local]


def two_groups(open_group: Open, inputs: list[Tensor]) -> list[Tensor]:
    """The second group has what the first one made among its common sources."""
    _, outputs, queries, key_weights = split(inputs)
    made, first, second, third = block(open_group, inputs)
    return block(open_group, [first, made, second + third, *outputs, queries.flip(0), key_weights])


def published(group: Group, outputs: list[Tensor]) -> tuple[list[Group], list[Tensor]]:
    """The groups that have none, one, two ... of `outputs`, and these as local sources."""
    groups, local = [group], []
    for output in outputs:
        group, source = group.publish(output)
        groups.append(group)
        local.append(source)
    return groups, local


def any_order(open_group: Open, inputs: list[Tensor]) -> list[Tensor]:
    """Reads in another order than that of their queries, and one of them again."""
    common, outputs, queries, key_weights = split(inputs)
    groups, local = published(open_group(common, queries, key_weights), outputs)
    order = [2, 0, 3, 1, 0]
    return [groups[turn].read(r, local[:turn], 1.0) for turn, r in enumerate(order)]


def unused_reads(open_group: Open, inputs: list[Tensor]) -> list[Tensor]:
    """Reads 1 and 2 are of no consequence, nor is the last output."""
    common, outputs, queries, key_weights = split(inputs)
    groups, local = published(open_group(common, queries, key_weights), outputs)
    reads = [groups[r].read(r, local[:r], GAIN) for r in range(QUERIES)]
    return [reads[0], reads[3]]


def branches(open_group: Open, inputs: list[Tensor]) -> list[Tensor]:
    """Two ways to go on from one state, as different outputs of one sublayer would."""
    common, outputs, queries, key_weights = split(inputs)
    start, base = open_group(common, queries, key_weights).publish(outputs[0])
    results = []
    for output in (outputs[1], outputs[2]):
        group, total = start.publish(output, base)
        results.append(group.read(1, (total,), GAIN))
        group, other = group.publish(outputs[3])
        results.append(group.read(2, (total, other), GAIN))
    return results


def sources_used_elsewhere(open_group: Open, inputs: list[Tensor]) -> list[Tensor]:
    """Common and local sources also appear by themselves, before and after the group took them over."""
    common, outputs, queries, key_weights = split(inputs)
    group = open_group(common, queries, key_weights)
    groups, local = published(group, [sublayer(common[n], outputs[n]) for n in range(2)])
    x = groups[-1].read(0, local, GAIN)
    return [x * local[0], local[1].square(), common[0] * x, group.common[0].square(), group.common[2] * group.common[1]]


def nothing_read(open_group: Open, inputs: list[Tensor]) -> list[Tensor]:
    """A group that is opened and published to, and never read."""
    common, outputs, queries, key_weights = split(inputs)
    group, first = open_group(common, queries, key_weights).publish(outputs[0])
    group, total = group.publish(outputs[1], first)
    return [total, *group.common]


PROGRAMS: dict[str, Program] = {
    "block": block,
    "full": full,
    "announced block": announced_block,
    "normed block": normed_block,
    "normed full": normed_full,
    "two groups": two_groups,
    "any order": any_order,
    "unused reads": unused_reads,
    "branches": branches,
    "sources used elsewhere": sources_used_elsewhere,
    "nothing read": nothing_read,
}

each_program = pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS.keys())


def loss_of(results: Sequence[Tensor]) -> Tensor:
    """A number that gives every entry of every result a gradient of its own, of size 1."""
    return torch.stack([(signed(r.shape, r.dtype, 3001 + n) * r).sum() for n, r in enumerate(results)]).sum()


def gradients(loss: Tensor, inputs: Sequence[Tensor], retain_graph: bool = False) -> list[Tensor | None]:
    """Of every input, and None where there is no path to it."""
    return list(torch.autograd.grad(loss, inputs, retain_graph=retain_graph, allow_unused=True))


def assert_equal_to_rounding(ours: Sequence[Tensor | None], expected: Sequence[Tensor | None]) -> None:
    """To a few roundings of the largest of them all; an absent gradient is zero."""
    scale = size([one for one in expected if one is not None])
    for one, reference in zip(ours, expected, strict=True):
        if one is None or reference is None:
            assert one is None or not one.any()
            assert reference is None or not reference.any()
        else:
            assert_rounded_once(one, reference.double(), scale)


def assert_same_bits(ours: Sequence[Tensor | None], expected: Sequence[Tensor | None]) -> None:
    for one, reference in zip(ours, expected, strict=True):
        if one is None or reference is None:
            assert one is None and reference is None
        else:
            assert torch.equal(one, reference)
