"""What a read keeps and makes in memory, and that an enclosing autocast does not touch it."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from attention_residuals.ops import attn_res, attn_res_partial, loops

from .support import DTYPES, compute_type, draw_sources, draw_vectors

COUNT, TOKENS, WIDTH = 5, 32, 64


def saved_by_read(sources: list[Tensor], vectors: list[Tensor]) -> list[Tensor]:
    """Every tensor that autograd keeps for the backward of one read."""
    saved: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    def unpack(tensor: Tensor) -> Tensor:
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        attn_res(sources, *vectors)
    return saved


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_backward_keeps_sources_and_three_scalars_a_token(dtype: torch.dtype, transposed: bool) -> None:
    leaves = [source.requires_grad_() for source in draw_sources(COUNT, (4, TOKENS // 4), WIDTH, dtype)]
    sources = [leaf.transpose(0, 1) for leaf in leaves] if transposed else leaves
    vectors = [vector.requires_grad_() for vector in draw_vectors(WIDTH, dtype)]
    owned = {source.untyped_storage().data_ptr() for source in sources}
    saved = saved_by_read(sources, vectors)
    others = [tensor for tensor in saved if tensor.untyped_storage().data_ptr() not in owned]
    # Of width D only the query, the key weight and their product.
    assert sum(tensor.numel() for tensor in others) <= 3 * COUNT * TOKENS + 3 * WIDTH
    assert len(saved) - len(others) == COUNT


class LargestResult(TorchDispatchMode):
    """Notes the size of the largest new tensor an operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self.numel = max(self.numel, result.numel())
        return result


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_stack_of_the_sources_is_made(dtype: torch.dtype) -> None:
    sources = draw_sources(COUNT, (TOKENS,), WIDTH, dtype)
    query = draw_vectors(WIDTH, compute_type(dtype))[0].unsqueeze(0)
    with LargestResult() as largest:
        scores = loops.score(sources, query, 1e-6)
        weights = scores[0].softmax(0)
        mixed = loops.mix(sources, weights)
        grad = loops.weight_gradients(sources, mixed)
        loops.input_gradients(sources, query, scores, weights, grad, mixed)
    assert largest.numel == TOKENS * WIDTH


@pytest.mark.parametrize("dtype", DTYPES)
def test_autocast_changes_no_bit_of_a_read(dtype: torch.dtype) -> None:
    def run() -> list[Tensor]:
        leaves = [leaf.requires_grad_() for leaf in draw_sources(COUNT, (TOKENS,), WIDTH, dtype)]
        vectors = [vector.requires_grad_() for vector in draw_vectors(WIDTH, dtype)]
        mixed, weights = attn_res(leaves, *vectors, return_weights=True)
        grads = torch.autograd.grad(mixed.double().square().sum(), [*leaves, *vectors])
        return [mixed, weights, *grads]

    assert_unchanged_by_autocast(run)


@pytest.mark.parametrize("dtype", DTYPES)
def test_autocast_changes_no_bit_of_a_partial_read(dtype: torch.dtype) -> None:
    def run() -> list[Tensor]:
        leaves = [leaf.requires_grad_() for leaf in draw_sources(COUNT, (TOKENS,), WIDTH, dtype)]
        vectors = [vector.requires_grad_() for vector in draw_vectors(WIDTH, dtype)]
        part = attn_res_partial(leaves, vectors[0].unsqueeze(0), vectors[1].unsqueeze(0))
        grads = torch.autograd.grad(part.values.square().sum() + part.total.sum(), [*leaves, *vectors])
        return [*part, *grads]

    assert_unchanged_by_autocast(run)


def assert_unchanged_by_autocast(run: Callable[[], list[Tensor]]) -> None:
    """`run` gives the same bits, in the same types, inside an autocast to bfloat16."""
    expected = run()
    with torch.autocast("cpu", torch.bfloat16):
        actual = run()
    for a, e in zip(actual, expected, strict=True):
        assert a.dtype == e.dtype
        assert torch.equal(a, e)
