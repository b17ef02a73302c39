"""The config: there and back, a block size that keeps its unit, and dialects told apart."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig, LlamaConfig

from attention_residuals import Additive, AttnRes, Blocks, InputError, Layers, Residual, Sublayers
from attention_residuals.hf import AttnResConfig
from tests.hf.support import STREAMS, config, decoder_config


@pytest.mark.parametrize("residual", [*STREAMS, AttnRes(Layers(1))])
def test_a_decoder_config_goes_there_and_back(tmp_path: Path, residual: Residual) -> None:
    config(residual).save_pretrained(tmp_path)
    found = AutoConfig.from_pretrained(tmp_path)
    assert isinstance(found, AttnResConfig) and found.to_decoder_config() == decoder_config(residual)
    assert found.max_position_embeddings == 64 and found.eos_token_id == 0


@pytest.mark.parametrize(
    ("residual", "sublayers"),
    [(Additive(), None), (AttnRes(), 1), (AttnRes(Layers(2)), 4), (AttnRes(Blocks(3)), 2), (AttnRes(Sublayers(5)), 5)],
)
def test_the_resulting_block_is_written_beside_the_unit(residual: Residual, sublayers: int | None) -> None:
    assert config(residual).to_dict()["block_sublayers"] == sublayers


def test_the_default_is_full() -> None:
    assert AttnResConfig().to_decoder_config().residual == AttnRes()


def saved(path: Path, **changes: Any) -> Path:
    config(AttnRes(Layers(1))).save_pretrained(path)
    plain = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**plain, **changes}))
    return path


@pytest.mark.parametrize("unit", ["Sublayers", "Blocks"])
def test_another_unit_than_the_weights_were_trained_with_is_found_out(tmp_path: Path, unit: str) -> None:
    plain = {"type": "AttnRes", "block": {"type": unit, "count": 1}}
    with pytest.raises(InputError, match=r"block_sublayers is 2, and residual .* gives [16] over 3 layers"):
        AttnResConfig.from_pretrained(saved(tmp_path, residual=plain))


def test_a_stream_changed_on_the_way_in_is_no_disagreement(tmp_path: Path) -> None:
    found = AttnResConfig.from_pretrained(saved(tmp_path), residual=AttnRes(Sublayers(3)))
    assert (found.block_sublayers, found.to_decoder_config().residual) == (3, AttnRes(Sublayers(3)))
    found.save_pretrained(tmp_path / "again")
    assert AttnResConfig.from_pretrained(tmp_path / "again").to_decoder_config().residual == AttnRes(Sublayers(3))
    changed = AttnResConfig.from_pretrained(tmp_path)
    changed.num_hidden_layers = 7
    changed.residual = AttnRes(Blocks(2))
    changed.save_pretrained(tmp_path / "changed")
    assert AttnResConfig.from_pretrained(tmp_path / "changed").block_sublayers == 7


@pytest.mark.parametrize("block", [4, 2.5, "4"])
def test_a_number_without_a_unit_is_refused(block: Any) -> None:
    with pytest.raises(InputError, match=r"a number without a unit; write it with one.*Sublayers.*Layers, or Blocks"):
        AttnResConfig(residual={"type": "AttnRes", "block": block})


@pytest.mark.parametrize(
    ("key", "counted", "unit"),
    [
        ("attnres_block_size", "sublayers", "Sublayers"),
        ("attn_res_block_size", "layers", "Layers"),
        ("attnres_num_blocks", "number of blocks", "Blocks"),
    ],
)
def test_block_sizes_of_other_dialects_are_told_apart(key: str, counted: str, unit: str) -> None:
    foreign: dict[str, Any] = {key: 6}
    with pytest.raises(InputError, match=rf'{key} is 6.* it counts .*{counted}.*"type": "{unit}", "count": 6'):
        AttnResConfig(**foreign)
    assert AttnResConfig(**foreign, residual={"type": "Additive"}).to_decoder_config().residual == Additive()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hidden_size": 0}, "hidden_size is 0"),
        ({"num_hidden_layers": -1}, "num_hidden_layers is -1"),
        ({"residual": {"type": "Hyper"}}, "residual has type 'Hyper'; choose Additive, AttnRes"),
        ({"residual": "AttnRes"}, "residual is 'AttnRes'; choose"),
        ({"residual": {"type": "AttnRes", "scale": "max"}}, r"residual\.scale is 'max'; choose mean, sum"),
    ],
)
def test_what_is_no_config_is_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        AttnResConfig(**fields)


def test_the_config_of_another_model_is_refused(tmp_path: Path) -> None:
    LlamaConfig().save_pretrained(tmp_path)
    with pytest.raises(InputError, match="model_type is 'llama', and these classes read 'attn_res'"):
        AttnResConfig.from_pretrained(tmp_path)
