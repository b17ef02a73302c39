"""Training, from the first step to the final numbers, in functions that read top to bottom."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from attention_residuals.errors import require_positive
from attention_residuals.models import Decoder, DecoderConfig, build_decoder
from attention_residuals.train.optimizers import AdamW, Optimizer, Optimizers, build_optimizers
from attention_residuals.train.probes import probe
from attention_residuals.train.runs import RunFolder
from attention_residuals.train.schedules import Cosine, Schedule
from attention_residuals.train.text import TokenData, bits


class TrainingStoppedError(Exception):
    """Training cannot go on; the message says why and at which step."""


@dataclass(frozen=True)
class TrainConfig:
    """One run. Tokens a step = `batch_sequences` times the sequence length of the data."""

    name: str
    model: DecoderConfig
    steps: int
    seed: int = 0
    batch_sequences: int = 4
    optimizer: Optimizer = field(default_factory=AdamW)
    schedule: Schedule = field(default_factory=Cosine)
    evaluate_every_steps: int = 50
    evaluation_tokens: int = 16_384
    final_evaluation_tokens: int = 131_072
    device: str = "cpu"

    def __post_init__(self) -> None:
        require_positive(self, "steps", "batch_sequences", "evaluate_every_steps", "evaluation_tokens")
        require_positive(self, "final_evaluation_tokens")


@dataclass(frozen=True, eq=False)
class Training:
    """A run under way: what it was asked, what it holds, where it writes."""

    config: TrainConfig
    data: TokenData
    model: Decoder
    optimizer: Optimizers
    folder: RunFolder


def start_training(config: TrainConfig, data: TokenData, path: Path, *, about: dict[str, Any]) -> Training:
    """Build the model and its optimiser and open the run's folder; `about` joins the config in `config.json`."""
    folder = RunFolder.create(path)
    model = build_decoder(config.model, seed=config.seed, device=config.device)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    folder.write_json(
        "config.json",
        {"config": config, "parameters": parameters, "stream": model.stream.describe(), **about},
    )
    return Training(config, data, model, build_optimizers(model, config.optimizer), folder)


def training_steps(training: Training) -> Iterator[dict[str, float]]:
    """Train, one optimiser step each time the next record is asked for, so that several runs can take turns.

    A record holds step (1-based), tokens, seconds (of this run's own work, evaluation apart), loss, rate and gradient
    norm, and at intervals the validation loss. All of it is in `metrics.jsonl` before it is yielded.

    Raises:
        TrainingStoppedError: loss or gradient is no longer finite; the weights are those before the bad step.
    """
    config, data = training.config, training.data
    windows = data.validation_windows(config.evaluation_tokens)
    step_tokens = config.batch_sequences * data.sequence_tokens
    seconds = 0.0
    for step in range(config.steps):
        batch = data.batch(config.seed, step, config.batch_sequences).to(config.device)
        begun = time.perf_counter()
        factor = config.schedule.factor(step, config.steps)
        training.optimizer.set_rate(factor)
        loss, norm = optimizer_step(training, batch, step)
        seconds += time.perf_counter() - begun
        record = {
            "step": step + 1,
            "tokens": (step + 1) * step_tokens,
            "seconds": seconds,
            "loss": loss,
            "rate": factor,
            "gradient_norm": norm,
        }
        if (step + 1) % config.evaluate_every_steps == 0 or step + 1 == config.steps:
            record["validation_loss"] = evaluate(training.model, windows, config.batch_sequences).mean().item()
        training.folder.log(record)
        yield record


def optimizer_step(training: Training, batch: Int[Tensor, "sequences time"], step: int) -> tuple[float, float]:
    """Forward, backward, clip, step; the loss in nats a token and the gradient norm before clipping."""
    model, optimizer = training.model, training.optimizer
    loss = token_losses(model, batch).mean()
    optimizer.zero_grad()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), optimizer.clip_norm)
    values = loss.item(), norm.item()
    for kind, value in zip(("loss", "gradient norm"), values, strict=True):
        if not math.isfinite(value):
            raise TrainingStoppedError(
                f"{kind} of '{training.config.name}' (seed {training.config.seed}) is {value} at step {step + 1}; "
                f"training stopped before it reached the weights. A lower --lr usually helps"
            )
    optimizer.step()
    return values


def token_losses(model: Decoder, batch: Int[Tensor, "sequences time"]) -> Float[Tensor, "sequences predicted"]:
    """Cross-entropy in nats of each token given those before it, in float32 at least."""
    logits = model(batch[:, :-1])
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    losses = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten(), reduction="none")
    return losses.view(batch.shape[0], -1)


@torch.no_grad()
def evaluate(model: Decoder, windows: Int[Tensor, "windows time"], sequences: int) -> Float[Tensor, "windows"]:
    """Mean loss of each window in nats a token, `sequences` windows at a time; on the CPU, in float64."""
    device = next(model.parameters()).device
    parts = [token_losses(model, part.to(device)).double().mean(-1).cpu() for part in windows.split(sequences)]
    return torch.cat(parts)


def conclude(training: Training) -> dict[str, Any]:
    """Final validation and probe of a trained model, written to the folder; returns the line that ends `metrics.jsonl`.

    `validation.json` has the loss of each validation window, so that two runs can be compared window by window.
    """
    config, data = training.config, training.data
    windows = data.validation_windows(config.final_evaluation_tokens)
    losses = evaluate(training.model, windows, config.batch_sequences)
    batch = data.batch(config.seed, config.steps, config.batch_sequences).to(config.device)
    training.folder.write_json("validation.json", {"window_losses": losses.tolist()})
    training.folder.write_json("probe.json", probe(training.model, batch))
    final = {
        "final": True,
        "validation_loss": losses.mean().item(),
        "validation_bits_per_byte": bits(losses.mean().item()) / data.bytes_per_token,
        "validation_tokens": losses.numel() * data.sequence_tokens,
    }
    training.folder.log(final)
    return final
