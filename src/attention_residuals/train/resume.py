"""Going on with an earlier run, from its last checkpoint, to the last bit."""

import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from attention_residuals.configs import from_plain
from attention_residuals.errors import InputError
from attention_residuals.train.checkpoints import latest_checkpoint, load_checkpoint
from attention_residuals.train.config import TrainConfig
from attention_residuals.train.loop import CHECKPOINTS, PROBES, Progress, Training, build_training
from attention_residuals.train.probes import Probe
from attention_residuals.train.runs import METRICS, RunFolder
from attention_residuals.train.text import TokenData


def read_config(path: Path) -> TrainConfig:
    """The config of an earlier run.

    Raises:
        InputError: `path` is no run folder, or its config is not one of this version.
    """
    file = path / "config.json"
    if not file.exists():
        raise InputError(f"{path} is no run folder: it has no config.json; name the folder of an earlier run")
    try:
        plain = json.loads(file.read_text())["config"]
    except (json.JSONDecodeError, KeyError) as error:
        raise InputError(f"{file} cannot be read ({error}); restore it from a copy") from error
    return from_plain(TrainConfig, plain)


def resume_training(path: Path, config: TrainConfig, data: TokenData, report: Callable[[str], None]) -> Training:
    """The run in `path` as its last checkpoint left it, or at step 0 if it has none; hold `run_lock` meanwhile.

    Metrics of later steps are dropped: these steps come again, bit for bit. `report` gets a sentence for each damaged
    checkpoint that was passed over.

    Raises:
        InputError: the text or tokenizer is another than the checkpoint's, or the checkpoint does not fit the model.
    """
    latest = latest_checkpoint(path / CHECKPOINTS, report)
    training = build_training(config, data, RunFolder(path))
    if latest is not None:
        facts = load_checkpoint(latest, model=training.model, optimizers=training.optimizer.by_name)
        _require_same_text(latest, facts, data)
        training = dataclasses.replace(training, progress=_progress(facts))
    for name in (METRICS, PROBES):
        RunFolder.reopen(path, training.progress.step, name)
    _replay_alarms(training)
    return training


def _replay_alarms(training: Training) -> None:
    """Let the alarms hear the past again, so that they speak and keep quiet as in a run that was never stopped."""
    probes = {step: Probe(**found) for step, found in _probes(training.folder.path / PROBES)}
    for record in _lines(training.folder.path / METRICS):
        training.alarms.of_record(record)
        if record["step"] in probes:
            training.alarms.of_probe(probes[record["step"]], record["step"])


def _probes(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    for line in _lines(file):
        yield line.pop("step"), line


def _lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def _progress(facts: dict[str, Any]) -> Progress:
    best_step = facts["best_step"]
    progress = Progress(step=facts["step"], seconds=facts["seconds"])
    if best_step is not None:
        progress.best_step, progress.best_loss = best_step, facts["best_loss"]
    return progress


def _require_same_text(checkpoint: Path, facts: dict[str, Any], data: TokenData) -> None:
    for name, now in (("text", data.fingerprint), ("tokenizer", data.tokenizer.fingerprint)):
        then = facts[f"{name}_fingerprint"]
        if then != now:
            raise InputError(
                f"{checkpoint} was trained on another {name} (fingerprint {then}, here {now}); "
                f"bring back that {name}, or start a new run"
            )
