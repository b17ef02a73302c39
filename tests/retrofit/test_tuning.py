"""Tuning of converted models: what is trained, the loop, its folder, and the command."""

import copy
import json
import math
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from attention_residuals import InputError, Sublayers
from attention_residuals.cli import main
from attention_residuals.hf import fast_tokenizer
from attention_residuals.models import Role
from attention_residuals.retrofit import (
    TokenWindows,
    TuneConfig,
    TuningText,
    load_depth,
    load_retrofitted,
    read_tuning_text,
    retrofit,
    trainable,
    tune,
)
from attention_residuals.retrofit.tuning.losses import next_token_losses, validation_losses
from attention_residuals.train import ByteTokenizer, Constant, TrainingStoppedError

from .support import build


def text(prefix: tuple[int, ...] = ()) -> TuningText:
    """Tokens that go round, so that there is something to learn."""
    ring = torch.arange(2000) % 11 + 3
    return TuningText(TokenWindows(ring, ring[:400], 16), prefix)


def converted(name: str = "llama") -> Any:
    model = build(name)
    retrofit(model, Sublayers(2), gradients=False)
    return model


def config(**changes: Any) -> TuneConfig:
    small = {"steps": 6, "batch_sequences": 2, "depth_rate": 0.03, "evaluation_tokens": 64, "evaluate_every_steps": 3}
    return TuneConfig(**{**small, **changes})


@pytest.mark.parametrize("name", ["llama", "gpt2", "qwen3_moe", "gemma2"])
def test_parts_are_told_by_role(name: str) -> None:
    model = converted(name)
    depth = {key for key, _ in model.named_parameters() if ".queries." in key}
    groups = trainable(model, "queries+norms")
    assert set(groups) == {Role.DEPTH_QUERY, Role.NORM} and set(groups[Role.DEPTH_QUERY]) == depth
    chosen = {key for group in groups.values() for key in group}
    assert chosen == {key for key, value in model.named_parameters() if value.requires_grad}
    assert all(("norm" in key or "ln_" in key) and "key_norms" not in key for key in groups[Role.NORM])
    gains = [module for module in model.modules() if "Norm" in type(module).__name__ and hasattr(module, "weight")]
    assert len(groups[Role.NORM]) == len(gains)
    groups = trainable(model, "all")
    assert sum(map(len, groups.values())) == len(list(model.parameters()))
    assert all(value.requires_grad for value in model.parameters())
    assert all(value.ndim > 1 for value in groups[Role.MATRIX].values())
    decayed = [role for role in groups if TuneConfig(train="all").decay_of(role)]
    assert decayed == [Role.MATRIX], "queries, norms, biases and embeddings must not shrink"


def test_rates_by_part() -> None:
    few, whole = TuneConfig(train="queries+norms+lora", depth_rate=0.5), TuneConfig(train="all", norm_rate=0.25)
    roles = (Role.DEPTH_QUERY, Role.DEPTH_NORM, Role.NORM, Role.MATRIX)
    assert [few.rate_of(role) for role in roles] == [0.5, 0.5, 1e-3, 3e-4]
    assert [whole.rate_of(role) for role in roles] == [4e-4, 4e-4, 0.25, 2e-5]
    assert TuneConfig(train="all").rate_of(Role.NORM) == 2e-5


def test_queries_alone_learn_and_nothing_else_moves() -> None:
    model = converted()
    before = copy.deepcopy(model.state_dict())
    records: list[Any] = []
    tuned = tune(model, text(), config(schedule=Constant()), watch=records.append)
    assert tuned.model is model and not model.training
    assert tuned.after < tuned.before - 0.01 and [step for step, _ in tuned.curve] == [0, 3, 6]
    assert tuned.parameters == 6 * 32
    moved = {key for key, value in model.state_dict().items() if not torch.equal(value, before[key])}
    assert moved == {key for key in before if ".queries." in key}
    windows = text().windows.validation_windows(64)
    assert tuned.after == pytest.approx(validation_losses(model, windows).mean().item(), abs=1e-12)
    assert [record["tokens"] for record in records[:2]] == [32, 64] and records[0]["gradient_norm"] > 0


