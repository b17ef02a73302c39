"""Kimi Delta Attention against the layer of `transformers`, with its weights, whole and token by token."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.models.kimi_linear.configuration_kimi_linear import KimiLinearConfig
from transformers.models.kimi_linear.modeling_kimi_linear import KimiLinearDeltaAttention

from attention_residuals.inference import GrowingCache
from attention_residuals.nn import Context, KimiDeltaAttention, rotation

WIDTH, HEADS, HEAD_DIM, EPS = 24, 3, 8, 1e-5
ALLOWED = 64 * torch.finfo(torch.float32).eps
"""Both sum up over chunks of 64 tokens in float32, in orders of their own."""


def config() -> KimiLinearConfig:
    return KimiLinearConfig(  # pyright: ignore
        hidden_size=WIDTH,
        num_hidden_layers=2,
        linear_num_heads=HEADS,
        linear_head_dim=HEAD_DIM,
        rms_norm_eps=EPS,
        vocab_size=10,
        layer_types=["linear_attention", "full_attention"],
    )


def pair() -> tuple[KimiDeltaAttention, Any]:
    """Ours and theirs with the same weights, all of them drawn."""
    torch.manual_seed(0)
    theirs: Any = KimiLinearDeltaAttention(config(), 0).requires_grad_(False)
    ours = KimiDeltaAttention(WIDTH, HEADS, HEAD_DIM, norm_eps=EPS).requires_grad_(False)
    theirs.o_norm.weight.copy_(1 + torch.randn(HEAD_DIM) / 4)
    theirs.forget_gate.A_log.copy_(ours.decay.A_log.view(1, 1, -1, 1))
    theirs.forget_gate.dt_bias.copy_(ours.decay.dt_bias)
    convolutions = zip("qkv", theirs.conv1d.weight.chunk(3), strict=True)
    published = theirs.state_dict() | {f"{name}_conv1d.weight": weight for name, weight in convolutions}
    names = {
        **{f"{word}.weight": f"{word[0]}_proj.weight" for word in ("query", "key", "value", "beta")},
        **{f"{word}_convolution.weight": f"{word[0]}_conv1d.weight" for word in ("query", "key", "value")},
        "decay.down.weight": "forget_gate.f_a_proj.weight",
        "decay.up.weight": "forget_gate.f_b_proj.weight",
        "decay.A_log": "forget_gate.A_log",
        "decay.dt_bias": "forget_gate.dt_bias",
        "gate_down.weight": "g_a_proj.weight",
        "gate_up.weight": "g_b_proj.weight",
        "output_norm.weight": "o_norm.weight",
        "output.weight": "o_proj.weight",
    }
    assert {*names.values(), "conv1d.weight"} == published.keys()
    ours.load_state_dict({name: published[their].view(ours.get_parameter(name).shape) for name, their in names.items()})
    return ours, theirs


def draw(tokens: int) -> Tensor:
    return torch.randn(2, tokens, WIDTH, generator=torch.Generator().manual_seed(1))


def context(cache: GrowingCache | None = None, valid: Tensor | None = None) -> Context:
    return Context(rotation(torch.arange(1), 2, 1.0, torch.float32), cache=cache, valid=valid)


def assert_same(ours: Tensor, theirs: Tensor) -> None:
    assert ours.shape == theirs.shape
    assert (ours - theirs).abs().max() <= ALLOWED * theirs.abs().max()


@pytest.mark.parametrize("tokens", [1, 5, 64, 130])
def test_the_same_outputs(tokens: int) -> None:
    ours, theirs = pair()
    assert_same(ours(draw(tokens)), theirs(draw(tokens)))


def test_the_same_gradients() -> None:
    ours, theirs = pair()
    gradients = []
    for layer in (ours, theirs):
        x = draw(70).requires_grad_()
        layer.requires_grad_(True)(x).sin().sum().backward()
        gradients.append(x.grad)
    assert_same(*gradients)
    assert ours.decay.A_log.grad is not None and ours.decay.dt_bias.grad is not None
    assert_same(ours.decay.A_log.grad, theirs.forget_gate.A_log.grad.flatten())
    assert_same(ours.decay.dt_bias.grad, theirs.forget_gate.dt_bias.grad)


def test_the_same_outputs_and_states_token_by_token() -> None:
    ours, theirs = pair()
    mine, cache = GrowingCache(), DynamicCache(config=config())
    for piece in draw(20).split([7, 1, 1, 9, 1, 1], dim=1):
        assert_same(ours(piece, context(mine)), theirs(piece, cache=cache))
    state = mine.state(0)
    assert state is not None
    assert_same(state[3], cache.get_recurrent_state(0))  # pyright: ignore
    assert_same(torch.cat(state[:3], dim=-1), cache.get_conv_state(0)[..., -3:].mT)  # pyright: ignore


def test_the_same_outputs_behind_padding_on_the_left() -> None:
    ours, theirs = pair()
    valid = torch.ones(2, 12, dtype=torch.bool)
    valid[0, :5] = False
    found, expected = ours(draw(12), context(valid=valid)), theirs(draw(12), attention_mask=valid)
    assert_same(found[valid], expected[valid])
