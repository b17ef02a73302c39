"""Models whose pipelines are simulated: sizes as published, or as stated here."""

from dataclasses import dataclass

from attention_residuals.distributed.cuts import Cuts, Transport
from attention_residuals.distributed.simulation import Load
from attention_residuals.models import SUBLAYERS_PER_LAYER
from attention_residuals.streams import Additive, AttnRes, Residual, Sublayers

FORWARD_FLOPS, BACKWARD_FLOPS = 2, 4
"""A parameter and token: 6 for both."""


@dataclass(frozen=True)
class Sizes:
    """Of a model.

    Args:
        block: sublayers of a block of Block.
        parameters: active ones, evenly over the sublayers.
        source: where the numbers are from.
    """

    name: str
    layers: int
    width: int
    block: int
    parameters: float
    source: str

    @property
    def sublayers(self) -> int:
        """Where it can be cut."""
        return SUBLAYERS_PER_LAYER * self.layers

    def describe(self) -> str:
        """A sentence for people."""
        return f"{self.name[0].upper()}{self.name[1:]}: {self.source}."


@dataclass(frozen=True)
class Hardware:
    """What a rank is given to do, and with what.

    Args:
        tokens: of a micro-batch.
        flops: that a rank computes in a second.
        number_bytes: of a number that is sent.
    """

    tokens: int = 4096
    flops: float = 4e14
    number_bytes: int = 2


DEEP_LAYERS, DEEP_WIDTH = 128, 7168
MODELS = (
    Sizes(
        "Kimi Linear 48B", 27, 2304, 6, 3e9,
        "arXiv 2603.15031, section 5: 27 layers, blocks of 6 sublayers, 3 billion active parameters; the width of 2304 "
        "is that of the published model",
    ),
    Sizes(
        "a deep model", DEEP_LAYERS, DEEP_WIDTH, 32, 12 * DEEP_LAYERS * DEEP_WIDTH**2,
        "assumed: 128 dense layers of 12 D^2 parameters (78.9 billion), D = 7168, 8 blocks of 32 sublayers",
    ),
)  # fmt: skip

KINDS: dict[str, Transport | None] = {"standard": None, **{one.value: one for one in reversed(Transport)}}
"""What is sent: the one tensor of the standard residual, or what Block sends under each transport."""


def load_of(sizes: Sizes, cuts: Cuts, kind: str, hardware: Hardware) -> Load:
    """What each chunk computes, by its share of the sublayers, and what it receives, by `Cuts.crossing`."""
    transport = KINDS[kind]
    residual: Residual = Additive() if transport is None else AttnRes(Sublayers(sizes.block))
    boundary = residual.build(sizes.sublayers, width=1).boundary  # positions alone; the width does not matter
    sent = [
        cuts.crossing(chunk, boundary, transport or Transport.NAIVE).received if chunk else 0
        for chunk in range(cuts.chunks)
    ]
    shares = [len(cuts.part(chunk)) / sizes.sublayers for chunk in range(cuts.chunks)]
    second = sizes.parameters * hardware.tokens / hardware.flops
    return Load(
        tuple(FORWARD_FLOPS * second * share for share in shares),
        tuple(BACKWARD_FLOPS * second * share for share in shares),
        tuple(hardware.tokens * sizes.width * hardware.number_bytes * tensors for tensors in sent),
    )
