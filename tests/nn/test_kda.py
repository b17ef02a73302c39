"""Kimi Delta Attention against a straight line per token, cut anywhere, and with padding anywhere."""

import itertools

import pytest
import torch
from torch import Tensor

from attention_residuals.errors import InputError
from attention_residuals.inference import GrowingCache, StaticCache
from attention_residuals.nn import Context, KeyValueCache, KimiDeltaAttention, rotation

from .deltas import Work

WIDTH, HEADS, HEAD_DIM = 12, 3, 5
NO_TURN = rotation(torch.arange(1), 2, 1.0, torch.float32)
"""Positions come from the decay: whatever the rotation, it is not used."""


def build(dtype: torch.dtype = torch.float64, **options: int) -> KimiDeltaAttention:
    torch.manual_seed(0)
    return KimiDeltaAttention(WIDTH, HEADS, HEAD_DIM, **options).to(dtype).requires_grad_(False)


def draw(*sizes: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*sizes, WIDTH, dtype=dtype, generator=torch.Generator().manual_seed(1))


def context(cache: KeyValueCache | None, valid: Tensor | None = None, layer: int = 0) -> Context:
    return Context(NO_TURN, cache=cache, valid=valid, layer=layer)


def straight_line(layer: KimiDeltaAttention, x: Tensor) -> Tensor:
    """One sequence `[T, width]`, every token and head by itself, from the published formulas."""
    gate = layer.decay
    mixed = {}
    for name in ("query", "key", "value"):
        inputs = x @ getattr(layer, name).weight.T
        weight = getattr(layer, f"{name}_convolution").weight[:, 0]
        windows = torch.cat((inputs.new_zeros(3, inputs.shape[1]), inputs)).unfold(0, 4, 1)
        total = (windows * weight).sum(-1)
        mixed[name] = total * torch.sigmoid(total)
    outputs = torch.empty(len(x), HEADS * HEAD_DIM, dtype=x.dtype)
    for head in range(HEADS):
        part = slice(head * HEAD_DIM, (head + 1) * HEAD_DIM)
        memory = x.new_zeros(HEAD_DIM, HEAD_DIM)
        for t, token in enumerate(x):
            q, k, v = (mixed[name][t, part] for name in ("query", "key", "value"))
            q = q / (q @ q + 1e-6).sqrt() / HEAD_DIM**0.5
            k = k / (k @ k + 1e-6).sqrt()
            raw = (gate.up.weight @ (gate.down.weight @ token) + gate.dt_bias)[part]
            kept = torch.exp(-torch.exp(gate.A_log[head]) * torch.log(1 + torch.exp(raw)))
            beta = torch.sigmoid(layer.beta.weight[head] @ token)
            memory = kept[:, None] * memory
            memory = memory + beta * torch.outer(k, v - memory.T @ k)
            found = memory.T @ q
            found = found / (found.square().mean() + 1e-6).sqrt() * layer.output_norm.weight
            outputs[t, part] = found * torch.sigmoid((layer.gate_up.weight @ (layer.gate_down.weight @ token))[part])
    return outputs @ layer.output.weight.T


@pytest.mark.parametrize("tokens", [1, 3, 70])
def test_equals_the_straight_line(tokens: int) -> None:
    layer, x = build(), draw(2, tokens)
    layer.output_norm.weight.copy_(torch.rand(HEAD_DIM))
    expected = torch.stack([straight_line(layer, row) for row in x])
    torch.testing.assert_close(layer(x), expected, rtol=1e-11, atol=1e-11)


def test_every_parameter_and_the_input_get_gradients() -> None:
    layer, x = build().requires_grad_(True), draw(2, 20).requires_grad_()
    layer(x).square().sum().backward()
    assert x.grad is not None and x.grad.any()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all() and parameter.grad.any(), name


def test_no_position_sees_the_future() -> None:
    layer, x = build(), draw(1, 80)
    changed = x.clone()
    changed[:, 40:] += 1
    assert torch.equal(layer(x)[:, :40], layer(changed)[:, :40])
    assert not torch.equal(layer(x)[:, 40:], layer(changed)[:, 40:])


@pytest.mark.parametrize("cuts", [[1] * 20, [7, 13], [2, 1, 17], [20]])
@pytest.mark.parametrize("cache", [GrowingCache, lambda: StaticCache(1)], ids=["growing", "static"])
def test_cut_anywhere_it_equals_one_forward(cache, cuts: list[int]) -> None:
    layer, x, kept = build(), draw(2, 20), cache()
    outputs = [layer(piece, context(kept)) for piece in x.split(cuts, dim=1)]
    torch.testing.assert_close(torch.cat(outputs, 1), layer(x), rtol=1e-12, atol=1e-12)


