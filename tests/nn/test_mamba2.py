"""Mamba-2 against a straight line per token, cut anywhere, and with padding anywhere."""

import pytest
import torch
from torch import Tensor

from attention_residuals.errors import InputError
from attention_residuals.inference import GrowingCache, StaticCache
from attention_residuals.models import StateSpace
from attention_residuals.nn import Context, KeyValueCache, Mamba2

from .deltas import Work

WIDTH, HEADS, HEAD_DIM, STATE, GROUPS = 12, 4, 5, 3, 2


def build(dtype: torch.dtype = torch.float64, **options: int) -> Mamba2:
    torch.manual_seed(0)
    layer = Mamba2(WIDTH, HEADS, HEAD_DIM, STATE, groups=GROUPS, **options).to(dtype).requires_grad_(False)
    assert layer.convolution.bias is not None
    for parameter in (layer.convolution.bias, layer.decay.D, layer.output_norm.weight):
        parameter.normal_()
    return layer


def draw(*sizes: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*sizes, WIDTH, dtype=dtype, generator=torch.Generator().manual_seed(1))


def context(cache: KeyValueCache | None, valid: Tensor | None = None) -> Context:
    return Context(None, cache=cache, valid=valid)


def straight_line(layer: Mamba2, x: Tensor) -> Tensor:
    """One sequence `[T, width]`, every token and head by itself, from the published formulas."""
    assert layer.convolution.bias is not None
    inputs = torch.cat([x @ one.weight.T for one in (layer.value, layer.key, layer.query)], dim=-1)
    windows = torch.cat((inputs.new_zeros(3, inputs.shape[1]), inputs)).unfold(0, 4, 1)
    total = (windows * layer.convolution.weight[:, 0]).sum(-1) + layer.convolution.bias
    mixed = total * torch.sigmoid(total)
    features, shared = HEADS * HEAD_DIM, GROUPS * STATE
    read = torch.empty(len(x), features, dtype=x.dtype)
    for head in range(HEADS):
        part, group = slice(head * HEAD_DIM, (head + 1) * HEAD_DIM), head // (HEADS // GROUPS)
        memory = x.new_zeros(HEAD_DIM, STATE)
        for t, token in enumerate(x):
            value = mixed[t, part]
            key = mixed[t, features + group * STATE :][:STATE]
            query = mixed[t, features + shared + group * STATE :][:STATE]
            step = torch.log(1 + torch.exp(layer.step.weight[head] @ token + layer.decay.dt_bias[head]))
            memory = torch.exp(-torch.exp(layer.decay.A_log[head]) * step) * memory + step * torch.outer(value, key)
            read[t, part] = memory @ query + layer.decay.D[head] * value
    gate = x @ layer.gate.weight.T
    parts = (read * gate * torch.sigmoid(gate)).unflatten(-1, (GROUPS, -1))
    normed = (parts / (parts.square().mean(-1, keepdim=True) + 1e-6).sqrt()).flatten(1)
    return (normed * layer.output_norm.weight) @ layer.output.weight.T


@pytest.mark.parametrize("tokens", [1, 3, 70])
def test_equals_the_straight_line(tokens: int) -> None:
    layer, x = build(), draw(2, tokens)
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


PATTERN = [[0, 0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0, 0, 0], [1, 0, 1, 1, 0, 0, 1, 1], [1] * 8]


@pytest.mark.parametrize("cuts", [[8], [3, 5], [1] * 8])
def test_padding_anywhere_leaves_no_trace(cuts: list[int]) -> None:
    layer, x, cache, more = build(), draw(4, 8), GrowingCache(), draw(4, 1)
    valid = torch.tensor(PATTERN, dtype=torch.bool)
    x[~valid] = torch.nan
    pieces = zip(x.split(cuts, dim=1), valid.split(cuts, dim=1), strict=True)
    found = torch.cat([layer(piece, context(cache, here)) for piece, here in pieces], dim=1)
    found_next = layer(more, context(cache))
    for row in range(4):
        alone = straight_line(layer, torch.cat((x[row, valid[row]], more[row])))
        torch.testing.assert_close(found[row, valid[row]], alone[:-1], rtol=1e-11, atol=1e-11)
        torch.testing.assert_close(found_next[row], alone[-1:], rtol=1e-11, atol=1e-11)


def test_padding_taken_for_tokens_would_show() -> None:
    """The test above can fail."""
    layer, x = build(), draw(1, 6)
    valid = torch.tensor([[1, 1, 0, 1, 1, 1]], dtype=torch.bool)
    right, wrong = layer(x, context(None, valid)), layer(x)
    assert (right - wrong)[0, 3:].abs().max() > 1e-2 * right.abs().max()


def test_half_precision_keeps_its_memory_in_single() -> None:
    layer, x, cache = build(torch.bfloat16), draw(2, 30, dtype=torch.bfloat16), GrowingCache()
    found = torch.cat([layer(piece, context(cache)) for piece in x.split([20] + [1] * 10, dim=1)], dim=1)
    assert [tensor.dtype for tensor in cache.state(0) or ()] == [torch.bfloat16, torch.float32]
    expected = build(torch.bfloat16).double()(x.double())
    assert found.dtype == torch.bfloat16
    assert (found - expected).abs().max() <= 8 * torch.finfo(torch.bfloat16).eps * expected.abs().max()


def test_decoding_costs_the_same_after_any_number_of_tokens() -> None:
    layer, costs = build(), []
    for before in (1, 300):
        cache = GrowingCache()
        layer(draw(1, before), context(cache))
        with Work() as work:
            layer(draw(1, 1), context(cache))
        costs.append((work.numbers, [tensor.untyped_storage().nbytes() for tensor in cache.state(0) or ()]))
    assert costs[0] == costs[1]
    assert costs[0][1] == [8 * 3 * (HEADS * HEAD_DIM + 2 * GROUPS * STATE), 8 * HEADS * HEAD_DIM * STATE]


@pytest.mark.parametrize("place", range(4))
def test_sizes_below_one_are_refused(place: int) -> None:
    sizes = [WIDTH, HEADS, HEAD_DIM, STATE]
    sizes[place] = 0
    name = ("width", "heads", "head_dim", "state_dim")[place]
    with pytest.raises(InputError, match=f"^{name} is 0"):
        Mamba2(*sizes)
    if place:
        with pytest.raises(InputError, match=f"^{name} is 0"):
            StateSpace(*sizes[1:])


def test_groups_that_do_not_divide_the_heads_are_refused() -> None:
    for make in (lambda: StateSpace(4, 5, 3, groups=3), lambda: Mamba2(8, 4, 5, 3, groups=3)):
        with pytest.raises(InputError, match="4 heads cannot be 3 groups of equal size"):
            make()
    with pytest.raises(InputError, match="groups is 0"):
        StateSpace(4, 5, 3, groups=0)
    with pytest.raises(InputError, match="kernel is 0"):
        StateSpace(4, 5, 3, kernel=0)
