"""Activation checkpoints of `transformers`: a layer that runs again sees the stream as it entered the layer.

Layers are wrapped from inside, below all hooks, and the recomputing call is a closure over their arguments. So the
state of the stream goes into a closure too: it lives as long as the graph that may need it, and no longer.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, final

import torch
from torch import nn

from attention_residuals.errors import InputError

if TYPE_CHECKING:
    from attention_residuals.retrofit.walks import Flight, Run

FUNCTION = "_gradient_checkpointing_func"
"""Where `transformers` keeps the checkpointing function of a layer."""


def carry(layer: nn.Module, flight: "Flight") -> None:
    """Have the checkpoints of a layer that is about to run remember what is in flight, if it has any."""
    if not getattr(layer, "gradient_checkpointing", False):
        return
    function = getattr(layer, FUNCTION)
    if not isinstance(function, CarryingCheckpoint):  # they set a new one whenever checkpointing is enabled
        setattr(layer, FUNCTION, CarryingCheckpoint(flight, function))


@final
class CarryingCheckpoint:
    """A checkpointing function that also carries the run of a flight."""

    def __init__(self, flight: "Flight", checkpoint: Callable[..., Any]):
        self.flight, self.checkpoint = flight, checkpoint

    def __call__(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        return self.checkpoint(Recomputed(self.flight, function), *arguments, **options)


@final
class Recomputed:
    """A function whose second call, and each later one, finds in flight what the first one found."""

    def __init__(self, flight: "Flight", function: Callable[..., Any]):
        self.flight, self.function, self.run = flight, function, flight.run
        self.is_first, self.has_gradients = True, torch.is_grad_enabled()

    def __call__(self, *arguments: Any) -> Any:
        if self.is_first:
            self.is_first = False
            if self.has_gradients and not torch.is_grad_enabled():
                raise InputError(
                    "gradient checkpointing is reentrant, and that way the reads over depth would get no gradients; "
                    'give gradient_checkpointing_kwargs={"use_reentrant": False}'
                )
            return self.function(*arguments)
        return self._again(self.run, *arguments)

    def _again(self, run: "Run | None", *arguments: Any) -> Any:
        before = self.flight.run
        self.flight.run = run
        try:
            return self.function(*arguments)
        finally:  # a checkpoint stops as soon as it has what it needs, by an exception
            self.flight.run = before
