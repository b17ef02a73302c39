"""Depth attention alone: names and units of every dialect, chains through all of them, and what is refused."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from attention_residuals import Additive, AttnRes, Decoder, InputError, Layers, Sublayers, build_decoder
from attention_residuals.dialects import DEPTH_DIALECTS, DepthPart, depth_of, load, load_depth, save_depth
from attention_residuals.models import DecoderConfig
from attention_residuals.streams import Blocks, ReadScale, Residual

from .support import assert_same_bits, read

WIDTH = 4
pytestmark = pytest.mark.filterwarnings("ignore:a block of .* is longer than the network")
TWO_WAY = ["kimi", "fla", "torchtitan", "megatron", "ours"]


def decoder(layers: int, residual: Residual, dtype: torch.dtype = torch.float32) -> Decoder:
    config = DecoderConfig(5, layers, WIDTH, 1, 1, WIDTH, 3, residual)
    model = build_decoder(config, seed=0, dtype=dtype).requires_grad_(False)
    generator = torch.Generator().manual_seed(1)
    for name, value in model.state_dict().items():
        if "queries" in name or "key_norms" in name:
            value.copy_(torch.randn(value.shape, generator=generator))
    return model


def part(layers: int, block: AttnRes, dtype: torch.dtype = torch.float32) -> DepthPart:
    return depth_of(decoder(layers, block, dtype))


def config(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())


NAMES = {
    "kimi": [
        *(f"model.layers.{i}.{kind}_res_{what}.weight" for i in (0, 1) for kind in ("self_attention", "mlp")
          for what in ("norm", "proj")),
        "model.output_attn_res_norm.weight", "model.output_attn_res_proj.weight",
    ],
    "fla": [
        *(f"model.layers.{i}.{kind}_res_{what}.weight" for i in (0, 1) for kind in ("attn", "mlp")
          for what in ("norm", "proj")),
        "model.res_norm.weight", "model.res_proj.weight",
    ],
    "torchtitan": [
        "layers.0.ffn_res_norm.weight", "layers.0.ffn_res_proj.weight",
        "layers.1.attention_res_norm.weight", "layers.1.attention_res_proj.weight",
        "layers.1.ffn_res_norm.weight", "layers.1.ffn_res_proj.weight",
        "output_res_norm.weight", "output_res_proj.weight",
    ],
    "megatron": [
        *(f"decoder.layers.{i}.{kind}_attn_res.{what}" for i in (0, 1) for kind in ("self_attention", "mlp")
          for what in ("pseudo_query", "key_norm_weight")),
        "decoder.final_attn_res.pseudo_query", "decoder.final_attn_res.key_norm_weight",
    ],
    "llama.cpp": [
        *(f"blk.{i}.{kind}_res_score.weight" for i in (0, 1) for kind in ("attn", "ffn")), "output_res_score.weight",
    ],
    "ours": [f"stream.{what}.{place}" for place in ("1", "2", "3", "output") for what in ("queries", "key_norms")],
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_names_and_shapes_are_those_of_the_system(name: str, tmp_path: Path) -> None:
    save_depth(part(2, AttnRes(Layers(1))), tmp_path / "d", DEPTH_DIALECTS[name])
    found = read(tmp_path / "d")
    assert sorted(found) == sorted(NAMES[name])
    rows = name in ("kimi", "fla", "torchtitan")
    for key, tensor in found.items():
        assert tensor.shape == ((1, WIDTH) if rows and "proj" in key else (WIDTH,)), key


SIZES = {"kimi": 12, "fla": 24, "torchtitan": 12, "megatron": 12, "ours": 24}
KEYS = {
    "kimi": "attn_res_block_size",
    "fla": "attnres_block_size",
    "torchtitan": "attn_res_block_size",
    "megatron": "attn_res_block_layers",
    "ours": "block_sublayers",
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("order", [TWO_WAY, TWO_WAY[::-1], ["fla", "megatron", "kimi", "ours", "torchtitan"]])
def test_a_chain_through_all_keeps_every_bit_and_translates_the_unit(
    order: list[str], dtype: torch.dtype, tmp_path: Path
) -> None:
    first = now = part(13, AttnRes(Layers(12), key_eps=1e-5), dtype)
    for name in order:
        save_depth(now, tmp_path / name, DEPTH_DIALECTS[name], shard_bytes=100)
        plain = config(tmp_path / name)
        assert plain[KEYS[name]] == SIZES[name] and plain["dialect"] == name
        assert len(read(tmp_path / name)) == 4 * 13 + (0 if name in ("torchtitan", "ours") else 2)
        now = load_depth(tmp_path / name)
        assert (now.layers, now.width, now.residual.key_eps) == (13, WIDTH, 1e-5)
        assert now.residual.block.in_sublayers(26) == 24
        assert_same_bits(now.tensors, first.tensors)
    assert (tmp_path / order[0] / "model.safetensors.index.json").exists()


def test_blocks_of_every_kind_in_the_two_units(tmp_path: Path) -> None:
    """3 blocks of 7 layers are 5 sublayers each, which only we have words for."""
    cases = {
        Sublayers(1): {"fla": 1, "ours": 1},
        Sublayers(3): {"ours": 3},
        Blocks(3): {"ours": 5},
        Layers(2): {"fla": 4, "ours": 4, "kimi": 2, "megatron": 2, "torchtitan": 2, "llama.cpp": 2},
        Layers(10): {"fla": 20, "ours": 20, "kimi": 10, "megatron": 10, "torchtitan": 10, "llama.cpp": 10},
    }
    for n, (block, sizes) in enumerate(cases.items()):
        one = part(7, AttnRes(block))
        for name, dialect in DEPTH_DIALECTS.items():
            folder = tmp_path / str(n) / name
            if name in sizes:
                save_depth(one, folder, dialect)
                assert config(folder)[dialect.block.name] == sizes[name]
            else:
                with pytest.raises(InputError, match=r"a block has \d sublayers"):
                    save_depth(one, folder, dialect)
                assert not folder.exists()


def test_folded_vectors_are_products_and_stay_so(tmp_path: Path) -> None:
    one = part(3, AttnRes(Layers(2), key_eps=1e-5), torch.bfloat16)
    save_depth(one, tmp_path / "gguf", DEPTH_DIALECTS["llama.cpp"])
    found, queries, norms = read(tmp_path / "gguf"), "stream.queries.", "stream.key_norms."
    places = {"blk.0.ffn": "1", "blk.1.attn": "2", "blk.2.ffn": "5", "output": "output"}
    for theirs, ours in places.items():
        score = found[f"{theirs}_res_score.weight"]
        assert score.dtype == torch.float32
        assert torch.equal(score.double(), one.tensors[queries + ours].double() * one.tensors[norms + ours].double())
    assert not found["blk.0.attn_res_score.weight"].any()
    plain = config(tmp_path / "gguf")
    assert plain["general.architecture"] == "kimi-k3" and plain["kimi-k3.block_count"] == 3
    assert plain["kimi-k3.embedding_length"] == WIDTH and plain["kimi-k3.attn_res.block_size"] == 2
    assert plain["kimi-k3.attention.layer_norm_rms_epsilon"] == 1e-5
    with pytest.raises(
        InputError, match=r"cannot be read back: its vectors are products .* the factors are gone; read"
    ):
        load_depth(tmp_path / "gguf")


Tensors = dict[str, Tensor]


def written(folder: Path, name: str, change: Callable[[Tensors], Tensors], **keys: Any) -> Path:
    save_depth(part(5, AttnRes(Layers(2))), folder, DEPTH_DIALECTS[name])
    tensors = read(folder)
    (folder / "model.safetensors").unlink()
    save_file(change(tensors), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config(folder) | keys))
    return folder


def same(tensors: Tensors) -> Tensors:
    return tensors


def each(one: Callable[[str, Tensor], Tensor]) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {name: one(name, tensor) for name, tensor in tensors.items()}


def half(tensors: Tensors) -> Tensors:
    return {name: tensor for name, tensor in tensors.items() if "layers.4" not in name and "output" not in name}


def renamed(old: str, new: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {name.replace(old, new): tensor for name, tensor in tensors.items()}


@pytest.mark.parametrize(
    ("name", "change", "keys", "message"),
    [
        ("torchtitan", half, {}, r"lacks output_res_norm\.weight, .*layers\.4\.\w+\.weight and 3 more"),
        (
            "torchtitan",
            renamed("layers.2.ffn", "layers.9.ffn"),
            {},
            r"lacks layers\.2\.ffn.*, has unexpected layers\.9",
        ),
        (
            "torchtitan",
            each(lambda n, t: t[0] if "2.ffn_res_proj" in n else t),
            {},
            r"differs in .*\(\[4\], .*\[1, 4\]",
        ),
        ("megatron", each(lambda n, t: t[:3] if "final" in n else t), {}, r"final_attn_res\.\w+ \(\[3\], .* \[4\]\), "),
        ("megatron", each(lambda n, t: t * torch.nan if "2.mlp" in n else t), {}, r"NaN or infinite .*layers\.2\.mlp"),
        ("fla", each(lambda n, t: t.to(torch.int8) if n == "model.res_proj.weight" else t), {}, "a quantised weight"),
        ("kimi", lambda t: {k: v for k, v in t.items() if "0.self" not in k}, {}, r"lacks .*layers\.0\.self_attention"),
        ("torchtitan", same, {"attn_res_block_size": None}, "no attn_res_block_size: without a block size they would"),
        (
            "torchtitan",
            same,
            {"attn_res_block_size": 0},
            "attn_res_block_size is 0; it must be a whole number of layers",
        ),
        ("megatron", same, {"attn_res_block_layers": None}, "has depth tensors and no attn_res_block_layers"),
        ("megatron", same, {"attn_res_block_layers": 11}, "is 11, more than the 10 sublayers there are"),
        (
            "megatron",
            same,
            {"attn_res_block_size": 2},
            "attn_res_block_size is of another dialect, where it counts layers",
        ),
        ("megatron", same, {"is_hybrid_model": True}, "is_hybrid_model is True: in hybrid stacks .* counts entries"),
        ("fla", same, {"attnres_block_size": 3}, "is 3, and it counts sublayers, .* must be 1, which is Full, or even"),
        ("fla", same, {"attn_res_block_size": 2}, "counts layers; under fla names the key is attnres_block_size, and"),
        (
            "kimi",
            same,
            {"n_blocks": 3},
            "n_blocks is of another dialect, where it counts blocks, .* balanced ones, which",
        ),
        (
            "kimi",
            same,
            {"hidden_size": 5},
            r"differs in model\.output_attn_res_norm\.weight \(\[4\], by the config \[5\]",
        ),
        ("kimi", same, {"num_hidden_layers": 6}, r"lacks model\.layers\.5\.self_attention_res_norm"),
        ("kimi", same, {"dialect": "torchtitan"}, "says that it is in the dialect torchtitan, .* have names of kimi"),
        ("kimi", same, {"dialect": "nemo"}, "in the dialect 'nemo', which is not known; there are kimi, fla, ours"),
        ("kimi", same, {"format": 2}, "format is 2, this version reads 1"),
        ("kimi", same, {"kind": None}, "kind is None, and depth tensors alone are of kind attention_residuals_depth"),
        ("ours", renamed(".3", ".11"), {}, r"lacks stream\.key_norms\.3, stream\.queries\.3, has unexpected stream\.k"),
    ],
)
def test_what_does_not_fit_is_named(
    name: str, change: Callable[[Tensors], Tensors], keys: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = written(tmp_path / "d", name, change, **keys)
    with pytest.raises(InputError, match=message) as caught:
        load_depth(folder)
    assert "\n" not in str(caught.value)


def test_a_shard_that_is_gone_and_names_behind_wrappers(tmp_path: Path) -> None:
    one = part(5, AttnRes(Layers(2)))
    folder = written(tmp_path / "wrapped", "megatron", renamed("decoder.", "module.module.decoder."))
    assert_same_bits(load_depth(folder).tensors, one.tensors)
    folder = written(tmp_path / "outer", "kimi", renamed("model.", "language_model.model."))
    assert_same_bits(load_depth(folder).tensors, one.tensors)
    save_depth(one, tmp_path / "many", DEPTH_DIALECTS["torchtitan"], shard_bytes=100)
    sorted((tmp_path / "many").glob("model-*"))[1].unlink()
    with pytest.raises(InputError, match="is not whole: model-00002"):
        load_depth(tmp_path / "many")


def test_another_dialect_than_the_wanted_one_and_no_depth_at_all(tmp_path: Path) -> None:
    save_depth(part(2, AttnRes(Layers(1))), tmp_path / "d", DEPTH_DIALECTS["megatron"])
    with pytest.raises(InputError, match="is in the dialect megatron, and fla was asked for"):
        load_depth(tmp_path / "d", DEPTH_DIALECTS["fla"])
    with pytest.raises(InputError, match="is of depth tensors alone, which are no model; read them with load_depth"):
        load(tmp_path / "d")
    with pytest.raises(InputError, match="the residual is Additive, which has no depth tensors"):
        depth_of(decoder(2, Additive()))
    variants: list[dict[str, Any]] = [{"scale": ReadScale.SUM}, {"output_read": False}, {"normed_sources": True}]
    for change in variants:
        with pytest.raises(InputError, match="know the method without variants"):
            save_depth(
                replace(part(2, AttnRes(Layers(1))), residual=AttnRes(Layers(1), **change)),
                tmp_path / "new",
                DEPTH_DIALECTS["torchtitan"],
            )
