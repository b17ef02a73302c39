"""The operators as PyTorch sees them: schemas, fake tensors, autograd, `torch.compile`."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from attention_residuals.ops import attn_res, attn_res_partial, merge, normalise, operators
from attention_residuals.ops.checks import fold

from .support import Kernels, assert_rounded_once, draw_sources, draw_vectors, each_kernel, signed, size

OPS = torch.ops.attention_residuals


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    """Each test compiles anew and leaves nothing behind."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


LAYOUTS = {"contiguous": (0, 1, 2), "transposed": (1, 0, 2), "width outermost": (2, 0, 1)}


def draw(dtype: torch.dtype, queries: int, layout: str = "contiguous") -> tuple[list[Tensor], Tensor]:
    """Sources `[2, 5, 4]`, their dimensions in this order in memory, and folded queries `[R, 4]`."""
    order = LAYOUTS[layout]
    back = [order.index(k) for k in range(3)]
    sources = [v.permute(order).contiguous().permute(back) for v in draw_sources(3, (2, 5), 4, dtype)]
    return sources, signed((queries, 4), torch.float64 if dtype == torch.float64 else torch.float32, seed=7)


EACH_LAYOUT = pytest.mark.parametrize("layout", LAYOUTS)
EACH_TYPE = pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
CHECKS = ("test_schema", "test_autograd_registration", "test_faketensor")
"""For operators without a backward; those with one are traced with it as well."""

FORWARD = {"read": (1, (1.5,)), "weighted_read": (1, (1.5,)), "partial": (3, ())}


@EACH_LAYOUT
@EACH_TYPE
@pytest.mark.parametrize("name", FORWARD)
def test_forward_operator(name: str, dtype: torch.dtype, layout: str) -> None:
    queries, gain = FORWARD[name]
    sources, folded = draw(dtype, queries, layout)
    inputs = ([source.detach().requires_grad_() for source in sources], folded.requires_grad_(), 1e-6, *gain)
    torch.library.opcheck(getattr(OPS, name).default, inputs)


DIFFERENTIABLE = {"read": [True, False, False], "weighted_read": [True, True, False, False]}
DIFFERENTIABLE["partial"] = [True, False, True]


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_what_is_kept_for_the_backward_carries_no_gradient(name: str) -> None:
    queries, gain = FORWARD[name]
    sources, folded = draw(torch.float64, queries)
    results = getattr(OPS, name)(sources, folded.requires_grad_(), 1e-6, *gain)
    assert [result.requires_grad for result in results] == DIFFERENTIABLE[name]


PLAIN = torch.library.Library("attention_residuals_plain", "DEF")
"""The plain implementations under names of their own, where no kernel stands in front of them."""

for _name, _plain, _shapes in (
    ("mix", operators.mix, operators._mix_shapes),
    ("mix_halves", operators.mix_halves, operators._mix_halves_shapes),
    ("extend", operators.extend, operators._extend_shapes),
    ("extend_halves", operators.extend_halves, operators._extend_halves_shapes),
    ("advance", operators.advance, operators._advance_shapes),
    ("mix_backward", operators.mix_backward, operators._mix_backward_shapes),
    ("norm_backward", operators.norm_backward, operators._norm_backward_shapes),
    ("extend_halves_backward", operators.extend_halves_backward, operators._extend_halves_backward_shapes),
    ("row_products", operators.row_products, operators._row_products_shapes),
    ("fold_rows", operators.fold_rows, operators._fold_rows_shapes),
):
    PLAIN.define(str(getattr(OPS, _name).default._schema).removeprefix("attention_residuals::"))
    PLAIN.impl(_name, _plain, "CompositeExplicitAutograd")
    torch.library.register_fake(f"attention_residuals_plain::{_name}", _shapes, lib=PLAIN)

each_namespace = pytest.mark.parametrize("ops", [OPS, torch.ops.attention_residuals_plain], ids=["kernels", "plain"])


@EACH_LAYOUT
@EACH_TYPE
@pytest.mark.parametrize("wide", [False, True])
@each_namespace
def test_mix_operator(ops, wide: bool, dtype: torch.dtype, layout: str) -> None:
    sources, folded = draw(dtype, 3, layout)
    torch.library.opcheck(ops.mix.default, (sources, folded, 1e-6, 1.5, wide), test_utils=CHECKS)
    if wide and dtype == torch.bfloat16:
        for whole in (-1, 1):
            torch.library.opcheck(ops.mix_halves.default, (sources, folded, 1e-6, whole), test_utils=CHECKS)


