"""`attn_res` against the float64 oracle: results, every gradient, layouts, types and hard numbers."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from attention_residuals.ops import attn_res, attn_res_reference

from .support import (
    DTYPES,
    ROUNDINGS,
    assert_read_equals_oracle,
    assert_rounded_once,
    draw_sources,
    draw_vectors,
    signed,
)

COUNTS = (1, 2, 3, 8, 31, 32, 33, 64, 65, 129, 130)
WIDTHS = (1, 3, 64, 1000, 1024)
LOW = (torch.bfloat16, torch.float16)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("count", COUNTS)
def test_every_count_and_width(count: int, width: int, dtype: torch.dtype) -> None:
    assert_read_equals_oracle(draw_sources(count, (2,), width, dtype), draw_vectors(width, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (1,), (7,), (2, 3), (2, 1, 3), (0,), (2, 0, 3)])
@pytest.mark.parametrize("count", [1, 5])
def test_every_leading_shape(count: int, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    assert_read_equals_oracle(draw_sources(count, shape, 16, dtype), draw_vectors(16, dtype))


def test_no_tokens_give_vectors_a_zero_gradient() -> None:
    vectors = [vector.requires_grad_() for vector in draw_vectors(8, torch.float32)]
    mixed = attn_res(draw_sources(3, (2, 0), 8, torch.float32), *vectors)
    assert mixed.shape == (2, 0, 8)
    for grad in torch.autograd.grad(mixed.sum(), vectors):
        assert torch.equal(grad, torch.zeros(8))


LAYOUTS: dict[str, tuple[tuple[int, ...], Callable[[Tensor], Tensor]]] = {
    "transposed": ((3, 2, 8), lambda leaf: leaf.transpose(0, 1)),
    "width not innermost": ((8, 2, 3), lambda leaf: leaf.permute(1, 2, 0)),
    "every other feature": ((2, 3, 16), lambda leaf: leaf[..., ::2]),
    "every other token": ((4, 3, 8), lambda leaf: leaf[::2]),
    "offset": ((3, 3, 9), lambda leaf: leaf[1:, :, 1:]),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_strided_sources(layout: str, dtype: torch.dtype) -> None:
    shape, view = LAYOUTS[layout]
    leaves = [signed(shape, dtype, seed) for seed in range(4)]
    assert_read_equals_oracle(leaves, draw_vectors(8, dtype), arrange=lambda leaves: [view(leaf) for leaf in leaves])


# Autograd itself adds up the gradients of an expanded or repeated source, in the type of the source: an operator that
# rounds once cannot be told from one that rounds thrice there, so these two run in the types that are computed in.
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_expanded_sources(dtype: torch.dtype) -> None:
    leaves = [signed((2, 1, 8), dtype, seed) for seed in range(4)]
    assert_read_equals_oracle(
        leaves, draw_vectors(8, dtype), arrange=lambda leaves: [leaf.expand(2, 3, 8) for leaf in leaves]
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_one_tensor_as_several_sources(dtype: torch.dtype) -> None:
    leaves = draw_sources(2, (3,), 8, dtype)
    assert_read_equals_oracle(
        leaves, draw_vectors(8, dtype), arrange=lambda leaves: [leaves[0], leaves[1], leaves[0], leaves[0]]
    )


@pytest.mark.parametrize("vector_dtype", DTYPES)
@pytest.mark.parametrize("dtype", [torch.float32, *LOW])
def test_vectors_of_another_type(dtype: torch.dtype, vector_dtype: torch.dtype) -> None:
    query, key_weight = draw_vectors(64, vector_dtype)
    # A float64 query is read in float32, so the oracle must get numbers that float32 can hold.
    query, key_weight = query.float().to(vector_dtype), key_weight.float().to(vector_dtype)
    assert_read_equals_oracle(draw_sources(5, (2, 3), 64, dtype), [query, key_weight])
    assert_read_equals_oracle(draw_sources(5, (2, 3), 64, dtype), [query.float(), key_weight])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("gain", [1.0, 7.0, -0.3])
def test_gain(gain: float, dtype: torch.dtype) -> None:
    assert_read_equals_oracle(draw_sources(7, (2, 3), 16, dtype), draw_vectors(16, dtype), gain=gain)


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_key_weight(dtype: torch.dtype) -> None:
    assert_read_equals_oracle(draw_sources(7, (2, 3), 16, dtype), draw_vectors(16, dtype)[:1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("through", ["mixture", "weights"])
def test_gradient_through_one_result_alone(through: str, dtype: torch.dtype) -> None:
    assert_read_equals_oracle(draw_sources(5, (2, 3), 16, dtype), draw_vectors(16, dtype), gain=2.0, through=through)


def test_frozen_sources_and_query() -> None:
    """Sources and vectors that need no gradient do not change those of the others."""
    sources, vectors = draw_sources(3, (2,), 16, torch.float64), draw_vectors(16, torch.float64)
    tensors = [tensor.requires_grad_() for tensor in (*sources, *vectors)]
    expected = torch.autograd.grad(attn_res(tensors[:3], *tensors[3:]).sum(), tensors)
    for free, gradient in enumerate(expected):
        inputs = [tensor if n == free else tensor.detach() for n, tensor in enumerate(tensors)]
        assert torch.equal(torch.autograd.grad(attn_res(inputs[:3], *inputs[3:]).sum(), inputs[free])[0], gradient)


@pytest.mark.parametrize("eps", [1e-12, 1e-5, 0.5])
def test_eps(eps: float) -> None:
    assert_read_equals_oracle(draw_sources(5, (3,), 16, torch.float64), draw_vectors(16, torch.float64), eps=eps)


@pytest.mark.parametrize("dtype", DTYPES)
def test_sources_of_different_size(dtype: torch.dtype) -> None:
    equal = draw_sources(9, (3,), 1024, dtype)
    sources = [(10 ** (n * 3 / 8 - 1) * source).to(dtype) for n, source in enumerate(equal)]
    assert_read_equals_oracle(sources, draw_vectors(1024, dtype))


@pytest.mark.parametrize("dtype", LOW)
def test_keys_are_not_rounded(dtype: torch.dtype) -> None:
    """The tolerance of this file would catch keys rounded to the type of the sources."""
    sources, (query, _) = draw_sources(9, (3,), 1024, dtype), draw_vectors(1024, torch.float32)
    stack = torch.stack(sources).double()
    keys = (stack * torch.rsqrt(stack.square().mean(-1, keepdim=True) + 1e-6)).to(dtype)
    rounded = (keys.double() @ query.double()).softmax(0).float()
    with pytest.raises(AssertionError, match="times what is allowed"):
        assert_rounded_once(rounded, attn_res_reference(sources, query)[1])


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_source_is_returned_as_it_is(dtype: torch.dtype) -> None:
    (source,) = draw_sources(1, (2, 3), 16, dtype)
    vectors = [vector.requires_grad_() for vector in draw_vectors(16, dtype)]
    mixed, weights = attn_res([source.requires_grad_()], *vectors, return_weights=True)
    incoming = signed((2, 3, 16), dtype, seed=5)
    grad_source, *grad_vectors = torch.autograd.grad(mixed, [source, *vectors], incoming)
    assert torch.equal(mixed, source)
    assert torch.equal(weights, torch.ones_like(weights))
    assert torch.equal(grad_source, incoming)
    for grad in grad_vectors:
        assert torch.equal(grad, torch.zeros_like(grad))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("zeros", [(0, 1, 2), (1,)])
def test_zero_sources(zeros: tuple[int, ...], dtype: torch.dtype) -> None:
    sources = [torch.zeros_like(s) if n in zeros else s for n, s in enumerate(draw_sources(3, (4,), 16, dtype))]
    assert_read_equals_oracle(sources, draw_vectors(16, dtype), eps=1.0)
    for tensor in (*attn_res(sources, *draw_vectors(16, dtype), return_weights=True), *gradients(sources)):
        assert tensor.isfinite().all()


def gradients(sources: list[Tensor]) -> tuple[Tensor, ...]:
    """Gradients of the mixture's sum with the default eps."""
    leaves = [source.clone().requires_grad_() for source in sources]
    vectors = [vector.requires_grad_() for vector in draw_vectors(sources[0].shape[-1], sources[0].dtype)]
    return torch.autograd.grad(attn_res(leaves, *vectors).sum(), [*leaves, *vectors])


