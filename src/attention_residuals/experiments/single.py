"""One run from its recipe to its final numbers, stopped and resumed at will."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from attention_residuals.errors import InputError
from attention_residuals.experiments.loading import load_data
from attention_residuals.experiments.printing import group_table, say
from attention_residuals.train import (
    TrainConfig,
    Training,
    conclude,
    read_config,
    require_absent,
    require_device,
    resume_training,
    run_lock,
    save_training,
    start_training,
    training_steps,
)
from attention_residuals.train.board import Watch, tensorboard
from attention_residuals.train.interrupt import stop_on_interrupt
from attention_residuals.train.progress import training_progress


def train(config: TrainConfig, path: Path, console: Console) -> dict[str, Any] | None:
    """Train from the start into the new folder `path`; the final numbers, or None if it was interrupted.

    Raises:
        InputError: anything wrong with what was asked, before any training.
        TrainingStoppedError: a number that is no longer finite; checkpoints stay.
    """
    require_absent(path)
    require_device(config.device)
    data = load_data(config.text, console)
    data.require_vocabulary(config.model.vocab_size)
    machine = {"threads": torch.get_num_threads(), "torch": torch.__version__}
    training = start_training(config, data, path, about={"data": data.about, **machine})
    with run_lock(path):
        return _run(training, console)


def resume(path: Path, console: Console) -> dict[str, Any] | None:
    """Go on with the run in `path` from its last checkpoint; as `train` otherwise.

    Raises:
        InputError: it is no run folder, another process holds it, it is finished, or its text has changed.
        TrainingStoppedError: as in `train`.
    """
    config = read_config(path)
    if (path / "validation.json").exists():
        raise InputError(f"{path} is finished: all {config.steps} steps are done; start a new run for more")
    require_device(config.device)
    with run_lock(path):
        data = load_data(config.text, console)
        training = resume_training(path, config, data, report=lambda text: say(console, f"warning: {text}"))
        say(console, f"Resuming {path} after step {training.progress.step:,} of {config.steps:,}.")
        return _run(training, console)


def _run(training: Training, console: Console) -> dict[str, Any] | None:
    config, path = training.config, training.folder.path
    say(console, f"{training.model.stream.describe()}; writing to {path}")
    console.print(group_table(training.optimizer.describe(), config.name))
    with ExitStack() as stack:
        interrupt = stack.enter_context(stop_on_interrupt())
        watches: list[Watch] = [stack.enter_context(tensorboard(path / "tensorboard"))] if config.tensorboard else []
        progress = stack.enter_context(training_progress(console, [config.name], config.steps))
        progress.start_at(config.name, training.progress.step)
        for record in training_steps(training):
            progress.advance({config.name: record})
            for watch in watches:
                watch(record)
            for warning in record.get("alarms", ()):
                say(console, f"warning: {warning}")
            if interrupt.wanted:
                break
    if training.progress.step < config.steps:
        save_training(training)
        say(console, f"Stopped after step {training.progress.step:,}. Go on with: attnres train --resume {path}")
        return None
    final = conclude(training)
    loss, bits_per_byte = final["validation_loss"], final["validation_bits_per_byte"]
    say(console, f"{config.name}: validation loss {loss:.4f} nats a token, {bits_per_byte:.4f} bits per byte")
    return final