@EACH_LAYOUT
@EACH_TYPE
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("local", [0, 1, 3])
@each_namespace
def test_extend_operator(ops, local: int, normed: bool, dtype: torch.dtype, layout: str) -> None:
    sources, folded = draw(dtype, 3, layout)
    values, maximum, total = ops.mix(sources, folded[:1], 1e-6, 1.0, True)
    norm = folded[1] if normed else None
    torch.library.opcheck(
        ops.extend.default,
        (sources[:local], None, folded[:1], [*values, maximum, total], norm, 1e-6, 1e-5, 1.5, dtype),
        test_utils=CHECKS,
    )
    if dtype == torch.bfloat16:
        (half,), *numbers = ops.mix_halves(sources, folded[:1], 1e-6, -1)
        for gain in (1.0, 1.5):
            in_halves = (sources[:local], None, folded[:1], [half, *numbers], norm, 1e-6, 1e-5, gain, dtype)
            torch.library.opcheck(ops.extend_halves.default, in_halves, test_utils=CHECKS)
            _, maximum, total, share, _ = ops.extend_halves(*in_halves)
            read = (sources[0], sources[:local], folded[:1], half, share, maximum, total, norm, 1e-6, 1e-5, gain)
            torch.library.opcheck(ops.extend_halves_backward.default, read, test_utils=CHECKS)
    if local == 1:
        added = (sources[:1], sources[1], folded[:1], [*values, maximum, total], norm, 1e-6, 1e-5, 1.5, dtype)
        torch.library.opcheck(ops.extend.default, added, test_utils=CHECKS)


@EACH_LAYOUT
@EACH_TYPE
@each_namespace
def test_mix_backward_operator(ops, dtype: torch.dtype, layout: str) -> None:
    sources, folded = draw(dtype, 3, layout)
    _, maximum, total = ops.mix(sources, folded, 1e-6, 1.5, False)
    reads = (sources, list(maximum), list(total))  # three reads, and three sources that will do as their gradients
    gains = [1.5, 1.0, 3.0]
    torch.library.opcheck(
        ops.mix_backward.default, (sources, [], folded, *reads, [], [], [], [], gains, 1e-6), test_utils=CHECKS
    )
    running = [None, sources[0], None]
    deltas = [ops.row_products(source, source.to(folded.dtype)) for source in sources]
    mixtures = [None, None, sources[0].to(folded.dtype).contiguous()]
    cases = [(deltas, [], [], []), ([*deltas[:2], None], mixtures, [], [])]
    if dtype == torch.bfloat16:
        halves, carried = [None, None, sources[0].to(torch.float16).contiguous()], [None, folded[:1], folded[:2]]
        cases.append(([*deltas[:2], None], halves, [None, None, deltas[0]], carried))
    for known in cases:
        for elsewhere in (False, True):
            operands = (sources, running, folded, *reads, *known, gains, 1e-6, elsewhere)
            torch.library.opcheck(ops.mix_backward.default, operands, test_utils=CHECKS)


@EACH_LAYOUT
@EACH_TYPE
@each_namespace
def test_norm_backward_operator(ops, dtype: torch.dtype, layout: str) -> None:
    (grad, mixed, _), folded = draw(dtype, 2, layout)
    torch.library.opcheck(ops.norm_backward.default, (grad, mixed.to(folded.dtype), folded[0], 1e-6), test_utils=CHECKS)


@EACH_LAYOUT
@EACH_TYPE
@each_namespace
def test_row_products_operator(ops, dtype: torch.dtype, layout: str) -> None:
    (grad, mixed, _), folded = draw(dtype, 1, layout)
    torch.library.opcheck(ops.row_products.default, (grad, mixed.to(folded.dtype)), test_utils=CHECKS)


@EACH_TYPE
@each_namespace
def test_fold_rows_operator(ops, dtype: torch.dtype) -> None:
    (vectors, others, _), folded = draw(dtype, 1, "width outermost")
    queries, weights = vectors.flatten(0, -2).unbind(), others.flatten(0, -2).unbind()
    expected = fold(torch.stack(queries), torch.stack(weights), dtype)
    assert torch.equal(ops.fold_rows(queries, weights, folded.dtype), expected)
    torch.library.opcheck(ops.fold_rows.default, (queries, weights, folded.dtype), test_utils=CHECKS)


