"""Whole models against the `transformer` of the installed flash-linear-attention: its checkpoints here, ours there.

Its kernels need a GPU. On a CPU its modules and its loop run with its own references in their place: `naive_attnres`,
`rms_norm_ref`, `rotary_embedding_ref`; softmax attention (flash-attn) and SwiGLU have none and are torch's here.
"""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from attention_residuals import Additive, AttnRes, Decoder, Sublayers, build_decoder
from attention_residuals.dialects import FLA, load, save
from attention_residuals.models import DecoderConfig

from .fla_support import EPS, fla_config
from .support import assert_same_bits, read


def imported(name: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(f"fla.{name}", exc_type=ImportError)


modeling, attention_layer, mlp, rotary, norms, attnres = (
    imported(name)
    for name in (
        "models.transformer.modeling_transformer",
        "layers.attn",
        "modules.mlp",
        "modules.rotary.ops",
        "modules.norm.layernorm",
        "ops.attnres",
    )
)

LAYERS, VOCABULARY = 5, 11
TOKENS = torch.randint(VOCABULARY, (2, 6), generator=torch.Generator().manual_seed(1))
CASES = [(None, False), (1, False), (4, False), (4, True)]


def attention(query: Tensor, key: Tensor, value: Tensor, causal: bool, window_size: tuple[int, int]) -> Tensor:
    assert causal and window_size == (-1, -1)
    query, key, value = (heads.transpose(1, 2) for heads in (query, key, value))
    return F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True).transpose(1, 2)


@pytest.fixture(autouse=True)
def on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The package's own references in the place of its kernels."""

    def turn(x: Tensor, cos: Tensor, sin: Tensor, **_: Any) -> Tensor:
        return rotary.rotary_embedding_ref(x, cos[: x.shape[1]], sin[: x.shape[1]])

    def norm(self: Any, x: Tensor) -> Tensor:
        return norms.rms_norm_ref(x, self.weight, self.bias, eps=self.eps)

    monkeypatch.setattr(modeling, "fused_attnres", attnres.naive_attnres)
    monkeypatch.setattr(attention_layer, "flash_attn_func", attention)
    monkeypatch.setattr(mlp, "swiglu", lambda gate, up: F.silu(gate) * up)
    monkeypatch.setattr(rotary, "rotary_embedding", turn)
    monkeypatch.setattr(norms.RMSNorm, "forward", norm)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def their_model(block: int | None, tied: bool) -> Any:
    """With other numbers everywhere, those of the depth queries among them."""
    config = {**fla_config(LAYERS, block), "fuse_norm": False, "fuse_swiglu": False, "tie_word_embeddings": tied}
    model = modeling.TransformerForCausalLM(modeling.TransformerConfig(**config))
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, value in model.named_parameters():
            drawn = torch.randn(value.shape, generator=generator)
            value.copy_(
                1 + drawn / 4 if "norm" in name else drawn if "res_" in name else drawn * value.shape[-1] ** -0.5
            )
    return model.eval().requires_grad_(False)


def assert_same_logits(ours: Decoder, theirs: Any) -> None:
    found, expected = ours(TOKENS), theirs(TOKENS, use_cache=False).logits
    # Each of ten sublayers adds the rounding of its sums, of up to 64 terms one after another.
    allowed = 64 * 2 * LAYERS * torch.finfo(torch.float32).eps
    assert (found - expected).abs().max() <= allowed * expected.abs().max()


@pytest.mark.parametrize(("block", "tied"), CASES)
def test_their_checkpoint_here(block: int | None, tied: bool, tmp_path: Path) -> None:
    theirs = their_model(block, tied)
    theirs.save_pretrained(tmp_path / "theirs")
    ours = load(tmp_path / "theirs").requires_grad_(False)
    assert ours.config.residual == (Additive() if block is None else AttnRes(Sublayers(block), key_eps=EPS))
    assert_same_logits(ours, theirs)
    if block is not None:
        with torch.no_grad():  # the queries matter: without them the logits are others
            theirs.model.layers[1].mlp_res_proj.weight.zero_()
        assert (ours(TOKENS) - theirs(TOKENS, use_cache=False).logits).abs().max() > 1e-3


@pytest.mark.parametrize(("block", "tied"), CASES)
def test_our_checkpoint_there(block: int | None, tied: bool, tmp_path: Path) -> None:
    residual = Additive() if block is None else AttnRes(Sublayers(block), key_eps=EPS)
    config = DecoderConfig(
        VOCABULARY, LAYERS, 12, 3, 1, 4, 7, residual, norm_eps=EPS, qk_norm=True, tied_embeddings=tied
    )
    ours = build_decoder(config, seed=0).requires_grad_(False)
    for name, value in ours.state_dict().items():
        if "queries" in name:
            value.normal_(generator=torch.Generator().manual_seed(len(name)))
    save(ours, tmp_path / "ours", FLA)
    plain = modeling.TransformerConfig.from_pretrained(tmp_path / "ours", fuse_norm=False, fuse_swiglu=False)
    pretrained = modeling.TransformerForCausalLM.from_pretrained
    theirs, info = pretrained(tmp_path / "ours", config=plain, output_loading_info=True)
    assert not any(info.values())
    assert_same_logits(ours, theirs.eval().requires_grad_(False))
    theirs.save_pretrained(tmp_path / "again")
    expected = {name: t for name, t in read(tmp_path / "ours").items() if not (tied and name == "lm_head.weight")}
    assert_same_bits(read(tmp_path / "again"), expected)
