"""Mamba-2 against the layer of transformers: weights carried over, outputs, and a text that goes on."""

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, Mamba2Config
from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer

from attention_residuals.inference import GrowingCache
from attention_residuals.nn import Context, Mamba2

WIDTH, HEADS, HEAD_DIM, STATE, GROUPS = 16, 4, 8, 6, 2
CONFIG = Mamba2Config(
    hidden_size=WIDTH,
    num_heads=HEADS,
    head_dim=HEAD_DIM,
    expand=2,
    state_size=STATE,
    n_groups=GROUPS,
    chunk_size=8,
    layer_norm_epsilon=1e-6,
    num_hidden_layers=1,
    vocab_size=8,
)


def both() -> tuple[Mamba2Mixer, Mamba2]:
    """Their layer with random weights, and ours with the same."""
    torch.manual_seed(0)
    theirs = Mamba2Mixer(CONFIG, layer_idx=0).eval().requires_grad_(False)
    for parameter in theirs.parameters():
        parameter.normal_(std=0.5)
    ours = Mamba2(WIDTH, HEADS, HEAD_DIM, STATE, groups=GROUPS).requires_grad_(False)
    features, shared = HEADS * HEAD_DIM, GROUPS * STATE
    assert ours.convolution.bias is not None and theirs.conv1d.bias is not None
    parts = theirs.in_proj.weight.split((features, features, shared, shared, HEADS))
    for name, part in zip(("gate", "value", "key", "query", "step"), parts, strict=True):
        ours.get_parameter(f"{name}.weight").copy_(part)
    ours.convolution.weight.copy_(theirs.conv1d.weight)
    ours.convolution.bias.copy_(theirs.conv1d.bias)
    for name in ("A_log", "dt_bias", "D"):
        ours.decay.get_parameter(name).copy_(theirs.get_parameter(name))
    ours.output_norm.weight.copy_(theirs.norm.weight)
    ours.output.weight.copy_(theirs.out_proj.weight)
    return theirs, ours


def assert_same(found: Tensor, expected: Tensor) -> None:
    """Theirs is in float32 throughout, and takes decays as differences of running sums."""
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.parametrize("tokens", [1, 7, 29])
def test_outputs_are_theirs(tokens: int) -> None:
    theirs, ours = both()
    x = torch.randn(2, tokens, WIDTH)
    assert_same(ours(x), theirs(x))


def test_a_text_goes_on_as_theirs() -> None:
    theirs, ours = both()
    x, cache, their_cache = torch.randn(2, 15, WIDTH), GrowingCache(), DynamicCache(config=CONFIG)
    for piece in x.split([11, 1, 1, 1, 1], dim=1):
        assert_same(ours(piece, Context(None, cache=cache)), theirs(piece, cache=their_cache))