@EACH_LAYOUT
@pytest.mark.parametrize("absent", [None, "mixture", "weights"])
@EACH_TYPE
def test_weighted_read_backward_operator(dtype: torch.dtype, absent: str | None, layout: str) -> None:
    sources, folded = draw(dtype, 1, layout)
    mixed, weights, logits, rstd = OPS.weighted_read(sources, folded, 1e-6, 1.5)
    grad_mixed = None if absent == "mixture" else torch.ones_like(mixed)
    grad_weights = None if absent == "weights" else torch.ones_like(weights)
    inputs = (sources, folded, weights, logits, rstd, grad_mixed, grad_weights, 1.5)
    torch.library.opcheck(OPS.weighted_read_backward.default, inputs, test_utils=CHECKS)


@EACH_LAYOUT
@pytest.mark.parametrize("absent", [None, "mixture", "total"])
@EACH_TYPE
def test_partial_backward_operator(dtype: torch.dtype, absent: str | None, layout: str) -> None:
    sources, folded = draw(dtype, 3, layout)
    mixed, maximum, total = OPS.partial(sources, folded, 1e-6)
    grad_mixed = None if absent == "mixture" else torch.ones_like(mixed)
    grad_total = None if absent == "total" else torch.ones_like(total)
    inputs = (sources, folded, mixed, maximum, total, grad_mixed, grad_total, 1e-6)
    torch.library.opcheck(OPS.partial_backward.default, inputs, test_utils=CHECKS)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4])
@each_kernel
def test_gradcheck_of_a_read(kernels: Kernels, count: int, weighted: bool) -> None:
    inputs = [*draw_sources(count, (2,), 3, torch.float64), *draw_vectors(3, torch.float64)]

    def read(*inputs: Tensor) -> tuple[Tensor, ...] | Tensor:
        return attn_res(inputs[:count], inputs[-2], inputs[-1], gain=1.5, return_weights=weighted)

    with kernels():
        assert torch.autograd.gradcheck(read, [tensor.requires_grad_() for tensor in inputs])


def read_bare(sources: list[Tensor], query: Tensor, key_weight: Tensor) -> list[Tensor]:
    """A read without its weights."""
    return [attn_res(sources, query, key_weight, gain=1.5)]


def read_at_once(sources: list[Tensor], query: Tensor, key_weight: Tensor) -> list[Tensor]:
    """A read with its weights."""
    return list(attn_res(sources, query, key_weight, gain=1.5, return_weights=True))


def read_in_parts(sources: list[Tensor], query: Tensor, key_weight: Tensor) -> list[Tensor]:
    """The same mixture for two queries, from two parts."""
    queries, key_weights = torch.stack([query, -query]), torch.stack([key_weight, key_weight])
    first = attn_res_partial(sources[:2], queries, key_weights)
    second = attn_res_partial(sources[2:], queries, key_weights)
    return [normalise(merge(first, second), sources[0].dtype)]


def results_and_gradients(read: Callable[..., list[Tensor]], tokens: int) -> list[Tensor]:
    """What `read` gives for fixed inputs of `tokens` tokens, and the gradient of every input."""
    leaves = [leaf.requires_grad_() for leaf in draw_sources(4, (2, tokens), 8, torch.float32)]
    vectors = [vector.requires_grad_() for vector in draw_vectors(8, torch.float32)]
    results = read(leaves, *vectors)
    loss = torch.stack([result.square().sum() for result in results]).sum()
    return [*results, *torch.autograd.grad(loss, [*leaves, *vectors])]


def assert_compiled_equals_eager(read: Callable[..., list[Tensor]], backend: str) -> None:
    """Also for a second number of tokens, for which the compiler switches to symbolic sizes."""
    compiled = torch.compile(read, fullgraph=True, backend=backend)
    for tokens in (5, 7):
        expected = results_and_gradients(read, tokens)
        for ours, eager in zip(results_and_gradients(compiled, tokens), expected, strict=True):
            assert_rounded_once(ours, eager.double(), size([eager]))


@pytest.mark.parametrize("read", [read_bare, read_at_once, read_in_parts])
def test_compiled_as_one_graph(read: Callable[..., list[Tensor]]) -> None:
    assert_compiled_equals_eager(read, "aot_eager")


# Importing the default backend meets a deprecation inside PyTorch itself.
@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method.*:DeprecationWarning")
@pytest.mark.slow
@pytest.mark.parametrize("read", [read_bare, read_at_once, read_in_parts])
def test_compiled_by_the_default_backend(read: Callable[..., list[Tensor]]) -> None:
    assert_compiled_equals_eager(read, "inductor")
