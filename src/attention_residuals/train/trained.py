"""What training left behind, for use: the model at a checkpoint, its tokenizer and its config."""

import json
import warnings
from dataclasses import dataclass
from pathlib import Path

from attention_residuals.errors import InputError
from attention_residuals.models import BackboneConfig, Decoder
from attention_residuals.models.meta import without_values
from attention_residuals.train.checkpoint_files import STATE, CheckpointError, damage
from attention_residuals.train.checkpoint_state import forms, require_finite, require_model_fits
from attention_residuals.train.checkpoints import checkpoints_by_step, latest_checkpoint, read_weights
from attention_residuals.train.config import TrainConfig
from attention_residuals.train.execution import require_device
from attention_residuals.train.loop import CHECKPOINTS, TOKENIZER
from attention_residuals.train.resume import read_config, require_same_model
from attention_residuals.train.text import ByteTokenizer, JsonTokenizer, Tokenizer


@dataclass(frozen=True)
class Trained:
    """A model as it was after `step` steps, in evaluation mode, with the tokenizer it was trained with."""

    config: TrainConfig
    model: Decoder
    tokenizer: Tokenizer
    step: int


def load_trained(path: Path, *, step: int | None = None, device: str = "cpu") -> Trained:
    """The model of the run in `path` at one of its checkpoints: that of `step`, or the latest that is whole.

    Warns of damaged checkpoints that were passed over. Weights are float32, as they were trained.

    Raises:
        InputError: `path` is no run folder, has no such checkpoint or none that is whole, or its tokenizer is gone; the
            weights are of another model or not finite; the device cannot be used. Damage is a `CheckpointError`.
    """
    require_device(device)
    config = read_config(path)
    checkpoint = _latest(path) if step is None else _at_step(path, step)
    state = json.loads((checkpoint / STATE).read_bytes())
    require_same_model(checkpoint, state["facts"], config)
    tokenizer = _tokenizer(path, config, state["facts"]["tokenizer_fingerprint"])
    return Trained(config, _model(checkpoint, config.model, device), tokenizer, state["step"])


def _latest(path: Path) -> Path:
    if not checkpoints_by_step(path / CHECKPOINTS):
        raise InputError(
            f"{path} has no checkpoint, so its weights are gone; train with checkpoint_every_steps=N, for example "
            "attnres train RECIPE checkpoint_every_steps=100"
        )
    faults: list[str] = []
    latest = latest_checkpoint(path / CHECKPOINTS, faults.append)
    if latest is None:
        raise CheckpointError(
            f"none of {len(faults)} checkpoints in {path / CHECKPOINTS} is whole ({faults[0].partition(';')[0]}); "
            "restore one from a copy"
        )
    for fault in faults:
        warnings.warn(f"{fault.partition(';')[0]}; {latest.name} is used", stacklevel=3)
    return latest


def _at_step(path: Path, step: int) -> Path:
    found = checkpoints_by_step(path / CHECKPOINTS)
    if step not in found:
        there = ", ".join(map(str, found)) or "none; train with checkpoint_every_steps=N"
        raise InputError(f"{path} has no checkpoint of step {step}; there are {there}")
    fault = damage(found[step])
    if fault is not None:
        raise CheckpointError(fault)
    return found[step]


def _model(checkpoint: Path, config: BackboneConfig, device: str) -> Decoder:
    with without_values():
        model = Decoder(config)
    weights = read_weights(checkpoint)
    require_model_fits(checkpoint, forms(weights), forms(model.state_dict()))
    require_finite(checkpoint, weights)
    model.load_state_dict({name: tensor.to(device) for name, tensor in weights.items()}, assign=True)
    return model.eval()


def _tokenizer(path: Path, config: TrainConfig, fingerprint: str) -> Tokenizer:
    """The run's tokenizer; `fingerprint` is what its checkpoint says of it."""
    name = config.text.tokenizer
    if fingerprint == ByteTokenizer.fingerprint:
        return ByteTokenizer()
    file = path / TOKENIZER
    try:
        tokenizer = JsonTokenizer(name, file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"{file} cannot be read ({error}); copy the tokenizers JSON of {name} there, or resume the run for a step, "
            "which writes it"
        ) from error
    if tokenizer.fingerprint != fingerprint:
        raise InputError(
            f"{file} is another tokenizer than the run was trained with (fingerprint {tokenizer.fingerprint}, then "
            f"{fingerprint}); restore it from a copy"
        )
    return tokenizer
