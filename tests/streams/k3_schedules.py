"""Block schedules written apart from the library: the one of Kimi K3, and eight wrong ones seen in public code.

Sublayers are functions without weights, so all that is under test is which tensors are sources, when a block is
closed, what the last read is, and the arithmetic of a read. Layers and block sizes count layers here, not sublayers.
"""

import torch
from torch import Tensor

EPS = 1e-5
WIDTH = 4
FEATURE = torch.arange(WIDTH, dtype=torch.float64)
EMBEDDING = torch.tensor([[1.0, -2.0, 0.5, 3.0], [0.25, 0.75, -1.5, 2.0]], dtype=torch.float64)

ATTENTION, MLP, OUTPUT = 0, 1, 2
"""Kinds of reads: in front of attention, in front of the MLP, in front of the head."""

GOLDEN_LAYERS, GOLDEN_BLOCK = 5, 2
GOLDEN_OUTPUT = torch.tensor(
    [[3.665573354, 0.793630461, -0.515931365, 2.092938474], [2.399069987, 1.980255634, 0.851976157, 2.224972895]],
    dtype=torch.float64,
)
GOLDEN_OUTPUT_WEIGHTS = torch.tensor(
    [[0.310124446, 0.371615857, 0.220293486, 0.097966211], [0.420551260, 0.270538699, 0.162940224, 0.145969818]],
    dtype=torch.float64,
).T
"""`[sources, tokens]`."""
GOLDEN_ROUNDING = 2e-9
"""The golden numbers have nine decimals."""


def rms(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS)


def read_vectors(kind: int, layer: int) -> tuple[Tensor, Tensor]:
    """Key-norm weight and query of a read."""
    norm = 1 + 0.1 * torch.cos(FEATURE + layer + 3 * kind)
    query = 0.5 * torch.sin(1 + FEATURE * (layer + 1) + kind)
    return norm, query


def attention(layer: int, x: Tensor) -> Tensor:
    """Stands for the attention of a layer, which brings its own pre-norm."""
    return 0.5 * (layer + 1) * rms(x).roll(1, -1)


def mlp(layer: int, x: Tensor) -> Tensor:
    """Stands for the MLP of a layer, which brings its own pre-norm."""
    return (1 + 0.25 * layer) * torch.tanh(rms(x).flip(-1))


def mix(sources: list[Tensor], kind: int, layer: int) -> tuple[Tensor, Tensor]:
    """A read: the mixture, and its weights `[sources, tokens]`."""
    norm, query = read_vectors(kind, layer)
    logits = torch.stack([(rms(source) * norm * query).sum(-1) for source in sources])
    weights = logits.softmax(0)
    return (weights.unsqueeze(-1) * torch.stack(sources)).sum(0), weights


class Schedule:
    """The released schedule: a block is closed after the read in front of the attention that opens the next one.

    A wrong schedule overrides one of the steps. `weights` holds those of every read in order.
    """

    def __init__(self) -> None:
        self.blocks: list[Tensor] = []
        self.prefix: Tensor | None = EMBEDDING
        self.weights: list[Tensor] = []

    def run(self, layers: int, block: int) -> Tensor:
        """The output of a network of `layers` layers in blocks of `block` layers."""
        for layer in range(layers):
            opens, closes = layer % block == 0, (layer + 1) % block == 0 and layer + 1 < layers
            self.before_read(opens)
            mixture = self.read(ATTENTION, layer)
            self.after_read(opens, mixture)
            self.add(attention(layer, mixture))
            self.add(mlp(layer, self.read(MLP, layer)))
            self.after_layer(closes)
        return self.output()

    def sources(self) -> list[Tensor]:
        return self.blocks if self.prefix is None else [*self.blocks, self.prefix]

    def read(self, kind: int, layer: int) -> Tensor:
        mixture, weights = mix(self.sources(), kind, layer)
        self.weights.append(weights)
        return mixture

    def add(self, output: Tensor) -> None:
        self.prefix = output if self.prefix is None else self.prefix + output

    def close(self, block: Tensor | None, prefix: Tensor | None = None) -> None:
        """Append a block and go on from `prefix`."""
        assert block is not None
        self.blocks = [*self.blocks, block]
        self.prefix = prefix

    def before_read(self, opens: bool) -> None:
        """What happens before the read in front of the attention; `opens` where that attention opens a block."""

    def after_read(self, opens: bool, mixture: Tensor) -> None:
        """What happens between that read and the attention."""
        if opens:
            self.close(self.prefix)

    def after_layer(self, closes: bool) -> None:
        """What happens after the MLP; `closes` where it is the last of a block that is not the last block."""

    def output(self) -> Tensor:
        return self.read(OUTPUT, 0)


