"""Training, from the first step to the final numbers, in functions that read top to bottom."""

import functools
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor

from attention_residuals.errors import TrainingStoppedError
from attention_residuals.models import Decoder
from attention_residuals.train.alarms import Alarms
from attention_residuals.train.checkpoints import prune
from attention_residuals.train.config import TrainConfig
from attention_residuals.train.engine import Engine, LocalEngine
from attention_residuals.train.optimizers import Optimizers, build_optimizers_of
from attention_residuals.train.runs import METRICS, RunFolder
from attention_residuals.train.team import ALONE, Team
from attention_residuals.train.text import JsonTokenizer, TokenData, Tokenizer, bits

CONFIG = "config.json"
CHECKPOINTS = "checkpoints"
PROBES = "probes.jsonl"
TOKENIZER = "tokenizer.json"
"""The run's tokenizer, unless its tokens are bytes: whoever uses the weights later needs neither text nor cache."""


@dataclass
class Progress:
    """What a run knows of its past; it goes into every checkpoint. `best_step` is a step that was checkpointed."""

    step: int = 0
    seconds: float = 0.0
    best_step: int | None = None
    best_loss: float = math.inf


@dataclass(frozen=True, eq=False)
class Training:
    """A run under way: what it was asked, what it computes with, where it writes, how far it is."""

    config: TrainConfig
    data: TokenData
    engine: Engine
    optimizer: Optimizers
    folder: RunFolder
    alarms: Alarms
    progress: Progress = field(default_factory=Progress)

    @property
    def model(self) -> Decoder:
        """The model of a run on one process."""
        assert isinstance(self.engine, LocalEngine)
        return self.engine.model

    @property
    def checkpoints(self) -> Path:
        """Where its checkpoints lie."""
        return self.folder.path / CHECKPOINTS


def start_training(
    config: TrainConfig, data: TokenData, path: Path, *, about: dict[str, Any], team: Team = ALONE
) -> Training:
    """Build the model and its optimiser and open the run's folder; `about` joins the config in `config.json`."""
    if team.leads:
        RunFolder.create(path)
    folder = team.folder(path)
    try:
        training = build_training(config, data, folder, team)
        whole = training.engine.whole
        parameters = sum(parameter.numel() for parameter in whole.parameters())
        facts = {"config": config, "parameters": parameters, "stream": whole.stream.describe()}
        store_tokenizer(folder, data.tokenizer)
        folder.write_json(CONFIG, {**facts, **about})
    except BaseException:
        if team.leads:
            (path / TOKENIZER).unlink(missing_ok=True)
            path.rmdir()  # without its config it is no run, and its name stays free
        raise
    return training


def store_tokenizer(folder: RunFolder, tokenizer: Tokenizer) -> None:
    """Keep a tokenizer with the run, unless it is there or its tokens are bytes."""
    if isinstance(tokenizer, JsonTokenizer) and not (folder.path / TOKENIZER).exists():
        folder.write_text(TOKENIZER, tokenizer.json)


def build_training(config: TrainConfig, data: TokenData, folder: RunFolder, team: Team = ALONE) -> Training:
    """A run at step 0 in a folder that is open."""
    data.require_vocabulary(config.model.vocab_size)
    engine = team.engine(config)
    alarms = Alarms(config.model.vocab_size, config.schedule.warmup_steps(config.steps))
    return Training(config, data, engine, build_optimizers_of(engine.parts, config.optimizer), folder, alarms)


def training_steps(training: Training) -> Iterator[dict[str, Any]]:
    """Train, one optimiser step each time the next record is asked for, so that several runs can take turns.

    A record holds step (1-based), tokens, seconds (of this run's own work, evaluation and saving apart), loss, rate and
    gradient norm, with experts the largest load over the mean, that of the worst layer (`expert_peak`), where due the
    validation loss, and alarms if there are any. Before it is yielded it is in
    `metrics.jsonl`, and a checkpoint that is due is on disk.

    Raises:
        TrainingStoppedError: loss or gradient is no longer finite, and the weights are those before the bad step; or
            the validation loss is not, and the step that broke it is neither on record nor in a checkpoint.
        CheckpointError: a checkpoint could not be saved; those before it are whole.
        InputError: the disk refuses a line of the metrics.
    """
    config, data, progress = training.config, training.data, training.progress
    windows = data.validation_windows(config.evaluation_tokens)
    for step in range(progress.step, config.steps):
        batch = data.batch(config.seed, step, config.batch_sequences).to(config.device)
        begun = time.perf_counter()
        factor = config.schedule.factor(step, config.steps)
        training.optimizer.set_rate(factor)
        loss, norm = optimizer_step(training, batch, step)
        progress.seconds += time.perf_counter() - begun
        progress.step = step + 1
        record: dict[str, Any] = {
            "step": progress.step,
            "tokens": progress.step * config.batch_sequences * data.sequence_tokens,
            "seconds": progress.seconds,
            "loss": loss,
            "rate": factor,
            "gradient_norm": norm,
        }
        if peaks := training.engine.balance(config.router_bias_rate):
            record["expert_peak"] = max(peaks.values())
        saving = _due(progress.step, config.checkpoint_every_steps, config.steps)
        if saving or _due(progress.step, config.evaluate_every_steps, config.steps):
            record["validation_loss"] = _validate(training, windows)
        warnings = training.alarms.of_record(record)
        if config.probe_every_steps and progress.step % config.probe_every_steps == 0:
            warnings += _probe(training, batch)
        if warnings:
            record["alarms"] = warnings
        training.folder.log(record)
        if saving:
            save_training(training, record["validation_loss"])
        yield record


