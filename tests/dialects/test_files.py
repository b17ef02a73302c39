"""Files: bit for bit there and back, in one file or several, under wrapped names, with the types that they have."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from attention_residuals import AttnRes, Decoder, InputError, Layers, Sublayers, build_decoder
from attention_residuals.dialects import KIMI, OURS, load, load_kimi, save, save_kimi
from attention_residuals.dialects.names import Use
from attention_residuals.models import DecoderConfig, HybridConfig, kimi_linear, kimi_linear_48b

from .support import assert_same_bits, draw_tensors, kimi_config, read, write

LAYERS, BLOCK = 5, 2
DEAD = "model.layers.0.self_attention_res_"
TOKENS = torch.tensor([[1, 2, 3, 4, 5]])


@pytest.mark.parametrize("shard_bytes", [10**9, 3000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_there_and_back_to_the_last_bit(dtype: torch.dtype, shard_bytes: int, tmp_path: Path) -> None:
    tensors = draw_tensors(LAYERS, depth=True, dtype=dtype)
    tensors[DEAD + "proj.weight"].zero_()
    tensors[DEAD + "norm.weight"].fill_(1)
    source = write(tmp_path / "theirs", kimi_config(LAYERS, BLOCK), tensors)
    model = load_kimi(source)
    assert model.embedding.weight.dtype == dtype and model(TOKENS).isfinite().all()
    save_kimi(model, tmp_path / "ours", shard_bytes=shard_bytes)
    assert_same_bits(read(tmp_path / "ours"), tensors)
    again = load_kimi(str(tmp_path / "ours"))
    assert again.config == model.config
    assert_same_bits(again.state_dict(), model.state_dict())
    assert again.state_dict()["sublayers.3.router.bias"].dtype == torch.float32
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ours", "theirs"]


def test_shards_are_as_large_as_asked_and_listed(tmp_path: Path) -> None:
    tensors = draw_tensors(LAYERS, depth=True)
    save_kimi(
        load_kimi(write(tmp_path / "one", kimi_config(LAYERS, BLOCK), tensors)), tmp_path / "many", shard_bytes=3000
    )
    index = json.loads((tmp_path / "many" / "model.safetensors.index.json").read_text())
    files = sorted((tmp_path / "many").glob("model-*.safetensors"))
    assert len(files) > 5 and files[0].name == f"model-00001-of-{len(files):05}.safetensors"
    assert index["weight_map"].keys() == tensors.keys() and set(index["weight_map"].values()) == {f.name for f in files}
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in tensors.values())
    for file in files:
        header_bytes = int.from_bytes(file.read_bytes()[:8], "little")
        assert file.stat().st_size - 8 - header_bytes <= 3000
    assert not (tmp_path / "many" / "model.safetensors").exists()


def test_the_first_pair_is_read_by_nothing_and_written_as_the_identity(tmp_path: Path) -> None:
    tensors = draw_tensors(LAYERS, depth=True)
    model = load_kimi(write(tmp_path / "theirs", kimi_config(LAYERS, BLOCK), tensors))
    assert "stream.queries.0" not in model.state_dict()
    save_kimi(model, tmp_path / "ours")
    found = read(tmp_path / "ours")
    depth = {name for name in found if "_res_" in name}
    assert len(depth) == 4 * LAYERS + 2
    assert not found[DEAD + "proj.weight"].any() and (found[DEAD + "norm.weight"] == 1).all()
    changed = {name: tensor for name, tensor in tensors.items() if not name.startswith(DEAD)}
    assert_same_bits({name: found[name] for name in changed}, changed)


@pytest.mark.parametrize("prefix", ["language_model.", "_orig_mod.", "module.", "module._orig_mod.language_model."])
def test_wrapped_names_and_a_config_inside_another(prefix: str, tmp_path: Path) -> None:
    tensors = draw_tensors(LAYERS, depth=True)
    plain = load_kimi(write(tmp_path / "plain", kimi_config(LAYERS, BLOCK), tensors))
    wrapped = {prefix + name.replace("layers.1.", "layers.1._orig_mod."): tensor for name, tensor in tensors.items()}
    outer = {"model_type": "kimi_k3", "text_config": kimi_config(LAYERS, BLOCK)}
    model = load_kimi(write(tmp_path / "wrapped", outer, wrapped))
    assert model.config == plain.config
    assert_same_bits(model.state_dict(), plain.state_dict())


def test_the_type_that_is_asked_for(tmp_path: Path) -> None:
    source = write(tmp_path / "k", kimi_config(LAYERS, BLOCK), draw_tensors(LAYERS, depth=True))
    state = load_kimi(source, dtype=torch.bfloat16).state_dict()
    assert {name for name, tensor in state.items() if tensor.dtype != torch.bfloat16} == {
        f"sublayers.{2 * layer + 1}.router.bias" for layer in range(1, LAYERS)
    }
    with pytest.raises(InputError, match=r"dtype is torch\.int8; choose float64"):
        load_kimi(source, dtype=torch.int8)


def test_types_that_differ_from_tensor_to_tensor_stay(tmp_path: Path) -> None:
    tensors = draw_tensors(LAYERS, depth=True, dtype=torch.bfloat16)
    for name in tensors:
        if name.endswith(("dt_bias", "moe.gate.weight")):  # transformers keeps these in float32
            tensors[name] = tensors[name].float()
    model = load_kimi(write(tmp_path / "theirs", kimi_config(LAYERS, BLOCK), tensors))
    assert model(TOKENS).isfinite().all()
    save_kimi(model, tmp_path / "ours")
    found = read(tmp_path / "ours")
    assert {name: t.dtype for name, t in found.items()} == {name: t.dtype for name, t in tensors.items()}
    model.sublayers["4"].value.double()
    with pytest.raises(InputError, match="are one tensor there, and have 2 types"):
        save_kimi(model, tmp_path / "refused")


def test_tied_embeddings_stand_under_both_names(tmp_path: Path) -> None:
    tensors = draw_tensors(LAYERS, depth=True)
    del tensors["lm_head.weight"]
    config = kimi_config(LAYERS, BLOCK, tie_word_embeddings=True)
    model = load_kimi(write(tmp_path / "theirs", config, tensors))
    assert model.head is None
    save_kimi(model, tmp_path / "ours")
    assert torch.equal(read(tmp_path / "ours")["lm_head.weight"], tensors["model.embed_tokens.weight"])
    assert_same_bits(load_kimi(tmp_path / "ours").state_dict(), model.state_dict())
    head = {"lm_head.weight": tensors["model.embed_tokens.weight"] + 1}
    with pytest.raises(InputError, match=r"tied, and lm_head\.weight has other numbers"):
        load_kimi(write(tmp_path / "refused", config, tensors | head))


def fresh(config: HybridConfig | DecoderConfig) -> Decoder:
    return build_decoder(config, seed=0)


@pytest.mark.parametrize("residual", [AttnRes(Layers(2)), AttnRes(Sublayers(6), two_phase=False)])
def test_a_model_of_ours_there_and_back(residual: AttnRes, tmp_path: Path) -> None:
    model = fresh(kimi_linear(5, residual=residual))
    save_kimi(model, tmp_path / "kimi")
    config = json.loads((tmp_path / "kimi" / "config.json").read_text())
    assert config["attn_res_block_size"] == residual.block.in_sublayers(10) // 2
    back = load(tmp_path / "kimi")
    assert_same_bits(back.state_dict(), model.state_dict())
    assert back.config.residual == AttnRes(Layers(residual.block.in_sublayers(10) // 2))


@pytest.mark.parametrize("config", [kimi_linear(4), DecoderConfig.from_depth(2, residual=AttnRes())])
def test_our_own_names(config: HybridConfig | DecoderConfig, tmp_path: Path) -> None:
    model = fresh(config)
    save(model, tmp_path / "ours", OURS)
    back = load(tmp_path / "ours")
    assert back.config == config
    assert_same_bits(back.state_dict(), model.state_dict())
    with pytest.raises(InputError, match="Kimi names are read from kimi_linear, kimi_k3"):
        load(tmp_path / "ours", KIMI)


def test_the_paper_s_model_under_published_names() -> None:
    """Keys as published with the 48B; of its tensors none is written twice, and every one of ours is."""
    config = kimi_linear_48b()
    plain = KIMI.to_plain(config, "bfloat16")
    assert KIMI.from_plain(plain) == replace(config, residual=AttnRes(Layers(3), key_eps=1e-5))
    linear = plain["linear_attn_config"]
    assert linear["full_attn_layers"] == [4, 8, 12, 16, 20, 24, 27] and len(linear["kda_layers"]) == 20
    assert (plain["first_k_dense_replace"], plain["moe_layer_freq"], plain["num_experts"]) == (1, 1, 256)
    with torch.device("meta"):
        ours = Decoder(config).state_dict()
    rules = [rule for rule in KIMI.names.expand(config, ours) if rule.use is Use.NORMAL]
    theirs = [name for rule in rules for name in rule.theirs]
    assert len(set(theirs)) == len(theirs) and sum(map(KIMI.names.of_depth, theirs)) == 4 * 27 + 2
    assert sorted(name for rule in rules for name in rule.ours) == sorted(ours)


def test_files_cut_off_or_left_out_are_named(tmp_path: Path) -> None:
    source = write(tmp_path / "one", kimi_config(LAYERS, BLOCK), draw_tensors(LAYERS, depth=True))
    save_kimi(load_kimi(source), tmp_path / "many", shard_bytes=3000)
    weights = source / "model.safetensors"
    whole = weights.read_bytes()
    for size in (4, len(whole) // 2, len(whole) - 1):
        weights.write_bytes(whole[:size])
        with pytest.raises(InputError, match=r"model\.safetensors is damaged: it is no whole safetensors file"):
            load_kimi(source)
    weights.unlink()
    with pytest.raises(InputError, match=r"has neither model\.safetensors nor"):
        load_kimi(source)
    second = sorted((tmp_path / "many").glob("model-*"))[1]
    kept = second.read_bytes()
    second.unlink()
    with pytest.raises(InputError, match=rf"is not whole: {second.name} and 0 more"):
        load_kimi(tmp_path / "many")
    save_file({"other": torch.zeros(1)}, second)
    with pytest.raises(InputError, match="disagree about"):
        load_kimi(tmp_path / "many")
    second.write_bytes(kept)
    (tmp_path / "many" / "model.safetensors").write_bytes(whole)
    with pytest.raises(InputError, match="has both"):
        load_kimi(tmp_path / "many")


def test_wrong_places_are_refused(tmp_path: Path) -> None:
    model = fresh(kimi_linear(4))
    with pytest.raises(InputError, match="exists; name another folder"):
        save_kimi(model, tmp_path)
    with pytest.raises(InputError, match="shard_bytes is 0"):
        save_kimi(model, tmp_path / "new", shard_bytes=0)
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot be written"):
        save_kimi(model, tmp_path / "file" / "new")
    with pytest.raises(InputError, match=r"has no config\.json"):
        load_kimi(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InputError, match="cannot be read"):
        load_kimi(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(InputError, match=r"is of no dialect that is known; there are kimi \("):
        load(tmp_path)


def test_a_tensor_that_was_changed_on_the_way_is_named(tmp_path: Path) -> None:
    source = write(tmp_path / "theirs", kimi_config(LAYERS, BLOCK), draw_tensors(LAYERS, depth=True))
    save_kimi(load_kimi(source), tmp_path / "kimi")
    file = tmp_path / "kimi" / "model.safetensors"
    content = bytearray(file.read_bytes())
    header_bytes = int.from_bytes(content[:8], "little")
    place = json.loads(content[8 : 8 + header_bytes])["model.norm.weight"]["data_offsets"][0]
    content[8 + header_bytes + place] ^= 1  # the last bit of one number
    file.write_bytes(bytes(content))
    with pytest.raises(InputError, match=r"has other numbers than were written in model\.norm\.weight; copy it again"):
        load_kimi(tmp_path / "kimi")
