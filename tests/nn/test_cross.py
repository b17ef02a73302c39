"""Cross-attention against every token by itself; keys and values computed once."""

import pytest
import torch
from torch import Tensor

from attention_residuals.errors import InputError
from attention_residuals.inference import GrowingCache, StaticCache
from attention_residuals.nn import Context, CrossAttention, Memory

WIDTH, HEADS, KV_HEADS, HEAD_DIM = 10, 4, 2, 3


def build() -> CrossAttention:
    torch.manual_seed(0)
    return CrossAttention(WIDTH, HEADS, KV_HEADS, HEAD_DIM).double().requires_grad_(False)


def straight_line(layer: CrossAttention, x: Tensor, memory: Tensor) -> Tensor:
    """`[T, width]` over `[S, width]`."""
    outputs = x.new_empty(len(x), HEADS, HEAD_DIM)
    for head in range(HEADS):
        own, shared = (slice(n * HEAD_DIM, (n + 1) * HEAD_DIM) for n in (head, head // (HEADS // KV_HEADS)))
        query, key, value = (
            layer.query.weight[own],
            memory @ layer.key.weight[shared].T,
            memory @ layer.value.weight[shared].T,
        )
        for t, token in enumerate(x):
            outputs[t, head] = (key @ (query @ token) / HEAD_DIM**0.5).softmax(0) @ value
    return outputs.flatten(1) @ layer.output.weight.T


@pytest.mark.parametrize("tokens", [1, 6])
def test_equals_the_straight_line_with_padding_anywhere(tokens: int) -> None:
    layer, x, features = build(), *(torch.randn(3, n, WIDTH, dtype=torch.float64) for n in (tokens, 5))
    valid = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 0], [1, 0, 0, 0, 1]], dtype=torch.bool)
    found, whole = layer(x, Memory(features, valid)), layer(x, Memory(features))
    for row in range(3):
        expected = straight_line(layer, x[row], features[row, valid[row]])
        torch.testing.assert_close(found[row], expected, rtol=1e-12, atol=1e-12)
        expected = straight_line(layer, x[row], features[row])
        torch.testing.assert_close(whole[row], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("cache", [GrowingCache, lambda: StaticCache(1)], ids=["growing", "static"])
def test_keys_and_values_are_computed_once(cache) -> None:
    layer, x, memory = build(), *(torch.randn(2, n, WIDTH, dtype=torch.float64) for n in (7, 5))
    kept, calls = cache(), []
    for projection in (layer.key, layer.value):
        projection.register_forward_hook(lambda *_: calls.append(1))
    pieces = [layer(piece, Memory(memory), Context(None, cache=kept)) for piece in x.split([3, 1, 1, 2], dim=1)]
    assert len(calls) == 2
    torch.testing.assert_close(torch.cat(pieces, 1), layer(x, Memory(memory)), rtol=1e-12, atol=1e-12)


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match="4 query heads cannot share 3"):
        CrossAttention(12, 4, 3, 6)
    with pytest.raises(InputError, match="head_dim is 0"):
        CrossAttention(12, 4, 2, 0)