@pytest.mark.parametrize("dtype", DTYPES)
def test_large_logits_pick_one_source(dtype: torch.dtype) -> None:
    query = 1e4 * draw_vectors(64, torch.float32)[0]
    sources = draw_sources(5, (3,), 64, dtype)
    assert_read_equals_oracle(sources, [query])
    _, weights = attn_res(sources, query, return_weights=True)
    assert torch.equal(weights.amax(0), torch.ones_like(weights[0]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_equal_large_logits_share_the_weight(dtype: torch.dtype) -> None:
    (source,) = draw_sources(1, (3,), 64, dtype)
    query = 1e4 * source[0] / 64
    _, weights = attn_res([source, 2 * source], query, eps=0.0, return_weights=True)
    compute = torch.finfo(weights.dtype)
    assert ((weights - 0.5).abs() <= ROUNDINGS * compute.eps * 1e4).all()


def test_large_float16_values_stay_finite() -> None:
    sources = [1e4 * source for source in draw_sources(130, (3,), 1024, torch.float16)]
    assert torch.stack(sources).isfinite().all()
    # Vectors in float32, since their own gradients exceed what float16 can hold.
    assert_read_equals_oracle(sources, draw_vectors(1024, torch.float32))


@pytest.mark.parametrize("dtype", DTYPES)
def test_zero_query_reads_the_mean_or_with_gain_the_sum(dtype: torch.dtype) -> None:
    sources = draw_sources(6, (2, 3), 16, dtype)
    total = torch.stack(sources).double().sum(0)
    zero = torch.zeros(16, dtype=dtype)
    assert_rounded_once(attn_res(sources, zero), total / 6)
    assert_rounded_once(attn_res(sources, zero, gain=6.0), total, 6.0)


@pytest.mark.parametrize("gain", [1.0, 5.0])
def test_weights_sum_to_one_whatever_the_gain(gain: float) -> None:
    sources = draw_sources(5, (2, 3), 16, torch.bfloat16)
    _, weights = attn_res(sources, *draw_vectors(16, torch.bfloat16), gain=gain, return_weights=True)
    assert_rounded_once(weights.sum(0), torch.ones(2, 3, dtype=torch.float64))
