"""Going on with an earlier run, from its last checkpoint, to the last bit."""

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from attention_residuals.configs import first_difference, from_plain, to_plain
from attention_residuals.errors import InputError
from attention_residuals.models import BackboneConfig
from attention_residuals.train.checkpoints import checkpoints_by_step, latest_checkpoint, read_facts
from attention_residuals.train.config import TrainConfig
from attention_residuals.train.loop import (
    CHECKPOINTS,
    CONFIG,
    PROBES,
    Progress,
    Training,
    build_training,
    store_tokenizer,
)
from attention_residuals.train.probes import Probe
from attention_residuals.train.runs import METRICS, RunFolder
from attention_residuals.train.team import ALONE, Team
from attention_residuals.train.text import TokenData


def read_config(path: Path) -> TrainConfig:
    """The config of an earlier run.

    Raises:
        InputError: `path` is no run folder, or its config is not one of this version.
    """
    plain = _facts(path)["config"]
    try:
        return from_plain(TrainConfig, plain)
    except InputError as error:
        raise InputError(f"{path / CONFIG} is no config of this version: {error}") from error


def require_same_model(checkpoint: Path, facts: Mapping[str, Any], config: TrainConfig) -> None:
    """Refuse a checkpoint of another model than the run's config describes: its tensors may fit all the same.

    Blocks of 2 layers and of 2 sublayers, for one, have the same parameters.

    Raises:
        InputError: it names the first field that differs, and both values.
    """
    try:  # what was saved before a field existed has its default
        saved = to_plain(from_plain(BackboneConfig, facts["config"]["model"], "model"))
    except InputError as error:
        raise InputError(f"{checkpoint} has no model of this version: {error}") from error
    mine = to_plain(config.model)
    if difference := first_difference(saved, mine, "model"):
        name, was, now = difference
        raise InputError(
            f"{checkpoint} was saved with {name} = {was!r}, and the run's {CONFIG} says {now!r}; "
            f"put the {CONFIG} of that time back, or the checkpoint with its own run"
        )


def _facts(path: Path) -> dict[str, Any]:
    """What `config.json` says.

    Raises:
        InputError: it is missing or damaged.
    """
    file = path / CONFIG
    if not file.exists():
        raise InputError(f"{path} is no run folder: it has no {CONFIG}; name the folder of an earlier run")
    try:
        facts = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"{file} cannot be read ({error}); restore it from a copy") from error
    if not isinstance(facts, dict) or "config" not in facts:
        raise InputError(f"{file} holds no config; restore it from a copy")
    return facts


def resume_training(
    path: Path, config: TrainConfig, data: TokenData, report: Callable[[str], None], team: Team = ALONE
) -> Training:
    """The run in `path` as its last checkpoint left it, or at step 0 if it has none; hold `run_lock` meanwhile.

    Metrics of later steps are dropped: these steps come again, bit for bit. `report` gets a sentence for each damaged
    checkpoint that was passed over.

    Raises:
        InputError: the text or tokenizer is another than the run's, no checkpoint is whole, or the latest that is does
            not fit the model.
    """
    about = _facts(path).get("data", {})
    _require_same_text(path, about.get("fingerprint"), about.get("tokenizer", {}).get("fingerprint"), data)
    latest = _agreed_checkpoint(path / CHECKPOINTS, report, team)
    training = build_training(config, data, team.folder(path), team)
    if latest is not None:
        require_same_model(latest, read_facts(latest), config)
        facts = training.engine.load(latest, training.optimizer.by_name)
        _require_same_text(latest, facts["text_fingerprint"], facts["tokenizer_fingerprint"], data)
        training = dataclasses.replace(training, progress=_progress(facts))
    store_tokenizer(training.folder, data.tokenizer)  # earlier versions did not
    team.in_turn(lambda: _cut_logs(path, training.progress.step) if team.leads else None)
    _replay_alarms(training)
    return training


def _agreed_checkpoint(folder: Path, report: Callable[[str], None], team: Team) -> Path | None:
    """The latest whole checkpoint, looked for by the leader alone: it is read in full."""
    latest = team.in_turn(lambda: _latest_whole(folder, report) if team.leads else None)
    found = checkpoints_by_step(folder)
    step = team.leaders(next((step for step, path in found.items() if path == latest), -1))
    return found[step] if step >= 0 else None


def _latest_whole(folder: Path, report: Callable[[str], None]) -> Path | None:
    faults: list[str] = []
    latest = latest_checkpoint(folder, faults.append)
    if faults and latest is None:
        raise InputError(
            f"none of {len(faults)} checkpoints in {folder} is whole ({faults[0].partition(';')[0]}); "
            "restore one from a copy, or remove them to train again from step 0"
        )
    for fault in faults:
        report(fault)
    return latest


def _cut_logs(path: Path, step: int) -> None:
    for name in (METRICS, PROBES):
        RunFolder.reopen(path, step, name)


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


def _require_same_text(place: Path, text: str | None, tokenizer: str | None, data: TokenData) -> None:
    """Refuse text or tokenizer other than those of a run or checkpoint; None where it does not tell."""
    for name, then, now in (("text", text, data.fingerprint), ("tokenizer", tokenizer, data.tokenizer.fingerprint)):
        if then is not None and then != now:
            raise InputError(
                f"{place} was trained on another {name} (fingerprint {then}, here {now}); "
                f"bring back that {name}, or start a new run"
            )
