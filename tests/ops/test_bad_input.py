"""What a read refuses: the type of the error, and that its message names the value."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from attention_residuals.ops import attn_res, attn_res_partial


def ones(*shape: int, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Tensor:
    return torch.ones(shape, dtype=dtype, device=device)


def read(sources, query: Tensor | None = None, key_weight: Tensor | None = None) -> object:
    return attn_res(sources, ones(4) if query is None else query, key_weight)


def partial(sources, query: Tensor | None = None, key_weight: Tensor | None = None) -> object:
    """The partial read with the vectors as matrices of one row."""
    queries = ones(4) if query is None else query
    return attn_res_partial(sources, queries[None], None if key_weight is None else key_weight[None])


BAD_SOURCES: dict[str, tuple[object, type[Exception], str]] = {
    "none": ([], ValueError, "sources is empty"),
    "a stack": (ones(3, 2, 4), TypeError, r"pass a sequence of tensors, for a stack sources\.unbind\(0\)"),
    "integers": ([ones(2, 4, dtype=torch.int64)] * 2, TypeError, r"torch\.int64"),
    "complex": ([ones(2, 4, dtype=torch.complex64)], TypeError, r"torch\.complex64"),
    "scalars": ([torch.ones(())], ValueError, r"shape \(\)"),
    "no features": ([ones(2, 0)], ValueError, r"shape \(2, 0\)"),
    "two shapes": ([ones(2, 4), ones(2, 4), ones(3, 4)], ValueError, r"source 2 has shape \(3, 4\).*\(2, 4\)"),
    "shapes that broadcast": ([ones(2, 4), ones(1, 4)], ValueError, r"source 1 has shape \(1, 4\)"),
    "two types": ([ones(2, 4), ones(2, 4, dtype=torch.bfloat16)], TypeError, r"source 1 has type torch\.bfloat16"),
    "two devices": ([ones(2, 4), ones(2, 4, device="meta")], ValueError, "source 1 is on meta but source 0 is on cpu"),
}


@pytest.mark.parametrize("function", [read, partial])
@pytest.mark.parametrize("case", BAD_SOURCES)
def test_bad_sources(case: str, function: Callable[..., object]) -> None:
    sources, error, message = BAD_SOURCES[case]
    with pytest.raises(error, match=message):
        function(sources)


BAD_VECTORS: dict[str, tuple[Tensor, type[Exception], str]] = {
    "another width": (ones(5), ValueError, r"has shape \((1, )?5,?\); sources of width 4"),
    "one more dimension": (ones(2, 4), ValueError, r"has shape \((1, )?2, 4\)"),
    "integers": (ones(4, dtype=torch.int32), TypeError, r"torch\.int32"),
    "another device": (ones(4, device="meta"), ValueError, "is on meta but the sources are on cpu"),
}


@pytest.mark.parametrize("function", [read, partial])
@pytest.mark.parametrize("case", BAD_VECTORS)
def test_bad_query(case: str, function: Callable[..., object]) -> None:
    query, error, message = BAD_VECTORS[case]
    with pytest.raises(error, match=f"^quer(y|ies) .*{message}"):
        function([ones(2, 4)], query)


@pytest.mark.parametrize("function", [read, partial])
@pytest.mark.parametrize("case", BAD_VECTORS)
def test_bad_key_weight(case: str, function: Callable[..., object]) -> None:
    key_weight, error, message = BAD_VECTORS[case]
    with pytest.raises(error, match=f"^key_weights? .*{message}"):
        function([ones(2, 4)], ones(4), key_weight)


def test_one_query_where_a_matrix_is_needed() -> None:
    with pytest.raises(ValueError, match=r"queries has shape \(4,\)"):
        attn_res_partial([ones(2, 4)], ones(4))


def test_another_number_of_key_weights_than_queries() -> None:
    with pytest.raises(ValueError, match=r"key_weights has shape \(3, 4\).*\(2, 4\)"):
        attn_res_partial([ones(2, 4)], ones(2, 4), ones(3, 4))


def test_no_queries() -> None:
    with pytest.raises(ValueError, match=r"queries has shape \(0, 4\).* R >= 1"):
        attn_res_partial([ones(2, 4)], ones(0, 4))


@pytest.mark.parametrize("eps", [-1e-6, float("nan")])
def test_an_eps_that_could_make_a_root_undefined(eps: float) -> None:
    with pytest.raises(ValueError, match=f"eps is {eps}"):
        attn_res([ones(2, 4)], ones(4), eps=eps)
    with pytest.raises(ValueError, match=f"eps is {eps}"):
        attn_res_partial([ones(2, 4)], ones(1, 4), eps=eps)
