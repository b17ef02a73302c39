"""A run under Kimi names, and back under ours, from the command line."""

from pathlib import Path

import pytest
import torch

from attention_residuals import AttnRes, Layers, build_decoder, cli
from attention_residuals.dialects import OURS, load, load_depth, save
from attention_residuals.models import DecoderConfig, kimi_linear
from attention_residuals.train import TokenData, TrainConfig, load_trained, start_training, training_steps
from attention_residuals.train.text import TextConfig

TEXT = b"the quick brown fox jumps over the lazy dog, and the dog does not mind at all. " * 10


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "run"
    model = kimi_linear(4, vocab_size=257, residual=AttnRes(Layers(2)))
    text = TextConfig(sequence_tokens=8)
    config = TrainConfig(model, steps=2, checkpoint_every_steps=1, batch_sequences=2, text=text)
    list(training_steps(start_training(config, TokenData.from_bytes(TEXT, TEXT[:200], 8), path, about={})))
    return path


def test_a_run_there_and_back(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kimi, ours = str(tmp_path / "kimi"), str(tmp_path / "ours")
    assert cli.main(["convert", str(run), kimi, "--to", "kimi", "--shard-bytes", "20000"]) == 0
    assert cli.main(["convert", kimi, ours, "--to", "ours"]) == 0
    assert f"Written as ours: {ours}" in capsys.readouterr().out
    assert (tmp_path / "kimi" / "model.safetensors.index.json").exists()
    trained, back = load_trained(run).model, load(tmp_path / "ours")
    for name, tensor in trained.state_dict().items():
        assert torch.equal(tensor, back.state_dict()[name]), name
    first = str(tmp_path / "first")
    assert cli.main(["convert", str(run), first, "--to", "ours", "--checkpoint", "1"]) == 0
    assert not torch.equal(load(tmp_path / "first").embedding.weight, back.embedding.weight)


def test_depth_tensors_from_folder_to_folder(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = [run]
    for name in ("torchtitan", "megatron", "fla", "kimi", "ours"):
        folders.append(tmp_path / name)
        extra = ["--depth"] if folders[-2] == run else []
        assert cli.main(["convert", str(folders[-2]), str(folders[-1]), "--to", name, *extra]) == 0
    out = capsys.readouterr().out
    assert "These are the depth tensors alone: its kimi_k3 has sublayers that are none of ours" in out
    found, trained = load_depth(folders[-1]), load_trained(run).model.state_dict()
    assert (found.layers, found.residual.block.in_sublayers(8)) == (4, 4)
    assert set(found.tensors) == {name for name in trained if name.startswith(("stream.queries", "stream.key_norms"))}
    assert all(torch.equal(tensor, trained[name]) for name, tensor in found.tensors.items())
    assert cli.main(["convert", str(folders[-1]), str(tmp_path / "gguf"), "--to", "llama.cpp"]) == 0
    assert "cannot be taken apart again, so keep the checkpoint" in capsys.readouterr().out
    assert cli.main(["convert", str(tmp_path / "gguf"), str(tmp_path / "new"), "--to", "kimi"]) == 2
    assert "is in the dialect llama.cpp, which cannot be read back" in capsys.readouterr().err
    assert cli.main(["convert", str(folders[1]), str(tmp_path / "new"), "--to", "kimi", "--checkpoint", "1"]) == 2
    assert "is no run with checkpoints" in capsys.readouterr().err


def test_a_model_of_attention_to_flash_linear_attention_and_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = build_decoder(DecoderConfig.from_depth(3, residual=AttnRes(Layers(1))), seed=0)
    save(model, tmp_path / "first", OURS)
    for source, name in (("first", "fla"), ("fla", "ours")):
        assert cli.main(["convert", str(tmp_path / source), str(tmp_path / name), "--to", name]) == 0
    back = load(tmp_path / "ours")
    assert all(map(torch.equal, model.state_dict().values(), back.state_dict().values()))
    assert cli.main(["convert", str(tmp_path / "fla"), str(tmp_path / "new"), "--to", "kimi"]) == 2
    assert "Kimi names know KimiDelta and Latent, and a layer has GroupedQuery" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["{run}", "{new}", "--to", "llama"],
            "there is no dialect 'llama'; choose kimi, fla, ours, torchtitan, megatron, llama.cpp",
        ),
        (["{run}", "{run}", "--to", "kimi"], "exists; name another folder"),
        (["{new}", "{new}", "--to", "kimi"], "has no config.json"),
        (["{llama}", "{new}", "--to", "kimi"], "is of no dialect that is known; there are kimi ("),
        (["{run}", "{new}", "--to", "kimi", "--checkpoint", "7"], "has no checkpoint of step 7"),
        (["{run}", "{new}", "--to", "kimi", "--shard-bytes", "0"], "shard_bytes is 0"),
    ],
)
def test_wrong_input_is_one_sentence(
    arguments: list[str], message: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "llama").mkdir()
    (tmp_path / "llama" / "config.json").write_text('{"model_type": "llama"}')
    places = {"run": run, "new": tmp_path / "new", "llama": tmp_path / "llama"}
    assert cli.main(["convert", *(word.format(**places) for word in arguments)]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not (tmp_path / "new").exists()
