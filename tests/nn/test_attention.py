"""Attention against a straight-line formula, and its bad input."""

import pytest
import torch
from torch import Tensor

from attention_residuals.errors import InputError
from attention_residuals.nn import Attention, Rotation, rotate, rotation
from attention_residuals.nn.attend import attend


def turns(tokens: int, head_dim: int, theta: float) -> Rotation:
    return rotation(torch.arange(tokens), head_dim, theta, torch.float64)


def straight_line(attention: Attention, x: Tensor, heads: int, kv_heads: int) -> Tensor:
    """Every head and every position by itself."""
    width = attention.head_dim
    by = turns(x.shape[1], width, attention.rope_theta)
    outputs = []
    for head in range(heads):
        shared = head // (heads // kv_heads)
        query = rotate((x @ attention.query.weight.T)[..., head * width : (head + 1) * width], by)
        key = rotate((x @ attention.key.weight.T)[..., shared * width : (shared + 1) * width], by)
        value = (x @ attention.value.weight.T)[..., shared * width : (shared + 1) * width]
        scores = query @ key.transpose(-1, -2) / width**0.5
        future = torch.ones_like(scores).triu(1).bool()
        outputs.append(scores.masked_fill(future, float("-inf")).softmax(-1) @ value)
    return torch.cat(outputs, -1) @ attention.output.weight.T


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (3, 1)])
def test_equals_the_straight_line(heads: int, kv_heads: int) -> None:
    torch.manual_seed(0)
    attention = Attention(12, heads, kv_heads, 6).double()
    x = torch.randn(2, 7, 12, dtype=torch.float64)
    torch.testing.assert_close(attention(x), straight_line(attention, x, heads, kv_heads), rtol=1e-12, atol=1e-12)


def test_no_position_sees_the_future() -> None:
    torch.manual_seed(0)
    attention = Attention(12, 4, 2, 6, qk_norm=True).double()
    x = torch.randn(1, 9, 12, dtype=torch.float64)
    changed = x.clone()
    changed[:, 5:] += 1
    assert torch.equal(attention(x)[:, :5], attention(changed)[:, :5])
    assert not torch.equal(attention(x)[:, 5:], attention(changed)[:, 5:])


def test_rotation_depends_on_distance_alone() -> None:
    torch.manual_seed(0)
    query, key = torch.randn(2, 8, dtype=torch.float64)
    by = turns(6, 8, 100.0)
    rotated_query, rotated_key = rotate(query.expand(6, 8), by), rotate(key.expand(6, 8), by)
    scores = rotated_query @ rotated_key.T
    for distance in range(5):
        along = scores.diagonal(-distance)
        torch.testing.assert_close(along, along[:1].expand_as(along), rtol=1e-12, atol=1e-12)
    assert (scores[0, 0] - scores[5, 0]).abs() > 1e-3


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match="4 query heads cannot share 3"):
        Attention(12, 4, 3, 6)
    with pytest.raises(InputError, match="head_dim is 5"):
        Attention(12, 4, 2, 5)


@pytest.mark.parametrize("entries", [1, 20, 2**20])
@pytest.mark.parametrize("masked", [False, True])
def test_later_tokens_look_at_all_before_them_in_pieces_of_any_size(
    entries: int, masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attention_residuals.nn.attend.MASK_ENTRIES", entries)
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, heads, 9, 6, dtype=torch.float64) for heads in (4, 2, 2))
    expected = attend(query, key, value, None)[:, :, 3:]
    mask = torch.ones(9, 9, dtype=torch.bool).tril()[None, None, 3:].expand(2, 1, 6, 9) if masked else None
    torch.testing.assert_close(attend(query[:, :, 3:], key, value, mask), expected, rtol=1e-12, atol=1e-12)
    last = None if mask is None else mask[:, :, -1:]
    torch.testing.assert_close(attend(query[:, :, 8:], key, value, last), expected[:, :, 5:], rtol=1e-12, atol=1e-12)
