"""How the tensors that a rule pairs hold the same numbers: ours on the one side, those of a dialect on the other."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor


class Layout(ABC):
    """Both ways are exact: no number is changed, only its place. `Folded` alone has one way.

    Results may be views of what is given. Tensors on the meta device tell the shapes.
    """

    @abstractmethod
    def theirs(self, ours: Sequence[Tensor]) -> list[Tensor]:
        """The tensors of the dialect."""

    @abstractmethod
    def ours(self, theirs: Sequence[Tensor], shapes: Sequence[torch.Size]) -> list[Tensor]:
        """Our tensors, of these shapes."""


@final
@dataclass(frozen=True)
class Same(Layout):
    """One tensor, or several one by one, as they are."""

    def theirs(self, ours: Sequence[Tensor]) -> list[Tensor]:
        return list(ours)

    def ours(self, theirs: Sequence[Tensor], shapes: Sequence[torch.Size]) -> list[Tensor]:
        return list(theirs)


@final
@dataclass(frozen=True)
class Viewed(Layout):
    """One tensor of another shape there, for example `(1, -1)` for a row of what is a vector here."""

    shape: tuple[int, ...]

    def theirs(self, ours: Sequence[Tensor]) -> list[Tensor]:
        return [tensor.reshape(self.shape) for tensor in ours]

    def ours(self, theirs: Sequence[Tensor], shapes: Sequence[torch.Size]) -> list[Tensor]:
        return [tensor.reshape(shape) for tensor, shape in zip(theirs, shapes, strict=True)]


@final
@dataclass(frozen=True)
class Joined(Layout):
    """Our tensors one after another along `dim` in one of theirs."""

    dim: int = 0

    def theirs(self, ours: Sequence[Tensor]) -> list[Tensor]:
        return [torch.cat(list(ours), self.dim)]

    def ours(self, theirs: Sequence[Tensor], shapes: Sequence[torch.Size]) -> list[Tensor]:
        return list(theirs[0].split([shape[self.dim] for shape in shapes], self.dim))


@final
@dataclass(frozen=True)
class JoinedByHead(Layout):
    """Matrices whose rows are those of one head after another; in theirs the rows of a head from all of ours."""

    heads: int

    def theirs(self, ours: Sequence[Tensor]) -> list[Tensor]:
        return [torch.cat([matrix.unflatten(0, (self.heads, -1)) for matrix in ours], 1).flatten(0, 1)]

    def ours(self, theirs: Sequence[Tensor], shapes: Sequence[torch.Size]) -> list[Tensor]:
        rows = [shape[0] // self.heads for shape in shapes]
        return [part.flatten(0, 1) for part in theirs[0].unflatten(0, (self.heads, -1)).split(rows, 1)]


@final
@dataclass(frozen=True)
class Stacked(Layout):
    """One tensor here, `[n, ...]`, and n of them there."""

    def theirs(self, ours: Sequence[Tensor]) -> list[Tensor]:
        return list(ours[0].unbind())

    def ours(self, theirs: Sequence[Tensor], shapes: Sequence[torch.Size]) -> list[Tensor]:
        return [torch.stack(list(theirs))]


@final
@dataclass(frozen=True)
class Folded(Layout):
    """The product of our vectors, in float32, in one of theirs. There is no way back: the factors are gone."""

    def theirs(self, ours: Sequence[Tensor]) -> list[Tensor]:
        return [torch.stack([tensor.float() for tensor in ours]).prod(0)]

    def ours(self, theirs: Sequence[Tensor], shapes: Sequence[torch.Size]) -> list[Tensor]:
        raise AssertionError("a product cannot be taken apart; what reads must refuse it")


SAME = Same()
