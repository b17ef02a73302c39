"""One forward of the plain model, watched: whether its stream is the sum that a conversion takes it for."""

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn

from attention_residuals.errors import InputError
from attention_residuals.retrofit.declarations import Increment, Layout
from attention_residuals.retrofit.walks import Walk, total

ROUNDINGS = 4
"""Roundings allowed between what a reader sees and the sum made here; a layer has two or three."""


@final
class Observer(Walk):
    """Compares what every reader is given with what the reader before it was given, plus what was written since.

    So the check is as sharp in a narrow type as in a wide one: nothing adds up over depth.
    """

    def __init__(self, layout: Layout):
        self.layout = layout
        self.embedding: Tensor | None = None
        self.written = 0
        self._seen = torch.empty(0)
        self._pending: list[Tensor] = []
        self._since: list[tuple[Increment, Tensor, int]] = []

    def enter(self, layer: nn.Module, hidden: Tensor) -> None:
        if layer is self.layout.layers[0]:
            self.embedding, self.written, self._seen = hidden, 0, hidden.detach().clone()
            self._pending, self._since = [], []

    def read(self, sublayers: Sequence[int], hidden: Tensor) -> Tensor:
        self._require_turn(sublayers, "reads")
        self._compare(self.layout.increments[self.written].name, hidden)
        return hidden

    def write(self, sublayers: Sequence[int], output: Tensor) -> None:
        self._require_turn(sublayers, "is written")
        increment = self.layout.increments[self.written]
        self._pending.append(output)
        if len(self._pending) == len(increment.writers):
            added = total(increment, self._pending)
            self._since.append((increment, added, added._version))
            self._pending = []
            self.written += 1

    def finish(self, hidden: Tensor) -> Tensor:
        if self.written != len(self.layout.increments):
            self._refuse_order(self.layout.norm_name, "reads")
        self._compare(self.layout.norm_name, hidden)
        return hidden

    def leave(self) -> None:
        """Nothing: what was seen is asked for afterwards."""

    def require_embedding(self) -> Tensor:
        """What entered layer 0.

        Raises:
            InputError: nothing did, or not everything was written.
        """
        if self.embedding is None:
            raise InputError(
                f"the sample does not run {self.layout.name or 'the model'}; give a sample= that uses every stack"
            )
        if self.written != len(self.layout.increments):
            self._refuse_order(self.layout.norm_name, "reads")
        return self.embedding

    def _require_turn(self, sublayers: Sequence[int], verb: str) -> None:
        if self.written not in sublayers:
            self._refuse_order(self.layout.increments[sublayers[0]].name, verb)

    def _refuse_order(self, name: str, verb: str) -> None:
        due = self.layout.increments[min(self.written, len(self.layout.increments) - 1)].name
        raise InputError(
            f"{name} {verb} when the sublayer of {due} is due; declare sublayers in the order in which they run, "
            "and those that a layer may lack as optional"
        )

    def _compare(self, name: str, hidden: Tensor) -> None:
        hidden = hidden.detach()
        if not bool(hidden.isfinite().all()):
            raise InputError(f"{name} reads NaN or infinite values; give a sample= that the model can take")
        expected, size = self._seen, self._seen.abs()
        for increment, added, version in self._since:
            if added._version != version:
                raise InputError(
                    f"the output of the sublayer of {increment.name} is changed in place after it was given, so it "
                    "cannot be kept as a source; declare a later writer"
                )
            expected, size = expected + added.detach(), size + added.detach().abs()
        off = (hidden - expected).abs()
        if not bool((off <= ROUNDINGS * torch.finfo(hidden.dtype).eps * size).all()):
            raise InputError(
                f"{name} does not read the embedding plus what was written before it (off by up to "
                f"{float(off.max()):.3g} in values of up to {float(hidden.abs().max()):.3g}), so the stream there is "
                "not additive (post-norm?), or its declaration misses a writer or a scale; it cannot be converted so"
            )
        self._seen, self._since = hidden.clone(), []


def require_scale_free(layout: Layout, width: int) -> None:
    """Refuse a reader that sees how large the stream is, for the mean form of the read, which makes it smaller.

    Raises:
        InputError: it names the first one.
    """
    readers = [(increment.name, module) for increment in layout.increments[1:] for module in increment.readers]
    for name, module in [*readers, (layout.norm_name, layout.norm)]:
        if not _is_scale_free(module, width):
            raise InputError(
                f"{name} is no norm that forgets the size of its input, and the mean of the sources is smaller than "
                "their sum; take scale=ReadScale.SUM, which is exact everywhere"
            )


def _is_scale_free(module: nn.Module, width: int) -> bool:
    parameters = list(module.parameters())
    if any(True for _ in module.children()) or any(parameter.ndim > 1 for parameter in parameters):
        return False
    like = parameters[0] if parameters else torch.empty(0)
    x = torch.randn(4, width, generator=torch.Generator().manual_seed(0)).to(like.device, like.dtype)
    with torch.no_grad():
        one, other = module(x), module(4 * x)
    return bool((one - other).abs().max() <= 0.05 * one.abs().max())