def test_layers_keep_states_of_their_own() -> None:
    layer, x, cache = build(), draw(1, 6), GrowingCache()
    layer(x[:, :4], context(cache, layer=0))
    torch.testing.assert_close(layer(x, context(cache, layer=1)), layer(x), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(layer(x[:, 4:], context(cache)), layer(x)[:, 4:], rtol=1e-12, atol=1e-12)


PATTERNS = {
    "left": [[0, 0, 0, 1, 1, 1, 1, 1], [1] * 8, [0] * 7 + [1]],
    "right": [[1, 1, 1, 1, 1, 0, 0, 0], [1] * 8, [1] + [0] * 7],
    "between": [[1, 0, 1, 1, 0, 0, 1, 1], [0, 1, 0, 1, 0, 1, 0, 1], [1, 1, 0, 0, 0, 0, 0, 1]],
}


@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS.keys())
@pytest.mark.parametrize("cuts", [[8], [3, 5], [1] * 8])
def test_padding_anywhere_leaves_no_trace(pattern: list[list[int]], cuts: list[int]) -> None:
    layer, x, cache = build(), draw(3, 8), GrowingCache()
    valid = torch.tensor(pattern, dtype=torch.bool)
    pieces = zip(x.split(cuts, dim=1), valid.split(cuts, dim=1), strict=True)
    found = torch.cat([layer(piece, context(cache, here)) for piece, here in pieces], dim=1)
    more = draw(3, 1)
    found_next = layer(more, context(cache))
    for row in range(3):
        alone = torch.cat((x[row, valid[row]], more[row]))[None]
        torch.testing.assert_close(found[row, valid[row]], layer(alone)[0, :-1], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(found_next[row], layer(alone)[0, -1:], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_padding_and_other_rows_hold_does_not_change_a_bit(dtype: torch.dtype) -> None:
    layer, x = build(dtype), draw(2, 9, dtype=dtype)
    valid = torch.tensor([[0, 0, 1, 1, 0, 1, 1, 1, 0], [1] * 9], dtype=torch.bool)
    other = x.clone()
    other[0, ~valid[0]] = torch.nan
    other[1] = 3
    found, states = [], []
    for given in (x, other):
        cache = GrowingCache()
        found.append(layer(given, context(cache, valid))[0, valid[0]])
        states.append([tensor[0] for tensor in cache.state(0) or ()])
    assert torch.equal(*found) and found[0].isfinite().all()
    assert all(torch.equal(one, two) for one, two in zip(*states, strict=True))
    assert len(states[0]) == 4


def test_padding_taken_for_tokens_would_show() -> None:
    """The tests above can fail."""
    layer, x = build(), draw(1, 6)
    valid = torch.tensor([[1, 1, 0, 1, 1, 1]], dtype=torch.bool)
    right, wrong = layer(x, context(None, valid)), layer(x)
    assert (right - wrong)[0, 3:].abs().max() > 1e-2 * right.abs().max()


def test_half_precision_keeps_its_memory_in_single() -> None:
    layer, x, cache = build(torch.bfloat16), draw(2, 30, dtype=torch.bfloat16), GrowingCache()
    found = torch.cat([layer(piece, context(cache)) for piece in x.split([20] + [1] * 10, dim=1)], dim=1)
    kept = [tensor.dtype for tensor in cache.state(0) or ()]
    assert kept == [torch.bfloat16] * 3 + [torch.float32]
    expected = build()(x.double())
    assert found.dtype == torch.bfloat16
    assert (found - expected).abs().max() <= 4 * torch.finfo(torch.bfloat16).eps * expected.abs().max()


def numbers(layer: KimiDeltaAttention, x: Tensor, cache: KeyValueCache) -> int:
    with Work() as work:
        layer(x, context(cache))
    return work.numbers


def test_decoding_costs_the_same_after_any_number_of_tokens() -> None:
    layer, costs, sizes = build(), [], []
    for before in (1, 10, 300):
        cache = GrowingCache()
        layer(draw(1, before), context(cache))
        costs.append(numbers(layer, draw(1, 1), cache))
        sizes.append([tensor.untyped_storage().nbytes() for tensor in cache.state(0) or ()])
    assert costs[0] == costs[1] == costs[2] > 0
    assert sizes[0] == sizes[1] == sizes[2] == [8 * 3 * HEADS * HEAD_DIM] * 3 + [8 * HEADS * HEAD_DIM**2]


def test_a_static_cache_keeps_its_memory_in_place() -> None:
    layer, cache = build(), StaticCache(1)
    places = []
    for x in draw(1, 9).split([5, 1, 3], dim=1):
        layer(x, context(cache))
        places.append([tensor.data_ptr() for tensor in cache.state(0) or ()])
    assert places[0] == places[1] == places[2]


def test_a_cache_for_keys_and_values_alone_is_refused() -> None:
    class Keys:
        def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int) -> tuple[Tensor, Tensor]:
            return key_states, value_states

    with pytest.raises(InputError, match="the cache is a Keys, which has keys and values alone"):
        build()(draw(1, 2), context(Keys()))


@pytest.mark.parametrize("place", range(3))
def test_sizes_below_one_are_refused(place: int) -> None:
    sizes = [WIDTH, HEADS, HEAD_DIM]
    sizes[place] = 0
    with pytest.raises(InputError, match=f"{('width', 'heads', 'head_dim')[place]} is 0"):
        KimiDeltaAttention(*sizes)
    with pytest.raises(InputError, match="kernel of a convolution is 0"):
        KimiDeltaAttention(WIDTH, HEADS, HEAD_DIM, kernel=0)


@pytest.mark.parametrize(("kernel", "tokens"), list(itertools.product([1, 2, 6], [1, 3, 9])))
def test_kernels_longer_and_shorter_than_the_text(kernel: int, tokens: int) -> None:
    layer, x, cache = build(kernel=kernel), draw(1, tokens + 4), GrowingCache()
    outputs = [layer(piece, context(cache)) for piece in x.split([tokens, 4], dim=1)]
    torch.testing.assert_close(torch.cat(outputs, 1), layer(x), rtol=1e-12, atol=1e-12)