def test_a_prefix_is_read_and_not_predicted() -> None:
    model = build("llama")
    windows = text().windows.batch(0, 0, 2)
    logits = model(torch.cat([torch.tensor([[1], [1]]), windows[:, :-1]], 1)).logits[:, 1:]
    expected = -logits.log_softmax(-1).gather(2, windows[:, 1:, None])[..., 0]
    torch.testing.assert_close(next_token_losses(model, windows, (1,)), expected)


@pytest.mark.parametrize("train", ["queries", "queries+lora", "all"])
def test_continued_to_the_bit(train: str, tmp_path: Path) -> None:
    whole = tune(converted(), text(), config(train=train), out=tmp_path / "whole")

    def stop(record: Any) -> None:
        if record["step"] == 5:
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        tune(converted(), text(), config(train=train, save_every_steps=4), out=tmp_path / "part", watch=stop)
    asked = config(train=train, save_every_steps=4)
    again = tune(converted(), text(), asked, out=tmp_path / "part", continued=True)
    assert again.curve == whole.curve and again.before == whole.before
    for key, value in again.model.state_dict().items():
        assert torch.equal(value, whole.model.state_dict()[key]), key
    lines = [json.loads(line) for line in (tmp_path / "part/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    with pytest.raises(InputError, match=r"begun with config\.depth_rate 0\.03, and now it is 1"):
        tune(
            converted(),
            text(),
            config(train=train, save_every_steps=4, depth_rate=1),
            out=tmp_path / "part",
            continued=True,
        )
    other = build("llama")
    retrofit(other, Sublayers(3), gradients=False)
    with pytest.raises(InputError, match=r"begun with conversion\.block\.count 2, and now it is 3"):
        tune(other, text(), asked, out=tmp_path / "part", continued=True)
    other = converted()
    other.model.layers[0].mlp.up_proj.weight.data.mul_(2)
    with pytest.raises(InputError, match="begun with fingerprint"):
        tune(other, text(), asked, out=tmp_path / "part", continued=True)
    done = tune(converted(), text(), asked, out=tmp_path / "part", continued=True)
    assert done.curve == whole.curve, "at its end there is nothing to do"
    assert (tmp_path / "part/depth").exists() == (train != "all")
    if train == "queries":
        other = build("llama")
        load_depth(other, tmp_path / "part/depth")
        assert all(torch.equal(value, again.model.state_dict()[key]) for key, value in other.state_dict().items())


def test_ctrl_c_waits_for_a_state(tmp_path: Path) -> None:
    whole = tune(converted(), text(), config())

    def interrupt(record: Any) -> None:
        if record["step"] == 2:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        tune(converted(), text(), config(), out=tmp_path / "out", watch=interrupt)
    assert (tmp_path / "out/depth/depth.json").exists()
    steps: list[int] = []
    again = tune(
        converted(),
        text(),
        config(),
        out=tmp_path / "out",
        continued=True,
        watch=lambda each: steps.append(each["step"]),
    )
    assert steps == [3, 4, 5, 6] and again.curve == whole.curve


def test_refusals(tmp_path: Path) -> None:
    for model, changes, said in (
        (build("llama"), {}, "no depth attention"),
        (converted().bfloat16(), {"train": "norms"}, "small steps are lost"),
        (build("vit"), {"train": "all"}, "no logits of next tokens"),
        (converted("t5"), {}, "has an encoder"),
        (converted(), {"train": "lora", "lora_targets": ("nothing",)}, "there are down_proj, gate_proj"),
    ):
        with pytest.raises(InputError, match=said):
            tune(model, text(), config(**changes), out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    for changes, said in (
        ({"train": "heads"}, "choose of queries"),
        ({"steps": 0}, "steps"),
        ({"depth_rate": math.nan}, "depth_rate"),
        ({"weight_decay": -1.0}, "weight_decay"),
    ):
        with pytest.raises(InputError, match=said):
            config(**changes)
    with pytest.raises(InputError, match="too short"):
        TokenWindows(torch.arange(9), torch.arange(9), 9)
    with pytest.raises(InputError, match="call add_lora first"):
        trainable(converted(), "queries+lora")
    (tmp_path / "there").mkdir()
    with pytest.raises(InputError, match="exists"):
        tune(converted(), text(), out=tmp_path / "there")
    with pytest.raises(InputError, match=r"no state\.safetensors"):
        tune(converted(), text(), out=tmp_path / "there", continued=True)


def test_nan_stops_before_the_step_and_advises() -> None:
    model = converted()
    kept: dict[str, Any] = {}

    def break_it(record: Any) -> None:
        if record["step"] == 2:
            model.model.embed_tokens.weight.data[3:] = math.nan
            kept.update({key: value.clone() for key, value in model.state_dict().items() if "queries" in key})

    with pytest.raises(TrainingStoppedError, match=r"loss is nan at step 3; take a third of .*depth query 0\.03"):
        tune(model, text(), config(), watch=break_it)
    assert all(torch.equal(model.state_dict()[key], value) for key, value in kept.items())
    with pytest.raises(
        TrainingStoppedError, match="validation loss is nan at step 0; the model or its text is at fault"
    ):
        tune(model, text(), config())


def byte_folder(folder: Path) -> None:
    """A model that reads bytes, with its tokenizer, whose end of text no list has."""
    build("llama", vocab_size=256, max_position_embeddings=128).save_pretrained(folder)
    fast_tokenizer(ByteTokenizer(), 128).save_pretrained(folder)


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = tmp_path / "plain", tmp_path / "out"
    byte_folder(source)
    (tmp_path / "text").mkdir()
    for n in range(30):
        (tmp_path / f"text/{n}.txt").write_text("".join(f"{k * n} is {k} times {n}.\n" for k in range(20)))
    words = [
        "--data",
        str(tmp_path / "text"),
        "--sequence",
        "32",
        "--evaluation-tokens",
        "128",
        "--evaluate-every",
        "2",
    ]
    words += ["--steps", "4", "--depth-lr", "0.02", "--train", "queries+lora", "--lora-rank", "2"]
    assert main(["tune", str(source), str(out), *words, "--block", "layers:1"]) == 0
    printed = capsys.readouterr().out
    assert "depth query: 192 parameters in 6 tensors, rate 0.02, decay 0" in printed
    assert "validation loss" in printed and f"Tuned: {out}" in printed
    assert {path.name for path in out.iterdir()} == {
        *("tune.json", "metrics.jsonl", "state.safetensors", "depth", "lora", "model")
    }
    model = load_retrofitted(out / "model")
    data = read_tuning_text(source, [str(tmp_path / "text")], sequence_tokens=32)
    last = json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])
    found = validation_losses(model, data.windows.validation_windows(128)).mean().item()
    assert found == pytest.approx(last["validation_loss"], abs=1e-5)
    assert (out / "model/tokenizer.json").exists()
    for arguments, status, said in (
        ([str(source), str(out)], 2, "--continue"),
        ([str(source), str(tmp_path / "b")], 2, "no depth attention"),
        ([str(out / "model"), str(tmp_path / "b"), "--block", "full"], 2, "converted already"),
        ([str(source), str(tmp_path / "b"), "--adapter", str(out)], 2, "no folder that save_depth wrote"),
        ([str(source), str(tmp_path / "b"), "--train", "x"], 2, "nothing to train"),
        ([str(out / "model"), str(tmp_path / "b"), "--train", "all", "--lr", "1e30"], 1, "a third of the peak"),
    ):
        assert (
            main(["tune", *arguments, *words[:10], *(["--train", "queries"] if "--train" not in arguments else [])])
            == status
        ), said
        assert said in capsys.readouterr().err
