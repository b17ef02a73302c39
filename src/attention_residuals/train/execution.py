"""How a built model is run: compiled sublayers, recomputed steps, precision. Names and results stay the same."""

from contextlib import AbstractContextManager

import torch

from attention_residuals.errors import InputError
from attention_residuals.models import Decoder, recompute_steps
from attention_residuals.train.config import Precision, Recompute, TrainConfig


def require_device(name: str) -> None:
    """Refuse a device before anything is done for it.

    Raises:
        InputError: torch cannot use it here.
    """
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        there = "cpu or cuda" if torch.cuda.is_available() else "cpu"
        raise InputError(
            f"device {name} cannot be used here; choose {there}, or another that torch has here"
        ) from error


def prepare_execution(model: Decoder, config: TrainConfig) -> None:
    """Apply the config's compilation and recomputation to a built model, in place."""
    if config.compile_sublayers:
        # Sublayers and not steps: a function that is handed the state is compiled anew for every number of sources.
        for sublayer in model.sublayers.values():
            sublayer.compile()
    if config.recompute is not Recompute.NONE:
        every = 2 if config.recompute is Recompute.ALTERNATE else 1
        recompute_steps(model, lambda i: i % every == 0)


def autocast(config: TrainConfig) -> AbstractContextManager[object]:
    """The context that a forward and its loss run in."""
    kind = torch.device(config.device).type
    return torch.autocast(kind, torch.bfloat16, enabled=config.precision is Precision.BFLOAT16)
