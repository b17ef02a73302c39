"""Tuning of a converted model, from its first validation to its last, in functions that read top to bottom."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from attention_residuals.errors import InputError, TrainingStoppedError
from attention_residuals.retrofit.adapters import save_depth
from attention_residuals.retrofit.fingerprints import unwrapped
from attention_residuals.retrofit.tuning.config import TuneConfig
from attention_residuals.retrofit.tuning.lora import add_lora, has_lora
from attention_residuals.retrofit.tuning.losses import next_token_losses, validation_losses
from attention_residuals.retrofit.tuning.parts import Groups, Part, trainable
from attention_residuals.retrofit.tuning.state import load_state, save_state
from attention_residuals.retrofit.tuning.text import TuningText
from attention_residuals.retrofit.wiring import walks_of
from attention_residuals.train.alarms import Alarms
from attention_residuals.train.optimizers import FUSED_DEVICES, Optimizers
from attention_residuals.train.runs import RunFolder

DEPTH = "depth"
"""Folder of the depth adapter, inside that of a tuning; `LORA` is that of the low-rank one."""

LORA = "lora"

DEPTH_AND_LORA = {Part.QUERIES, Part.KEYS, Part.LORA}
"""Parts that leave the base as it was, so that adapters tell everything."""


@dataclass
class Progress:
    """What a tuning knows of its past.

    `before` is the validation loss before any step, `window_losses` that of each window lately.
    """

    step: int = 0
    seconds: float = 0.0
    before: float = math.nan
    window_losses: tuple[float, ...] = ()


@dataclass(frozen=True, eq=False)
class Tuning:
    """A tuning under way: what it was asked, what it computes with, where it writes, how far it is."""

    config: TuneConfig
    model: Any
    text: TuningText
    groups: Groups
    optimizers: Optimizers
    alarms: Alarms
    folder: RunFolder | None = None
    progress: Progress = field(default_factory=Progress)

    @property
    def trained(self) -> dict[str, nn.Parameter]:
        """What is trained, by name."""
        return {name: parameter for group in self.groups.values() for name, parameter in group.items()}

    @property
    def parameters(self) -> int:
        """How many numbers are trained."""
        return sum(parameter.numel() for parameter in self.trained.values())


def start_tuning(model: Any, text: TuningText, config: TuneConfig) -> Tuning:
    """Choose what is trained and give it an optimiser; low-rank matrices are added if they are asked for.

    Raises:
        InputError: a model that is no causal language model, or not converted where its depth is to be trained; trained
            parameters in a narrow type; a vocabulary smaller than the text's.
    """
    _require_causal(model)
    parts = config.parts
    if parts & {Part.QUERIES, Part.KEYS} and not walks_of(model):
        raise InputError(f"{type(model).__name__} has no depth attention; convert it with retrofit, or give --block")
    if Part.LORA in parts and not has_lora(model):
        with torch.random.fork_rng():
            torch.manual_seed(config.seed)
            model = add_lora(model, config.lora_rank, targets=config.lora_targets, alpha=config.lora_alpha)
    groups = trainable(model, config.train)
    _require_wide(groups)
    vocabulary = model.get_input_embeddings().weight.shape[0]
    most = text.about.get("vocab_size", 0)
    if most > vocabulary:
        raise InputError(f"the tokenizer has {most} tokens and the model {vocabulary}; use the model's own tokenizer")
    if config.recompute:
        model.activation_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    alarms = Alarms(vocabulary, config.schedule.warmup_steps(config.steps))
    return Tuning(config, model, text, groups, build_optimizers(groups, config), alarms)


def build_optimizers(groups: Groups, config: TuneConfig) -> Optimizers:
    """AdamW with a group for each role."""
    named = [
        {
            "params": list(parameters.values()),
            "names": list(parameters),
            "role": role.value,
            "lr": config.rate_of(role),
            "peak_lr": config.rate_of(role),
            "weight_decay": config.decay_of(role),
        }
        for role, parameters in groups.items()
    ]
    devices = {parameter.device.type for parameters in groups.values() for parameter in parameters.values()}
    fused = True if devices <= set(FUSED_DEVICES) else None
    return Optimizers({"adamw": torch.optim.AdamW(named, betas=config.betas, fused=fused)}, config.clip_norm)


def go_on(tuning: Tuning, folder: Path) -> None:
    """Go on from the state in the folder of a tuning.

    Raises:
        InputError: see `load_state`.
    """
    facts = load_state(folder, tuning.model, tuning.trained, tuning.optimizers)
    progress = tuning.progress
    progress.step, progress.seconds, progress.before = int(facts["step"]), facts["seconds"], facts["before"]


def tuning_steps(tuning: Tuning) -> Iterator[dict[str, Any]]:
    """Tune, one optimiser step each time the next record is asked for.

    A record holds step (1-based), tokens, seconds (of steps alone), loss, rate (share of the peak), gradient norm,
    where due the validation loss, and alarms if there are any. What is due to be saved is on disk before it is yielded.

    Raises:
        TrainingStoppedError: loss or gradient is no longer finite, and the weights are those before the bad step; or
            the validation loss is not, and the step that broke it is not on disk.
        InputError: the disk refuses.
    """
    config, progress = tuning.config, tuning.progress
    if progress.step == 0 and math.isnan(progress.before):
        progress.before = validate(tuning)
    for step in range(progress.step, config.steps):
        batch = tuning.text.windows.batch(config.seed, step, config.batch_sequences).to(tuning.model.device)
        begun = time.perf_counter()
        factor = config.schedule.factor(step, config.steps)
        tuning.optimizers.set_rate(factor)
        loss, norm = optimizer_step(tuning, batch)
        progress.seconds += time.perf_counter() - begun
        progress.step = step + 1
        record: dict[str, Any] = {
            "step": progress.step,
            "tokens": progress.step * batch[:, 1:].numel(),
            "seconds": progress.seconds,
            "loss": loss,
            "rate": factor,
            "gradient_norm": norm,
        }
        last = progress.step == config.steps
        if last or progress.step % config.evaluate_every_steps == 0:
            record["validation_loss"] = validate(tuning)
        if warnings := tuning.alarms.of_record(record):
            record["alarms"] = warnings
        if tuning.folder is not None:
            tuning.folder.log(record)
            if last or (config.save_every_steps and progress.step % config.save_every_steps == 0):
                save_tuning(tuning)
        yield record


def optimizer_step(tuning: Tuning, batch: Int[Tensor, "sequences time"]) -> tuple[float, float]:
    """Forward, backward, clip, step; the loss in nats a token and the gradient norm before clipping.

    Raises:
        TrainingStoppedError: one of them is not finite.
    """
    tuning.model.train()
    tuning.optimizers.zero_grad()
    loss = next_token_losses(tuning.model, batch, tuning.text.prefix).mean()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(list(tuning.trained.values()), tuning.optimizers.clip_norm)
    values = float(loss.detach()), norm.item()
    for kind, value in zip(("loss", "gradient norm"), values, strict=True):
        if not math.isfinite(value):
            raise _stopped(tuning, kind, value, tuning.progress.step + 1)
    tuning.optimizers.step()
    return values


def validate(tuning: Tuning) -> float:
    """Mean loss of the validation windows in nats a token; that of each one is noted.

    Raises:
        TrainingStoppedError: it is not finite.
    """
    windows = tuning.text.windows.validation_windows(tuning.config.evaluation_tokens)
    losses = validation_losses(tuning.model, windows, tuning.text.prefix)
    if not bool(losses.isfinite().all()):
        raise _stopped(tuning, "validation loss", losses.mean().item(), tuning.progress.step)
    tuning.progress.window_losses = tuple(losses.tolist())
    return losses.mean().item()


def save_tuning(tuning: Tuning) -> None:
    """Write the state, and the adapters where they tell everything that was trained."""
    folder, config, progress = tuning.folder, tuning.config, tuning.progress
    assert folder is not None
    facts = {"step": progress.step, "seconds": progress.seconds, "before": progress.before}
    save_state(folder.path, tuning.model, tuning.trained, tuning.optimizers, facts)
    if config.parts <= DEPTH_AND_LORA:
        if walks_of(tuning.model):
            save_depth(tuning.model, folder.path / DEPTH)
        if Part.LORA in config.parts:
            tuning.model.save_pretrained(folder.path / LORA)


def describe(tuning: Tuning) -> list[str]:
    """The groups in words, so that a wrong one is seen before the first step."""
    return [
        f"{row['role']}: {row['parameters']:,} parameters in {row['tensors']} tensors, rate {row['learning_rate']:g}, "
        f"decay {row['weight_decay']:g}"
        for row in tuning.optimizers.describe()
    ]


def _stopped(tuning: Tuning, kind: str, value: float, step: int) -> TrainingStoppedError:
    rates = ", ".join(f"{row['role']} {row['learning_rate']:g}" for row in tuning.optimizers.describe())
    if tuning.progress.step == 0:
        advice = "the model or its text is at fault rather than the rate; load the model in float32"
    else:
        advice = f"take a third of the peak rates ({rates}), and go on from an adapter of before if there is one"
    return TrainingStoppedError(f"{kind} is {value} at step {step}; {advice}")


def _require_causal(model: Any) -> None:
    from transformers import PreTrainedModel

    inner: Any = unwrapped(model)
    if not isinstance(inner, PreTrainedModel) or inner.get_output_embeddings() is None:
        raise InputError(f"{type(inner).__name__} gives no logits of next tokens; load the model as a causal one")
    if getattr(inner.config, "is_encoder_decoder", False):
        raise InputError(f"{type(inner).__name__} has an encoder; tune it with the Trainer of transformers")


def _require_wide(groups: Groups) -> None:
    for group in groups.values():
        for name, parameter in group.items():
            if parameter.dtype in (torch.float16, torch.bfloat16):
                raise InputError(
                    f"{name} is {str(parameter.dtype).removeprefix('torch.')}, in which small steps are lost; load the "
                    "model with dtype=torch.float32, or train queries or lora alone"
                )
