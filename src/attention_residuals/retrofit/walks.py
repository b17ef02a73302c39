"""The four verbs of a stream while another model's own code runs: what is in flight, and when it ends."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias, final

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from attention_residuals.errors import InputError
from attention_residuals.retrofit.declarations import Increment
from attention_residuals.retrofit.recompute import carry
from attention_residuals.streams import AttnResStream, State

Reader: TypeAlias = Callable[[AttnResStream, State, int], Tensor]
"""What read `i` of a stream sees; `i = sublayers` is the read of the final norm."""


class Place(NamedTuple):
    """Where a module stood when it was converted."""

    parent: nn.Module
    name: str
    module: nn.Module


class Run(NamedTuple):
    """Where a forward stands. It is never changed, so that to remember one is to keep a reference.

    `written` sublayers are in `state`; `pending` are outputs of the next one, of which more will come; `mixture` is
    what it reads, once it was asked for.
    """

    state: State
    written: int
    pending: tuple[Float[Tensor, "*tokens width"], ...] = ()
    mixture: Float[Tensor, "*tokens width"] | None = None


class Flight(threading.local):
    """The run of each thread, so that threads may share a model. A copy of it is empty: no copy shares a forward."""

    run: Run | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> "Flight":
        return Flight()

    def __reduce__(self) -> tuple[type["Flight"], tuple[()]]:
        return Flight, ()


class Walk(ABC):
    """What hooks tell of a forward. `sublayers` are those (0-based) that a module may read or write for."""

    @abstractmethod
    def enter(self, layer: nn.Module, hidden: Tensor) -> None:
        """`hidden` enters a layer."""

    @abstractmethod
    def read(self, sublayers: Sequence[int], hidden: Tensor) -> Tensor:
        """A reader is given `hidden`; what it shall see instead."""

    @abstractmethod
    def write(self, sublayers: Sequence[int], output: Tensor) -> None:
        """A writer gave `output`."""

    @abstractmethod
    def finish(self, hidden: Tensor) -> Tensor:
        """The final norm is given `hidden`; what it shall see instead."""

    @abstractmethod
    def leave(self) -> None:
        """The owner of the stack returned or raised."""


@final
class DepthWalk(Walk):
    """Reads over depth in place of the running sum.

    `places` are those of all modules that it hears of. A `reader`, if there is one, gives what reads see instead.
    """

    def __init__(
        self,
        name: str,
        stream: AttnResStream,
        increments: Sequence[Increment],
        first: nn.Module,
        places: Sequence[Place] = (),
    ):
        self.name, self.stream, self.increments, self.first = name, stream, tuple(increments), first
        self.places = tuple(places)
        self.reader: Reader | None = None
        self.flight = Flight()

    def enter(self, layer: nn.Module, hidden: Tensor) -> None:
        if layer is self.first:
            self._require_plain_parameters()
            self._require_places()
            self.flight.run = Run(self.stream.start(hidden), 0)
        carry(layer, self.flight)

    def read(self, sublayers: Sequence[int], hidden: Tensor) -> Tensor:
        run = self._run(sublayers)
        if run.mixture is None:
            run = run._replace(mixture=self._mixture(run.state, run.written))
            self.flight.run = run
        assert run.mixture is not None
        return run.mixture

    def write(self, sublayers: Sequence[int], output: Tensor) -> None:
        run = self._run(sublayers)
        i, pending = run.written, (*run.pending, output)
        increment = self.increments[i]
        if len(pending) < len(increment.writers):
            self.flight.run = run._replace(pending=pending)
            return
        self.flight.run = Run(self.stream.write(run.state, i, total(increment, pending)), i + 1)

    def finish(self, hidden: Tensor) -> Tensor:
        run = self.flight.run
        if run is None:  # someone looks at hidden states through the final norm, outside any forward
            return hidden
        self._require_all(run.written, len(self.increments))
        self.flight.run = None
        return self._mixture(run.state, run.written)

    def leave(self) -> None:
        self.flight.run = None

    def _mixture(self, state: State, i: int) -> Tensor:
        if self.reader is not None:
            return self.reader(self.stream, state, i)
        return self.stream.finish(state) if i == len(self.increments) else self.stream.read(state, i)

    def _run(self, sublayers: Sequence[int]) -> Run:
        run = self.flight.run
        if run is None:
            raise InputError(
                f"{self.increments[sublayers[0]].name} runs outside a forward of {self.name}, where nothing was "
                "written that it could read; call the whole model, and for activation checkpoints use its own "
                "activation_checkpointing_enable()"
            )
        if run.written not in sublayers:
            self._require_all(run.written, sublayers[0])
        return run

    def _require_all(self, written: int, wanted: int) -> None:
        if written != wanted:
            raise InputError(
                f"{self.increments[min(written, len(self.increments) - 1)].name} was skipped or runs out of order, and "
                f"reads over depth need every increment of {self.name}; set layerdrop to 0, and give a decoder the "
                "encoder states it was converted with"
            )

    def _require_plain_parameters(self) -> None:
        for parameter in self.stream.parameters():
            if isinstance(parameter, DTensor):
                raise InputError(
                    f"the parameters of {self.name} are sharded (DTensor), and increments leave layers beside their "
                    "outputs, where FSDP2 does not see them; train a converted model with DDP"
                )
            return

    def _require_places(self) -> None:
        """Hooks stay with a module that another one is wrapped around, and would not see what that one adds."""
        for parent, name, module in self.places:
            if parent._modules[name] is not module:
                raise InputError(
                    f"{name} of {type(parent).__name__} was replaced by {type(parent._modules[name]).__name__} after "
                    "the conversion, and depth attention would go past it; leave it out of target_modules and "
                    "modules_to_save of peft (attention_residuals.retrofit.trainable and save_depth do it for depth)"
                )


def total(increment: Increment, outputs: Sequence[Tensor]) -> Float[Tensor, "*tokens width"]:
    """What is added to the stream for the outputs of the writers of a sublayer."""
    summed = sum(outputs[1:], start=outputs[0])
    if increment.scale != 1.0:
        summed = summed * increment.scale
    if increment.dropout and increment.layer.training:
        summed = F.dropout(summed, increment.dropout)
    return summed
