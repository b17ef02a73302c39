"""How a built model is run: compiled sublayers, recomputed steps, precision. Names and results stay the same."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from attention_residuals.errors import InputError
from attention_residuals.models import Decoder
from attention_residuals.nn import Context
from attention_residuals.streams import State
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
        model.step = _recomputed(model.step, every)


def autocast(config: TrainConfig) -> AbstractContextManager[object]:
    """The context that a forward and its loss run in."""
    kind = torch.device(config.device).type
    return torch.autocast(kind, torch.bfloat16, enabled=config.precision is Precision.BFLOAT16)


def _recomputed(step: Callable[[State, int, Context | None], State], every: int) -> Any:
    def recomputed(state: State, i: int, context: Context | None = None) -> State:
        if i % every or not torch.is_grad_enabled():
            return step(state, i, context)
        return checkpoint(step, state, i, context, use_reentrant=False)

    return recomputed
