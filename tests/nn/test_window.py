"""Attention to a window against every token by itself: cut anywhere, padded anywhere, with a cache of fixed size."""

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from attention_residuals.errors import InputError
from attention_residuals.inference import GrowingCache, StaticCache
from attention_residuals.models import GroupedQuery
from attention_residuals.nn import Attention, Context, KeyValueCache, rotate, rotation
from attention_residuals.nn.window import attend_band, band, narrowed

WIDTH, HEADS, KV_HEADS, HEAD_DIM = 12, 4, 2, 6


def build(window: int | None) -> Attention:
    torch.manual_seed(0)
    layer = Attention(WIDTH, HEADS, KV_HEADS, HEAD_DIM, qk_norm=True, window=window).double()
    return layer.requires_grad_(False)


def draw(*sizes: int) -> Tensor:
    return torch.randn(*sizes, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def dense(layer: Attention, x: Tensor, window: int) -> Tensor:
    """One sequence `[T, width]`, every head and token by itself."""
    by = rotation(torch.arange(len(x)), HEAD_DIM, layer.rope_theta, x.dtype)
    outputs = x.new_empty(len(x), HEADS, HEAD_DIM)
    for head in range(HEADS):
        shared = head // (HEADS // KV_HEADS)
        query, key, value = (
            (x @ projection.weight.T).unflatten(-1, (-1, HEAD_DIM))[:, place]
            for projection, place in ((layer.query, head), (layer.key, shared), (layer.value, shared))
        )
        query, key = rotate(layer.query_norm(query), by), rotate(layer.key_norm(key), by)
        for t in range(len(x)):
            near = slice(max(0, t - window + 1), t + 1)
            outputs[t, head] = (key[near] @ query[t] / HEAD_DIM**0.5).softmax(0) @ value[near]
    return outputs.flatten(1) @ layer.output.weight.T


def context(cache: KeyValueCache | None, positions: Tensor, valid: Tensor | None = None) -> Context:
    return Context(rotation(positions.unsqueeze(1), HEAD_DIM, 10_000.0, torch.float64), cache=cache, valid=valid)


@pytest.mark.parametrize("window", [1, 2, 5, 9, 40])
@pytest.mark.parametrize("piece", [1, 4, 256])
def test_equals_the_dense_formula(window: int, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attention_residuals.nn.window.PIECE_TOKENS", piece)
    layer, x = build(window), draw(2, 17)
    expected = torch.stack([dense(layer, row, window) for row in x])
    torch.testing.assert_close(layer(x), expected, rtol=1e-12, atol=1e-12)


def test_gradients_are_those_of_the_dense_formula() -> None:
    layer, x = build(3), draw(1, 7).requires_grad_()
    other = x.detach().clone().requires_grad_()
    layer(x).square().sum().backward()
    dense(layer, other[0], 3).square().sum().backward()
    assert x.grad is not None and other.grad is not None
    torch.testing.assert_close(x.grad, other.grad, rtol=1e-11, atol=1e-11)


def test_a_window_as_long_as_the_text_is_full_attention_bit_by_bit() -> None:
    x = draw(2, 9)
    assert torch.equal(build(9)(x), build(None)(x))
    assert (build(8)(x) - build(None)(x)).abs().max() > 1e-3  # the tests above can fail


@pytest.mark.parametrize("window", [1, 4, 11, 30])
@pytest.mark.parametrize("cuts", [[1] * 20, [7, 13], [2, 1, 17], [20]])
@pytest.mark.parametrize("cache", [GrowingCache, lambda: StaticCache(1)], ids=["growing", "static"])
def test_cut_anywhere_it_equals_one_forward(cache, cuts: list[int], window: int) -> None:
    layer, x, kept = build(window), draw(2, 20), cache()
    places = torch.arange(20).unsqueeze(0)
    pieces = zip(x.split(cuts, dim=1), places.split(cuts, dim=1), strict=True)
    outputs = [layer(piece, context(kept, positions)) for piece, positions in pieces]
    torch.testing.assert_close(torch.cat(outputs, 1), layer(x), rtol=1e-12, atol=1e-12)


PATTERNS = {
    "left": [[0, 0, 0, 1, 1, 1, 1, 1], [1] * 8, [0] * 7 + [1]],
    "right": [[1, 1, 1, 1, 1, 0, 0, 0], [1] * 8, [1] + [0] * 7],
    "between": [[1, 0, 1, 1, 0, 0, 1, 1], [0, 1, 0, 1, 0, 1, 0, 1], [1, 1, 0, 0, 0, 0, 0, 1]],
}


@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS.keys())
@pytest.mark.parametrize("cuts", [[8], [3, 5], [1] * 8])
@pytest.mark.parametrize("window", [1, 3])
def test_padding_is_no_token_of_a_window(pattern: list[list[int]], cuts: list[int], window: int) -> None:
    layer, x, cache, more = build(window), draw(3, 8), GrowingCache(), draw(3, 1)
    valid = torch.tensor(pattern, dtype=torch.bool)
    positions = (valid.cumsum(1) - 1).clamp(min=0)
    pieces = zip(*(all_of.split(cuts, dim=1) for all_of in (x, positions, valid)), strict=True)
    found = torch.cat([layer(piece, context(cache, places, here)) for piece, places, here in pieces], dim=1)
    found_next = layer(more, context(cache, valid.sum(1, keepdim=True)))
    whole = layer(x, context(None, positions, valid))
    tokens = valid.unsqueeze(1).expand(-1, 8, -1).tril() | torch.eye(8, dtype=torch.bool)
    by = rotation(positions.unsqueeze(1), HEAD_DIM, 10_000.0, torch.float64)
    masked = layer(x, Context(by, mask=tokens.unsqueeze(1)))
    for row in range(3):
        alone = dense(layer, torch.cat((x[row, valid[row]], more[row])), window)
        for given in (found, whole, masked):
            torch.testing.assert_close(given[row, valid[row]], alone[:-1], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(found_next[row], alone[-1:], rtol=1e-12, atol=1e-12)


def test_the_cache_holds_no_more_than_the_window() -> None:
    layer = build(5)
    for tokens in (1, 4, 300):
        cache = GrowingCache()
        layer(draw(2, tokens), context(cache, torch.arange(tokens).unsqueeze(0)))
        layer(draw(2, 1), context(cache, torch.tensor([[tokens]])))
        sizes = [tensor.untyped_storage().nbytes() for tensor in cache.state(0) or ()]
        assert sizes == [8 * 2 * KV_HEADS * 4 * HEAD_DIM] * 2 + [2 * 4] and not cache._layers


def test_a_mask_is_never_widened() -> None:
    """A mask that hides tokens, here of another document, and one that shows later ones."""
    apart = torch.block_diag(torch.ones(3, 3), torch.ones(4, 4)).bool().view(1, 1, 7, 7)
    found = narrowed(apart, 2)[0, 0]
    distance = torch.arange(7).unsqueeze(1) - torch.arange(7)
    assert torch.equal(found, apart[0, 0] & (distance >= 0) & (distance < 2))


def test_long_texts_are_never_masked_whole() -> None:
    """Entries of masks and keys looked at grow with the tokens, not with their square."""
    query, key = (torch.randn(1, 2, 3000, 4) for _ in range(2))
    whole = torch.nn.functional.scaled_dot_product_attention(
        query, key, key, attn_mask=band(3000, 3000, 70, query.device)
    )
    torch.testing.assert_close(attend_band(query, key, key, 70), whole, rtol=1e-4, atol=1e-5)
    saved: list[int] = []

    def save(tensor: Tensor) -> Tensor:
        saved.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
        attend_band(query.requires_grad_(), key, key, 70)
    assert 0 < max(saved) < 3000 * 3000 / 20


def test_masks_are_made_once_and_may_be_trained_with_wherever_they_came_from() -> None:
    with torch.inference_mode():
        made = band(6, 9, 3, torch.device("cpu"))
    assert not made.is_inference() and band(6, 9, 3, torch.device("cpu")) is made
    layer = build(3).requires_grad_(True)
    with torch.inference_mode():
        layer(draw(1, 8))
    layer(draw(1, 8)).sum().backward()


def test_compiled_it_is_the_same_in_one_piece() -> None:
    torch._dynamo.reset()
    layer, x, counter = build(4), draw(2, 9), CompileCounterWithBackend("eager")
    compiled = torch.compile(layer, backend=counter, fullgraph=True)
    torch.testing.assert_close(compiled(x), layer(x), rtol=1e-12, atol=1e-12)
    assert counter.frame_count == 1
    torch._dynamo.reset()


@pytest.mark.parametrize("window", [0, -3, True, 2.0])
def test_windows_without_a_token_are_refused(window) -> None:
    with pytest.raises(InputError, match=rf"window is {window}; it must be a whole number of tokens of at least 1"):
        Attention(WIDTH, 4, 2, 6, window=window)
    with pytest.raises(InputError, match=rf"window is {window}"):
        GroupedQuery(4, 2, 6, window=window)


def test_configs_refuse_heads_before_anything_is_built() -> None:
    with pytest.raises(InputError, match="4 query heads cannot share 3"):
        GroupedQuery(4, 3, 6)
    with pytest.raises(InputError, match="head_dim is 5"):
        GroupedQuery(4, 2, 5)


def test_a_cache_for_keys_and_values_alone_is_refused() -> None:
    class Keys:
        def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int) -> tuple[Tensor, Tensor]:
            return key_states, value_states

    with pytest.raises(InputError, match="the cache is a Keys, which has keys and values alone"):
        build(3)(draw(1, 2), context(Keys(), torch.arange(2).unsqueeze(0)))