class CommitBeforeRead(Schedule):
    """One tensor is a closed block and the running prefix at once in the read at a boundary."""

    def before_read(self, opens: bool) -> None:
        if opens:
            self.close(self.prefix, self.prefix)

    def after_read(self, opens: bool, mixture: Tensor) -> None:
        if opens:
            self.prefix = None


class CommitMixture(Schedule):
    """What the read gave is kept as the block, in place of the raw sum."""

    def after_read(self, opens: bool, mixture: Tensor) -> None:
        if opens:
            self.close(mixture)


class NeverReset(Schedule):
    """The prefix goes on after a block is closed, so sources are cumulative."""

    def after_read(self, opens: bool, mixture: Tensor) -> None:
        if opens:
            self.close(self.prefix, self.prefix)


class CommitAfterLayer(Schedule):
    """Blocks are closed after their last layer, so that the embedding is in the first block and no source itself."""

    def after_read(self, opens: bool, mixture: Tensor) -> None:
        pass

    def after_layer(self, closes: bool) -> None:
        if closes:
            self.close(self.prefix, torch.zeros_like(EMBEDDING))


class NoOutputRead(Schedule):
    """The head sees the prefix alone."""

    def output(self) -> Tensor:
        return self.sources()[-1]


class PlainSumOutput(Schedule):
    """The head sees the sum of the sources."""

    def output(self) -> Tensor:
        return torch.stack(self.sources()).sum(0)


class OutputWithoutLastBlock(Schedule):
    """The output read leaves out the block that is still open."""

    def output(self) -> Tensor:
        return mix(self.blocks, OUTPUT, 0)[0]


class ZeroRow(Schedule):
    """A tensor of zeros stands for the partial sum of a block that has none yet.

    The mixture is only scaled by it, and a norm that follows hides that; but the row takes weight from the others.
    """

    def before_read(self, opens: bool) -> None:
        if opens:
            self.close(self.prefix, torch.zeros_like(EMBEDDING))

    def after_read(self, opens: bool, mixture: Tensor) -> None:
        pass


WRONG_OUTPUT = (
    CommitBeforeRead,
    CommitMixture,
    NeverReset,
    CommitAfterLayer,
    NoOutputRead,
    PlainSumOutput,
    OutputWithoutLastBlock,
)
"""The schedules whose output is another one; that of `ZeroRow` is the right one up to the eps of the norms."""


def paper_pseudocode(layers: int, block: int, *, preloaded: bool = False, first_layer_number: int = 0) -> Tensor:
    """The listing in the paper (arXiv 2603.15031, figure 2), whose `block` counts sublayers and is even.

    It is right where `blocks` starts empty and layers count from 0. `preloaded` starts it with the embedding in it.
    """
    blocks, partial = [EMBEDDING] if preloaded else [], EMBEDDING
    for layer in range(layers):
        mixture = mix([*blocks, partial], ATTENTION, layer)[0]
        if (layer + first_layer_number) % (block // 2) == 0:
            blocks.append(partial)
            partial = None
        output = attention(layer, mixture)
        partial = output if partial is None else partial + output
        partial = partial + mlp(layer, mix([*blocks, partial], MLP, layer)[0])
    return mix([*blocks, partial], OUTPUT, 0)[0]
