"""A tuning under way as one file: what is trained, its moments, and how far it is."""

from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import nn

from attention_residuals.errors import InputError
from attention_residuals.train.checkpoint_state import (
    forms,
    fresh_moments,
    is_moment,
    optimizer_tensors,
    require_finite,
    require_model_fits,
)
from attention_residuals.train.durable import explain_refusals, replace_bytes
from attention_residuals.train.optimizers import Optimizers

STATE = "state.safetensors"


def save_state(
    folder: Path,
    model: nn.Module,
    trained: Mapping[str, nn.Parameter],
    optimizers: Optimizers,
    facts: Mapping[str, float],
) -> None:
    """Write trained parameters, moments and some numbers, at one stroke.

    Raises:
        InputError: the disk refuses.
    """
    tensors = {name: parameter.detach().cpu().contiguous() for name, parameter in trained.items()}
    tensors |= optimizer_tensors(model, optimizers.by_name)
    with explain_refusals(folder / STATE, "make room there; --continue goes on from the last whole one"):
        replace_bytes(folder / STATE, save(tensors, {name: repr(value) for name, value in facts.items()}))


def load_state(
    folder: Path, model: nn.Module, trained: Mapping[str, nn.Parameter], optimizers: Optimizers
) -> dict[str, float]:
    """Bring a tuning to where `save_state` left it; the numbers that came with it.

    Raises:
        InputError: a file that is missing, damaged or of another tuning. Nothing was changed then.
    """
    path = folder / STATE
    try:
        with safe_open(path, framework="pt") as file:
            facts = {name: float(value) for name, value in (file.metadata() or {}).items()}
            saved = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, ValueError) as error:
        raise InputError(f"{path} cannot be gone on from ({error}); start anew in another folder") from error
    weights = {name: value for name, value in saved.items() if not is_moment(name)}
    moments = {name: value for name, value in saved.items() if is_moment(name)}
    require_model_fits(path, forms(weights), forms(trained))
    require_finite(path, saved)
    for name, value in weights.items():
        trained[name].data.copy_(value)
    for name, empty in fresh_moments(moments, [model], optimizers.by_name).items():
        empty.copy_(moments[name])
    return facts
