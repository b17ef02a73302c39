"""Steps that are computed again in the backward instead of being kept: less memory for more time, equal results."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from attention_residuals.models.decoder import Backbone
from attention_residuals.nn import Context
from attention_residuals.streams import State


@dataclass(frozen=True, eq=False)
class RecomputedStep:
    """`Backbone.step`, with the chosen steps in activation checkpoints.

    It holds the model rather than a bound method, so that a copy of the model has a step of its own.

    Args:
        model: whose steps they are.
        chosen: whether the step of sublayer `i` (0-based) is recomputed.
        checkpoint: `torch.utils.checkpoint.checkpoint`, or a function that stands for it.
    """

    model: Backbone
    chosen: Callable[[int], bool]
    checkpoint: Callable[..., Any] = checkpoint

    def __call__(self, state: State, i: int, context: Context | None = None) -> State:
        cached = context is not None and context.cache is not None  # a step that fills a cache must not run twice
        if cached or not self.chosen(i) or not torch.is_grad_enabled():
            return Backbone.step(self.model, state, i, context)
        # Never reentrant: that way does not see tensors inside a tuple, and most parameters would get no gradient.
        return self.checkpoint(Backbone.step, self.model, state, i, context, use_reentrant=False)


def recompute_steps(
    model: Backbone, chosen: Callable[[int], bool], checkpoint: Callable[..., Any] = checkpoint
) -> None:
    """Recompute the chosen steps of a model from here on; arguments as in `RecomputedStep`."""
    model.step = RecomputedStep(model, chosen, checkpoint)


def keep_steps(model: Backbone) -> None:
    """Recompute none."""
    model.__dict__.pop("step", None)
