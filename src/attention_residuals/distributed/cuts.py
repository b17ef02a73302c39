"""Where a network is cut into chunks for a pipeline, and what crosses each cut. Pure functions of positions.

Chunk `c` of `C = P x V` lies on rank `c mod P` (arXiv 2603.15031, section 4.1: P stages of V virtual stages each).
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from attention_residuals.errors import InputError, require_positive
from attention_residuals.streams import Boundary


class Transport(Enum):
    """What is sent across a cut."""

    CACHED = "cached"
    """What the receiver has neither received nor made before."""

    RECEIVED = "received"
    """What the receiver has not received before: blocks that it made itself come back to it. The paper's cross-stage
    caching, as its Figure 3 and Eq. 8 count it."""

    NAIVE = "naive"
    """The whole state."""


@dataclass(frozen=True)
class Crossing:
    """The state in front of a chunk: tensors it is made of, in order.

    Args:
        held: the first ones, which the rank has already.
        received: those that come from the chunk before.
    """

    held: int
    received: int


@dataclass(frozen=True)
class Cuts:
    """Chunks of consecutive sublayers.

    Args:
        starts: the first sublayer of each chunk, 0 first, ascending.
        sublayers: of the network.
        ranks: P; chunk `c` lies on rank `c mod P`.
    """

    starts: tuple[int, ...]
    sublayers: int
    ranks: int

    def __post_init__(self) -> None:
        require_positive(self, "sublayers", "ranks")
        ascending = all(a < b for a, b in zip(self.starts, (*self.starts[1:], self.sublayers), strict=True))
        if not self.starts or self.starts[0] != 0 or not ascending:
            raise InputError(
                f"cuts are {self.starts} in {self.sublayers} sublayers; the first is 0, each later one is larger, and "
                f"the last is below {self.sublayers}"
            )
        if len(self.starts) % self.ranks:
            raise InputError(
                f"{len(self.starts)} chunks do not divide among {self.ranks} ranks; take a multiple of {self.ranks}"
            )

    @classmethod
    def even(cls, sublayers: int, ranks: int, chunks_per_rank: int = 1) -> "Cuts":
        """Chunks as equal as can be, longer ones first.

        Raises:
            InputError: more chunks than sublayers.
        """
        chunks = ranks * chunks_per_rank
        if chunks > sublayers:
            raise InputError(
                f"{chunks} chunks ({ranks} ranks x {chunks_per_rank}) asked of {sublayers} sublayers; at most "
                f"{sublayers} are possible: take fewer ranks or chunks, or more layers"
            )
        short, longer = divmod(sublayers, chunks)
        return cls(tuple(c * short + min(c, longer) for c in range(chunks)), sublayers, ranks)

    @property
    def chunks(self) -> int:
        """C."""
        return len(self.starts)

    def part(self, chunk: int) -> range:
        """The sublayers of a chunk."""
        return range(self.starts[chunk], (*self.starts, self.sublayers)[chunk + 1])

    def crossing(self, chunk: int, boundary: Callable[[int], Boundary], transport: Transport) -> Crossing:
        """What a chunk starts from; `boundary` is that of the stream. Chunk 0 starts from tokens."""
        assert chunk > 0
        tensors = boundary(self.starts[chunk]).tensors
        held = self.held(chunk, boundary, transport)
        return Crossing(held, tensors - held)

    def held(self, chunk: int, boundary: Callable[[int], Boundary], transport: Transport) -> int:
        """Tensors of the state in front of `chunk` that its rank has: what was fixed when its last chunk ended, or,
        of what was received, when it began.
        """
        before = chunk - self.ranks
        if transport is Transport.NAIVE or before < 0 or chunk >= self.chunks:
            return 0
        part = self.part(before)
        return boundary(part.start if transport is Transport.RECEIVED else part.stop).fixed
