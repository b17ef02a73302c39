"""One run from its recipe to its final numbers, stopped and resumed at will, on one process or on several."""

import dataclasses
import json
import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from attention_residuals.configs import first_difference, override, to_plain
from attention_residuals.errors import InputError
from attention_residuals.experiments.loading import load_data
from attention_residuals.experiments.printing import group_table, say
from attention_residuals.train import (
    Team,
    TokenData,
    TrainConfig,
    Training,
    assembled,
    build_optimizers,
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
from attention_residuals.train.loop import CONFIG, TOKENIZER
from attention_residuals.train.progress import training_progress


def train(config: TrainConfig, path: Path, console: Console) -> dict[str, Any] | None:
    """Train from the start into the new folder `path`; the final numbers, or None if it was interrupted.

    With `config.parallel` every process of the run calls this.

    Raises:
        InputError: anything wrong with what was asked, before any training.
        TrainingStoppedError: a number that is no longer finite; checkpoints stay.
    """
    require_absent(path)
    require_device(config.device)
    with assembled(config) as team:
        return _train(config, path, console, team)


def resume(path: Path, console: Console, layout: tuple[str, ...] = ()) -> dict[str, Any] | None:
    """Go on with the run in `path` from its last checkpoint; as `train` otherwise.

    `layout`: changes to how it is spread over processes, as `parallel.PATH=value`.

    Raises:
        InputError: it is no run folder, another process holds it, it is finished, or its text has changed.
        TrainingStoppedError: as in `train`.
    """
    config = override(read_config(path), layout)
    if is_finished(path):
        raise InputError(f"{path} is finished: all {config.steps} steps are done; start a new run for more")
    require_device(config.device)
    with assembled(config) as team:
        return _resume(config, path, console, team)


def train_or_go_on(config: TrainConfig, path: Path, console: Console) -> dict[str, Any] | None:
    """Train into `path`, or go on with what an earlier process left there, whichever it takes; nothing if finished.

    For what starts the same command again: `torchrun` after a fault, a scheduler after a requeue.

    Raises:
        InputError: the run in `path` was asked with another config; how it is spread may differ. As `train` otherwise.
    """
    require_device(config.device)
    with assembled(config) as team:
        team.in_turn(lambda: _clear_unborn(path) if team.leads else None)
        if not path.exists():
            return _train(config, path, console, team)
        _require_same_run(path, config)
        if is_finished(path):
            say(console, f"{path} is finished: all {config.steps} steps are done.")
            return None
        return _resume(config, path, console, team)


def is_finished(path: Path) -> bool:
    """Whether the run in `path` has its final numbers."""
    return (path / "validation.json").exists()


def _train(config: TrainConfig, path: Path, console: Console, team: Team) -> dict[str, Any] | None:
    data = team.in_turn_by_machine(lambda: _data_for(config, console))
    machine = {"threads": torch.get_num_threads(), "torch": torch.__version__}
    team.in_turn(lambda: require_absent(path) if team.leads else None)
    training = start_training(config, data, path, about={"data": data.about, **machine}, team=team)
    with ExitStack() as stack:
        team.in_turn(lambda: stack.enter_context(run_lock(path)) if team.leads else None)
        return _run(training, console)


def _resume(config: TrainConfig, path: Path, console: Console, team: Team) -> dict[str, Any] | None:
    with ExitStack() as stack:
        team.in_turn(lambda: stack.enter_context(run_lock(path)) if team.leads else None)
        data = team.in_turn_by_machine(lambda: _data_for(config, console))
        training = resume_training(path, config, data, report=lambda text: say(console, f"warning: {text}"), team=team)
        say(console, f"Resuming {path} after step {training.progress.step:,} of {config.steps:,}.")
        return _run(training, console)


def _data_for(config: TrainConfig, console: Console) -> TokenData:
    data = load_data(config.text, console)
    data.require_vocabulary(config.model.vocab_size)
    return data


def _clear_unborn(path: Path) -> None:
    """Remove a folder whose process was killed between making it and writing its config: it is no run yet.

    Raises:
        InputError: there is something else in it.
    """
    if not path.exists() or (path / CONFIG).exists():
        return
    left = {name for file in (TOKENIZER, CONFIG) for name in (file, f".{file}.tmp")}
    if not path.is_dir() or {file.name for file in path.iterdir()} - left:
        raise InputError(f"{path} exists and is no run; choose another folder with --out")
    shutil.rmtree(path)


def _require_same_run(path: Path, config: TrainConfig) -> None:
    there, asked = (to_plain(dataclasses.replace(one, parallel=config.parallel)) for one in (read_config(path), config))
    if difference := first_difference(there, asked):
        name, was, now = difference
        raise InputError(
            f"{path} was started with {name} = {json.dumps(was)}, not {json.dumps(now)}; ask as then, or choose "
            "another folder with --out"
        )


def _run(training: Training, console: Console) -> dict[str, Any] | None:
    config, path, engine = training.config, training.folder.path, training.engine
    say(console, f"{engine.whole.stream.describe()}; writing to {path}")
    console.print(group_table(build_optimizers(engine.whole, config.optimizer).describe(), config.name))
    with ExitStack() as stack:
        interrupt = stack.enter_context(stop_on_interrupt())
        watches: list[Watch] = []
        if config.tensorboard and engine.leads:
            watches.append(stack.enter_context(tensorboard(path / "tensorboard")))
        progress = stack.enter_context(training_progress(console, [config.name], config.steps))
        progress.start_at(config.name, training.progress.step)
        for record in training_steps(training):
            progress.advance({config.name: record})
            for watch in watches:
                watch(record)
            for warning in record.get("alarms", ()):
                say(console, f"warning: {warning}")
            if engine.agree(interrupt.wanted):
                break
    if training.progress.step < config.steps:
        save_training(training)
        engine.finish_saves()
        say(console, f"Stopped after step {training.progress.step:,}. Go on with: attnres train --resume {path}")
        return None
    engine.finish_saves()
    final = conclude(training)
    loss, bits_per_byte = final["validation_loss"], final["validation_bits_per_byte"]
    say(console, f"{config.name}: validation loss {loss:.4f} nats a token, {bits_per_byte:.4f} bits per byte")
    return final
