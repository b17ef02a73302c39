"""The operators as PyTorch sees them: schemas, fake tensors, autograd, `torch.compile`."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from attention_residuals.ops import attn_res, attn_res_partial, merge, normalise

from .support import assert_rounded_once, draw_sources, draw_vectors, signed, size

OPS = torch.ops.attention_residuals


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    """Each test compiles anew and leaves nothing behind."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def draw(dtype: torch.dtype, queries: int, transposed: bool = False) -> tuple[list[Tensor], Tensor]:
    """Sources `[2, 5, 4]` and folded queries `[R, 4]`."""
    sources = draw_sources(3, (5, 2) if transposed else (2, 5), 4, dtype)
    if transposed:
        sources = [source.transpose(0, 1) for source in sources]
    return sources, signed((queries, 4), torch.float64 if dtype == torch.float64 else torch.float32, seed=7)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", ["read", "partial"])
def test_forward_operator(name: str, dtype: torch.dtype, transposed: bool) -> None:
    sources, folded = draw(dtype, 1 if name == "read" else 3, transposed)
    inputs = ([source.detach().requires_grad_() for source in sources], folded.requires_grad_(), 1e-6)
    operator = getattr(OPS, name).default
    torch.library.opcheck(operator, (*inputs, 1.5) if name == "read" else inputs)


@pytest.mark.parametrize(("name", "differentiable"), [("read", 2), ("partial", 3)])
def test_what_is_kept_for_the_backward_carries_no_gradient(name: str, differentiable: int) -> None:
    sources, folded = draw(torch.float64, 1)
    gain = (1.5,) if name == "read" else ()
    results = getattr(OPS, name)(sources, folded.requires_grad_(), 1e-6, *gain)
    expected = [n < differentiable and (name, n) != ("partial", 1) for n in range(len(results))]
    assert [result.requires_grad for result in results] == expected


@pytest.mark.parametrize("absent", [None, "mixture", "weights"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_read_backward_operator(dtype: torch.dtype, absent: str | None) -> None:
    sources, folded = draw(dtype, 1)
    mixed, weights, logits, rstd = OPS.read(sources, folded, 1e-6, 1.5)
    grad_mixed = None if absent == "mixture" else torch.ones_like(mixed)
    grad_weights = None if absent == "weights" else torch.ones_like(weights)
    inputs = (sources, folded, weights, logits, rstd, grad_mixed, grad_weights, 1.5)
    torch.library.opcheck(OPS.read_backward.default, inputs)


@pytest.mark.parametrize("absent", [None, "values", "total"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_partial_backward_operator(dtype: torch.dtype, absent: str | None) -> None:
    sources, folded = draw(dtype, 3)
    values, maximum, total, logits, rstd = OPS.partial(sources, folded, 1e-6)
    grad_values = None if absent == "values" else torch.ones_like(values)
    grad_total = None if absent == "total" else torch.ones_like(total)
    inputs = (sources, folded, maximum, logits, rstd, grad_values, grad_total)
    torch.library.opcheck(OPS.partial_backward.default, inputs)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_gradcheck_of_a_read(count: int) -> None:
    inputs = [*draw_sources(count, (2,), 3, torch.float64), *draw_vectors(3, torch.float64)]

    def read(*inputs: Tensor) -> tuple[Tensor, Tensor]:
        return attn_res(inputs[:count], inputs[-2], inputs[-1], gain=1.5, return_weights=True)

    assert torch.autograd.gradcheck(read, [tensor.requires_grad_() for tensor in inputs])


def test_a_second_derivative_is_refused() -> None:
    """It is not implemented, and must not come out as zero."""
    sources = [source.requires_grad_() for source in draw_sources(3, (2,), 4, torch.float64)]
    mixed = attn_res(sources, *draw_vectors(4, torch.float64))
    (grad,) = torch.autograd.grad(mixed.sum(), sources[0], create_graph=True)
    with pytest.raises(RuntimeError, match="no autograd formula was registered"):
        torch.autograd.grad(grad.sum(), sources[1])


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


@pytest.mark.parametrize("read", [read_at_once, read_in_parts])
def test_compiled_as_one_graph(read: Callable[..., list[Tensor]]) -> None:
    assert_compiled_equals_eager(read, "aot_eager")


# Importing the default backend meets a deprecation inside PyTorch itself.
@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method.*:DeprecationWarning")
@pytest.mark.slow
@pytest.mark.parametrize("read", [read_at_once, read_in_parts])
def test_compiled_by_the_default_backend(read: Callable[..., list[Tensor]]) -> None:
    assert_compiled_equals_eager(read, "inductor")
