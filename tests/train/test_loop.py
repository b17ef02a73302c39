"""Training: reproducible, paired, written line by line, and stopped when the loss is no longer a number."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from attention_residuals import Additive, AttnRes, DecoderConfig, InputError, ReadScale, Residual, Sublayers
from attention_residuals.models import kimi_linear
from attention_residuals.train import (
    LocalEngine,
    TokenData,
    TrainConfig,
    Training,
    TrainingStoppedError,
    conclude,
    evaluate,
    resume_training,
    runs,
    start_training,
    token_losses,
    training_steps,
)

TEXT = b"the quick brown fox jumps over the lazy dog, and the dog does not mind at all. " * 40
DATA = TokenData.from_bytes(TEXT, TEXT[:1000], 32)


def start(path: Path, residual: Residual, steps: int = 6, name: str = "run") -> Training:
    config = TrainConfig(
        name=name,
        model=DecoderConfig.from_depth(2, residual=residual),
        steps=steps,
        batch_sequences=4,
        evaluate_every_steps=4,
    )
    return start_training(config, DATA, path, about={"note": "test"})


def losses(training: Training) -> list[float]:
    return [record["loss"] for record in training_steps(training)]


def test_the_same_run_twice_is_the_same_to_the_last_bit(tmp_path: Path) -> None:
    assert losses(start(tmp_path / "a", AttnRes())) == losses(start(tmp_path / "b", AttnRes()))


def test_taking_turns_changes_nothing(tmp_path: Path) -> None:
    alone = losses(start(tmp_path / "alone", AttnRes()))
    pair = start(tmp_path / "one", AttnRes()), start(tmp_path / "two", Additive())
    together = [records[0]["loss"] for records in zip(*map(training_steps, pair), strict=True)]
    assert together == alone


def test_models_of_one_seed_start_from_the_same_function(tmp_path: Path) -> None:
    plain = next(training_steps(start(tmp_path / "plain", Additive())))
    depth = next(training_steps(start(tmp_path / "depth", AttnRes(Sublayers(2), scale=ReadScale.SUM))))
    assert depth["loss"] == pytest.approx(plain["loss"], abs=1e-6)
    assert depth["tokens"] == plain["tokens"] == 4 * 32


def test_training_learns(tmp_path: Path) -> None:
    training = start(tmp_path / "run", AttnRes(Sublayers(2)), steps=80)
    assert losses(training)[-1] < DATA.unigram_entropy - 0.5


def test_metrics_hold_what_was_yielded_and_end_with_the_final_line(tmp_path: Path) -> None:
    training = start(tmp_path / "run", AttnRes(Sublayers(2)))
    records = list(training_steps(training))
    final = conclude(training)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert lines == [*records, final]
    assert [line["step"] for line in lines if "validation_loss" in line and "step" in line] == [4, 6]
    windows = json.loads((tmp_path / "run" / "validation.json").read_text())["window_losses"]
    assert final["validation_loss"] == pytest.approx(sum(windows) / len(windows))
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["config"]["model"]["residual"]["block"] == {"type": "Sublayers", "count": 2}
    assert config["note"] == "test" and config["stream"].startswith("AttnRes Block: 4 sublayers in 2 blocks of 2")


def test_evaluation_is_the_mean_loss_of_each_window(tmp_path: Path) -> None:
    training = start(tmp_path / "run", AttnRes())
    windows = DATA.validation_windows(300)
    assert len(windows) == 9
    expected = [token_losses(training.model, window.unsqueeze(0)).double().mean() for window in windows]
    torch.testing.assert_close(evaluate(training, windows), torch.stack(expected), rtol=1e-6, atol=0)


def test_token_losses_are_of_the_next_token(tmp_path: Path) -> None:
    model = start(tmp_path / "run", Additive()).model
    batch = DATA.batch(0, 0, 2)
    logits = model(batch[:, :-1])
    by_hand = -logits.log_softmax(-1)[1, 7, batch[1, 8]]
    torch.testing.assert_close(token_losses(model, batch)[1, 7], by_hand)


def test_a_loss_that_is_no_number_stops_at_its_step(tmp_path: Path) -> None:
    training = start(tmp_path / "run", Additive(), name="broken")
    steps = training_steps(training)
    next(steps)
    with torch.no_grad():
        training.model.embedding.weight[:] = float("nan")
    with pytest.raises(
        TrainingStoppedError, match=r"'broken' \(seed 0\) is nan at step 2, beginning with embedding\.weight"
    ):
        next(steps)


def test_a_gradient_that_is_no_number_stops_before_the_weights(tmp_path: Path) -> None:
    training = start(tmp_path / "run", Additive())
    training.model.embedding.weight.register_hook(lambda gradient: gradient * float("inf"))
    before = [parameter.clone() for parameter in training.model.parameters()]
    with pytest.raises(TrainingStoppedError, match=r"gradient norm of 'run' .* at step 1"):
        next(training_steps(training))
    assert all(map(torch.equal, before, training.model.parameters()))


def test_weights_that_a_step_broke_are_not_saved(tmp_path: Path) -> None:
    config = dataclasses.replace(start(tmp_path / "any", AttnRes()).config, checkpoint_every_steps=1)
    training = start_training(config, DATA, tmp_path / "run", about={})
    weight = training.model.get_parameter("sublayers.1.up.weight")

    def break_it(*_: object) -> None:
        with torch.no_grad():
            weight[0, 0] = float("inf")

    training.optimizer.by_name["adamw"].register_step_post_hook(break_it)
    with pytest.raises(
        TrainingStoppedError, match=r"validation loss of .* at step 1, beginning with sublayers\.1\.up\.w"
    ):
        next(training_steps(training))
    assert not training.checkpoints.exists() and not (tmp_path / "run" / "metrics.jsonl").exists()


def test_the_bad_gradient_is_named_and_not_those_that_clipping_would_spread_it_to(tmp_path: Path) -> None:
    training = start(tmp_path / "run", Additive())
    training.model.get_parameter("sublayers.2.query.weight").register_hook(lambda gradient: gradient * float("nan"))
    with pytest.raises(TrainingStoppedError, match=r"with the gradient of sublayers\.2\.query\.weight"):
        next(training_steps(training))


def test_lines_are_on_the_disk_before_a_checkpoint_refers_to_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = dataclasses.replace(
        start(tmp_path / "any", AttnRes()).config, checkpoint_every_steps=2, probe_every_steps=1
    )
    training = start_training(config, DATA, tmp_path / "run", about={})
    synced: dict[str, int] = {}

    def note(path: Path) -> None:
        synced[path.name] = path.read_text().count("\n")

    def saved(*_: object, step: int, **__: object) -> None:
        assert synced == {"metrics.jsonl": step, "probes.jsonl": step}

    monkeypatch.setattr(runs, "sync_file", note)
    monkeypatch.setattr(LocalEngine, "save", saved)
    assert len(list(training_steps(training))) == 6


def test_a_run_folder_that_exists_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with pytest.raises(InputError, match="run exists; choose another folder"):
        start(tmp_path / "run", Additive())


@pytest.mark.parametrize("steps", [0, -3])
def test_counts_below_one_are_refused(steps: int) -> None:
    with pytest.raises(InputError, match=f"steps is {steps}"):
        TrainConfig(DecoderConfig.from_depth(1), steps)


def test_a_model_of_experts_is_balanced_and_goes_on_to_the_last_bit(tmp_path: Path) -> None:
    config = dataclasses.replace(
        start(tmp_path / "any", AttnRes()).config, model=kimi_linear(4), checkpoint_every_steps=3, router_bias_rate=0.01
    )
    whole = start_training(config, DATA, tmp_path / "whole", about={})
    records = list(training_steps(whole))
    assert all(1 <= record["expert_peak"] <= 4 for record in records)
    biases = [tensor for name, tensor in whole.model.named_buffers() if name.endswith("router.bias")]
    assert len(biases) == 3 and all(bias.abs().max() > 0 for bias in biases)

    cut = start_training(config, DATA, tmp_path / "cut", about={})
    for _, _ in zip(range(4), training_steps(cut), strict=False):
        pass
    again = resume_training(tmp_path / "cut", config, DATA, report=lambda text: None)
    last = list(training_steps(again))[-1]
    assert {**last, "seconds": 0} == {**records[-1], "seconds": 0}


def test_a_model_without_experts_says_nothing_of_them(tmp_path: Path) -> None:
    assert all("expert_peak" not in record for record in training_steps(start(tmp_path / "run", AttnRes())))
