"""Weights there and back in every way of loading; damage, other models and unsafe formats in one sentence each."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForCausalLM, LlamaConfig

from attention_residuals import (
    Additive,
    AttnRes,
    InputError,
    Query,
    ReadScale,
    Sublayers,
    Weighting,
    build_decoder,
)
from attention_residuals.hf import AttnResConfig, AttnResForCausalLM, AttnResModel
from attention_residuals.streams import DeltaAttnRes, LowRankAttnRes, RmsBlockAttnRes
from attention_residuals.train.manifests import write_manifest
from tests.hf.support import BLOCK, STREAMS, config, decoder_config, model, tokens

WEIGHTS = "model.safetensors"


def same(found: Any, wrapped: Any) -> bool:
    return torch.equal(found(tokens()).logits, wrapped(tokens()).logits)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model().save_pretrained(tmp_path / "saved")
    return tmp_path / "saved"


def altered(folder: Path, change: dict[str, torch.Tensor | None]) -> Path:
    """The folder with other tensors; None takes one away."""
    tensors = {**load_file(folder / WEIGHTS), **change}
    save_file({name: value for name, value in tensors.items() if value is not None}, folder / WEIGHTS, {"format": "pt"})
    return folder


@pytest.mark.parametrize("residual", STREAMS)
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("options", [{}, {"device_map": "cpu"}, {"device_map": "auto"}], ids=["plain", "cpu", "auto"])
def test_a_model_comes_back_as_it_was(tmp_path: Path, residual: Any, tied: bool, options: dict[str, Any]) -> None:
    wrapped = model(residual, tied)
    wrapped.save_pretrained(tmp_path)
    found = AutoModelForCausalLM.from_pretrained(tmp_path, **options)
    assert isinstance(found, AttnResForCausalLM) and not found.training and same(found, wrapped)
    assert ("model.head.weight" in load_file(tmp_path / WEIGHTS)) != tied


def test_shards(tmp_path: Path) -> None:
    wrapped = model()
    wrapped.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    assert same(AttnResForCausalLM.from_pretrained(tmp_path), wrapped)
    os.truncate(sorted(tmp_path.glob("model-*.safetensors"))[1], 100)
    with pytest.raises(InputError, match=r"model-00002-of-0000\d\.safetensors is damaged: it is no whole safetensors"):
        AttnResForCausalLM.from_pretrained(tmp_path)
    sorted(tmp_path.glob("model-*.safetensors"))[1].unlink()
    with pytest.raises(InputError, match=r"is not whole: model-00002-of-0000\d\.safetensors is missing"):
        AttnResForCausalLM.from_pretrained(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text("{")
    with pytest.raises(InputError, match=r"index\.json is damaged: it is no index of weights"):
        AttnResForCausalLM.from_pretrained(tmp_path)


def test_the_backbone_alone(folder: Path) -> None:
    found = AutoModel.from_pretrained(folder)
    assert isinstance(found, AttnResModel)
    hidden = model()(tokens(), output_hidden_states=True).hidden_states
    assert torch.equal(found(tokens()).last_hidden_state, hidden[-1])


def test_bfloat16_weights_and_float32_angles(folder: Path) -> None:
    found = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    assert {value.dtype for value in found.parameters()} == {torch.bfloat16}
    context = found.model.context(torch.tensor([[1001]]))
    assert context.rotation.cos.dtype == torch.float32
    assert same(found, model().to(torch.bfloat16)) and not same(found, model())


def test_a_standard_network_becomes_one_with_depth_attention(tmp_path: Path) -> None:
    plain = model(Additive())
    plain.save_pretrained(tmp_path)
    found = AttnResForCausalLM.from_pretrained(tmp_path, residual={"type": "AttnRes", "scale": "sum"})
    stream = found.model.stream
    assert all((value == 0).all() for value in stream.queries.values()) and len(stream.queries) == 6
    assert all((value == 1).all() for value in stream.key_norms.values())
    torch.testing.assert_close(found(tokens()).logits, plain(tokens()).logits)


def test_a_model_from_a_config_alone() -> None:
    torch.manual_seed(3)
    found = AutoModelForCausalLM.from_config(config(), dtype=torch.bfloat16)
    expected = build_decoder(decoder_config(), seed=3, dtype=torch.bfloat16).state_dict()
    assert isinstance(found, AttnResForCausalLM) and found.model.state_dict().keys() == expected.keys()
    assert all(torch.equal(value, expected[name]) for name, value in found.model.state_dict().items())


def test_a_state_dict_can_be_given() -> None:
    wrapped = model()
    found = AttnResForCausalLM.from_pretrained(None, config=wrapped.config, state_dict=wrapped.state_dict())
    assert same(found, wrapped)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model.norm.weight": None}, r"it lacks model\.norm\.weight; load it with the config"),
        ({"model.head.weight": None}, r"it lacks model\.head\.weight"),
        ({"model.stream.pre_norms.2": None}, r"it lacks model\.stream\.pre_norms\.2"),
        ({"model.stream.queries.2": None}, r"it lacks model\.stream\.queries\.2"),
        ({"model.stream.queries.99": torch.ones(32)}, r"it has unexpected model\.stream\.queries\.99"),
        ({"model.extra": torch.ones(1)}, r"it has unexpected model\.extra"),
        ({"model.norm.weight": torch.ones(31)}, r"differs in model\.norm\.weight \(\[31\], in the model \[32\]\)"),
        (
            {"model.sublayers.3.up.weight": torch.full((48, 32), torch.nan)},
            r"has NaN or infinite values in model\.sublayers\.3\.up\.weight",
        ),
    ],
)
def test_weights_of_another_model_are_named(folder: Path, change: dict[str, Any], message: str) -> None:
    altered(folder, change)
    with pytest.raises(InputError, match=message):
        AttnResForCausalLM.from_pretrained(folder)


def test_depth_attention_is_not_left_out_in_silence(folder: Path) -> None:
    with pytest.raises(InputError, match=r"it has unexpected model\.stream\.key_norms\.1, .* and \d+ more"):
        AttnResForCausalLM.from_pretrained(folder, residual={"type": "Additive"})


def test_what_was_meant_can_be_said(folder: Path) -> None:
    altered(folder, {"model.head.weight": torch.ones(7, 32)})
    found, info = AttnResForCausalLM.from_pretrained(folder, ignore_mismatched_sizes=True, output_loading_info=True)
    assert found.model.head is not None and found.model.head.weight.shape == (40, 32)
    assert [name for name, *_ in info["mismatched_keys"]] == ["model.head.weight"]
    altered(folder, {"model.head.weight": torch.full((40, 32), torch.nan)})
    assert AttnResForCausalLM.from_pretrained(folder, verify=False)(tokens()).logits.isnan().all()


def test_a_file_cut_short_is_named(folder: Path) -> None:
    os.truncate(folder / WEIGHTS, (folder / WEIGHTS).stat().st_size - 4)
    with pytest.raises(InputError, match=r"model\.safetensors is damaged: it is no whole safetensors file .*copy it"):
        AutoModelForCausalLM.from_pretrained(folder)


def test_changed_data_are_seen_by_the_manifest(folder: Path) -> None:
    write_manifest(folder, [path.name for path in folder.iterdir()])
    assert AutoModelForCausalLM.from_pretrained(folder)
    content = bytearray((folder / WEIGHTS).read_bytes())
    content[-2] ^= 1
    (folder / WEIGHTS).write_bytes(content)
    with pytest.raises(
        InputError, match=r"damaged: model\.safetensors has the right size and another checksum.*verify"
    ):
        AutoModelForCausalLM.from_pretrained(folder)
    found = AutoModelForCausalLM.from_pretrained(folder, verify=False)
    found.save_pretrained(folder)  # the manifest of the earlier weights goes with them
    assert same(AutoModelForCausalLM.from_pretrained(folder), found)


def test_a_manifest_that_is_none_or_of_a_newer_version_is_told(folder: Path) -> None:
    for content, message in (("{", r"manifest\.json cannot be read"), ('{"format": 9, "files": {}}', "has format 9")):
        (folder / "manifest.json").write_text(content)
        with pytest.raises(InputError, match=message):
            AttnResForCausalLM.from_pretrained(folder)


def test_a_config_may_be_edited(folder: Path) -> None:
    write_manifest(folder, [path.name for path in folder.iterdir()])
    plain = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**plain, "max_position_embeddings": 99}))
    assert AttnResForCausalLM.from_pretrained(folder).config.max_position_embeddings == 99


def test_weights_that_could_run_code_are_refused(folder: Path) -> None:
    torch.save(load_file(folder / WEIGHTS), folder / "pytorch_model.bin")
    assert same(AttnResForCausalLM.from_pretrained(folder), model())
    (folder / WEIGHTS).unlink()
    with pytest.raises(InputError, match=r"has its weights in pytorch_model\.bin, a format whose reading can run code"):
        AutoModelForCausalLM.from_pretrained(folder)
    with pytest.raises(InputError, match="weights are read from safetensors alone"):
        AutoModelForCausalLM.from_pretrained(folder, use_safetensors=False)
    (folder / "pytorch_model.bin").unlink()
    with pytest.raises(OSError, match=r"no file named model\.safetensors"):
        AutoModelForCausalLM.from_pretrained(folder)


def test_another_kind_of_model_is_refused(tmp_path: Path) -> None:
    LlamaConfig().save_pretrained(tmp_path)
    with pytest.raises(InputError, match="model_type is 'llama'"):
        AttnResForCausalLM.from_pretrained(tmp_path)


def test_depth_parameters_do_not_follow_the_block(folder: Path) -> None:
    found = AttnResForCausalLM.from_pretrained(folder, residual=AttnRes(Sublayers(3)))
    assert found.config.block_sublayers == 3 and AttnRes(Sublayers(3)) != BLOCK
    expected = model().model.state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in found.model.state_dict().items())


def test_a_config_given_beside_the_weights_counts(folder: Path) -> None:
    given = config(AttnRes(), max_position_embeddings=7)
    found = AttnResForCausalLM.from_pretrained(folder, config=given)
    assert isinstance(found.config, AttnResConfig) and found.config.max_position_embeddings == 7


VARIANTS = [
    AttnRes(Sublayers(2), query=Query.PROJECTED, heads=2),
    AttnRes(query=Query.NONE, weighting=Weighting.SIGMOID, window_sublayers=3),
    RmsBlockAttnRes(Sublayers(2)),
    DeltaAttnRes(),
    LowRankAttnRes(),
]


@pytest.mark.parametrize("residual", VARIANTS)
def test_a_variant_comes_back_as_it_was(tmp_path: Path, residual: Any) -> None:
    wrapped = model(residual)
    wrapped.save_pretrained(tmp_path)
    found = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert found.config.to_decoder_config().residual == residual and same(found, wrapped)
    block = residual.block.in_sublayers(6)
    assert json.loads((tmp_path / "config.json").read_text())["block_sublayers"] == block


def test_a_standard_network_becomes_one_with_a_variant(tmp_path: Path) -> None:
    plain = model(Additive())
    plain.save_pretrained(tmp_path)
    residual = AttnRes(query=Query.NONE, heads=2, scale=ReadScale.SUM)
    found = AttnResForCausalLM.from_pretrained(tmp_path, residual=residual)
    assert all((value == 0).all() for value in found.model.stream.depth_logits.values())
    torch.testing.assert_close(found(tokens()).logits, plain(tokens()).logits)


def test_a_folder_of_before_the_variants_loads(folder: Path) -> None:
    plain = json.loads((folder / "config.json").read_text())
    plain["residual"] = {
        "type": "AttnRes",
        "block": {"type": "Sublayers", "count": 2},
        "scale": "mean",
        "output_read": True,
        "key_eps": 1e-06,
        "two_phase": True,
    }
    assert plain["residual"].keys() <= AttnResConfig().to_dict()["residual"].keys()
    (folder / "config.json").write_text(json.dumps(plain))
    found = AttnResForCausalLM.from_pretrained(folder, verify=False)
    assert found.config.to_decoder_config().residual == BLOCK and same(found, model())