def _probe(training: Training, batch: Int[Tensor, "sequences time"]) -> list[str]:
    """Log what happens along the depth; the alarms it gives rise to."""
    step, found = training.progress.step, training.engine.probe(batch)
    if found is None:
        return []
    training.folder.log({"step": step, **vars(found)}, PROBES)
    return training.alarms.of_probe(found, step)


def _validate(training: Training, windows: Int[Tensor, "windows time"]) -> float:
    """Mean validation loss. Weights that the last step broke must not become the latest checkpoint.

    Raises:
        TrainingStoppedError: it is not finite.
    """
    loss = evaluate(training, windows).mean().item()
    if not math.isfinite(loss):
        raise _stopped(training, "validation loss", loss, training.progress.step, windows)
    return loss


def _stopped(
    training: Training, kind: str, value: float, step: int, batch: Int[Tensor, "sequences time"]
) -> TrainingStoppedError:
    """Which number is no longer finite, since which step, and where it began."""
    config, bad = training.config, training.engine.first_bad(batch)
    return TrainingStoppedError(
        f"{kind} of '{config.name}' (seed {config.seed}) is {value} at step {step}, beginning with {bad}; "
        "checkpoints are of earlier steps and stay. A lower rate usually helps"
    )


def _due(step: int, every: int, last: int) -> bool:
    return every > 0 and (step % every == 0 or step == last)


def optimizer_step(training: Training, batch: Int[Tensor, "sequences time"], step: int) -> tuple[float, float]:
    """Forward and backward part by part, clip, step; the loss in nats a token and the gradient norm before clipping."""
    engine, optimizer = training.engine, training.optimizer
    optimizer.zero_grad()
    loss = engine.backward(batch)
    norm = engine.gradient_norm()
    values = float(loss), norm.item()
    for kind, value in zip(("loss", "gradient norm"), values, strict=True):
        if not math.isfinite(value):  # asked before clipping, which would spread it to every gradient
            raise _stopped(training, kind, value, step + 1, batch)
    engine.clip_gradients(optimizer.clip_norm, norm)
    optimizer.step()
    return values


def evaluate(training: Training, windows: Int[Tensor, "windows time"]) -> Float[Tensor, "windows"]:
    """Mean loss of each window in nats a token, in float64 on the CPU; computed as training computes."""
    return training.engine.losses(windows)


def save_training(training: Training, validation_loss: float | None = None) -> None:
    """Checkpoint the run as it stands and drop old checkpoints, the best one excepted."""
    config, progress = training.config, training.progress
    if validation_loss is not None and validation_loss < progress.best_loss:
        progress.best_step, progress.best_loss = progress.step, validation_loss
    facts = {
        "config": config,
        "text_fingerprint": training.data.fingerprint,
        "tokenizer_fingerprint": training.data.tokenizer.fingerprint,
        "seconds": progress.seconds,
        "best_step": progress.best_step,
        "best_loss": progress.best_loss if progress.best_step is not None else None,
    }
    training.folder.sync(METRICS, PROBES)  # after a power cut too, a checkpoint finds the lines up to its step
    training.engine.save(
        training.checkpoints,
        step=progress.step,
        optimizers=training.optimizer.by_name,
        facts=facts,
        after=functools.partial(prune, training.checkpoints, config.keep_checkpoints, progress.best_step),
    )


def conclude(training: Training) -> dict[str, Any]:
    """Final validation and probe of a trained model, written to the folder; returns the line that ends `metrics.jsonl`.

    `validation.json` has the loss of each validation window, so that two runs can be compared window by window.
    """
    config, data = training.config, training.data
    windows = data.validation_windows(config.final_evaluation_tokens)
    losses = evaluate(training, windows)
    batch = data.batch(config.seed, config.steps, config.part_sequences).to(config.device)
    if (found := training.engine.probe(batch)) is not None:
        training.folder.write_json("probe.json", found)
    loss = losses.mean().item()
    final = {
        "final": True,
        "validation_loss": loss,
        "validation_bits_per_byte": bits(loss) / data.bytes_per_token,
        "validation_tokens": losses.numel() * data.sequence_tokens,
    }
    training.folder.log(final)
    training.folder.write_json("validation.json", {"window_losses": losses.tolist()})  # last: it marks a finished run
    return final
