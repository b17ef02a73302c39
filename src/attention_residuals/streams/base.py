"""The residual stream: what carries the state of a network through depth, behind four verbs."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from attention_residuals.errors import InputError, require_positive
from attention_residuals.streams.parameters import PreNorms

State: TypeAlias = tuple[Any, ...]
"""An immutable nested tuple of tensors, so that pytrees, FSDP2 and checkpointing see every tensor.

The one other thing it may hold is a `Group`: a cache beside the tensors that can make again what it has handed out.
"""


OUTPUT = "output"
"""The key of what belongs to the read of the head."""


class Boundary(NamedTuple):
    """The state between two sublayers: tensors `[*tokens, D]`, of which the first `fixed` never change again."""

    tensors: int
    fixed: int


@dataclass(frozen=True)
class StreamShape:
    """What every stream needs to know of the network around it."""

    sublayers: int
    width: int
    pre_norm: bool
    norm_eps: float

    def __post_init__(self) -> None:
        require_positive(self, "sublayers", "width")


class Stream(nn.Module, ABC):
    """start / read / write / finish: every sublayer stays tensor in, tensor out, and knows nothing of depth.

    ::

        state = stream.start(embedding)
        for i, sublayer in enumerate(sublayers):
            state = stream.write(state, i, sublayer(stream.read(state, i)))
        x = stream.finish(state)

    All verbs are pure: a state is never changed, so a step may be recomputed (`checkpoint(..., use_reentrant=False)`).
    """

    def __init__(self, shape: StreamShape):
        super().__init__()
        self.shape = shape
        self.pre_norms = PreNorms(range(shape.sublayers) if shape.pre_norm else (), shape.width, fill=1.0)

    @property
    def output_scale(self) -> float:
        """Initial size of what a sublayer writes, for a normed input: how much smaller its output matrix starts.

        Outputs shrink with their number, so that their sum starts as large as the embedding. Schemes that scale outputs
        by a factor of their own say something else.
        """
        return self.shape.sublayers**-0.5

    def read(self, state: State, i: int) -> Float[Tensor, "*tokens width"]:
        """The input of sublayer `i` (0-based): its mixture, RMS-normed unless the stream was built without."""
        return self.normed(self.mixture(state, i), i)

    def normed(self, mixture: Float[Tensor, "*tokens width"], i: int) -> Float[Tensor, "*tokens width"]:
        """The input of sublayer `i` for a mixture of any origin, for example one that a source was left out of."""
        if not self.shape.pre_norm:
            return mixture
        weight = self.pre_norms[str(i)]
        return F.rms_norm(mixture, (self.shape.width,), weight, self.shape.norm_eps)

    @abstractmethod
    def start(self, embedding: Float[Tensor, "*tokens width"]) -> State:
        """The state before sublayer 0."""

    @abstractmethod
    def mixture(self, state: State, i: int) -> Float[Tensor, "*tokens width"]:
        """What sublayer `i` reads, before its pre-norm."""

    @abstractmethod
    def write(self, state: State, i: int, output: Float[Tensor, "*tokens width"]) -> State:
        """A new state that also holds the output of sublayer `i`."""

    @abstractmethod
    def finish(self, state: State) -> Float[Tensor, "*tokens width"]:
        """What the final norm and the head see, not yet normed."""

    @abstractmethod
    def carried(self, state: State) -> Float[Tensor, "*tokens width"]:
        """The running tensor the last output was added to: the stream itself, or the partial sum of the open block."""

    def mixing(
        self, outputs: Sequence[Float[Tensor, "*tokens width"]]
    ) -> Float[Tensor, "reads sources *tokens"] | None:
        """The depth mixing matrix M (arXiv 2603.15031, section 6.2): read `l` mixes sum over i of M[l, i] v_i.

        `outputs` are v_0, the embedding, and v_1, v_2, ..., what sublayers 0, 1, ... wrote. Read `l` is that of
        sublayer `l`, the last one that of the head. None where the mixture is no weighted sum with one weight a source.
        """
        return None

    def boundary(self, i: int) -> Boundary:
        """Of what the state before sublayer `i` consists, for a network whose sublayers lie on several devices.

        Raises:
            InputError: this stream cannot be cut.
        """
        raise self._cannot_be_cut()

    def pack(self, state: State) -> tuple[Float[Tensor, "*tokens width"], ...]:
        """The tensors of a state, as many as `boundary` says, to be carried elsewhere. Raises as `boundary`."""
        raise self._cannot_be_cut()

    def unpack(self, tensors: Sequence[Float[Tensor, "*tokens width"]], i: int) -> State:
        """The state before sublayer `i` from what `pack` gave for it elsewhere. Raises as `boundary`."""
        raise self._cannot_be_cut()

    def _cannot_be_cut(self) -> InputError:
        return InputError(f"{self.describe()} cannot be cut into stages; use AttnRes or Additive, or one stage")

    def keep(self, sublayers: range, *, head: bool) -> None:
        """Drop the parameters of all other sublayers, and those of the head's read unless `head`, in place."""
        kept = self._kept_keys(sublayers, head)
        for vectors in self.children():
            assert isinstance(vectors, nn.ParameterDict)
            for key in set(vectors) - kept:
                vectors.pop(key)

    def _kept_keys(self, sublayers: range, head: bool) -> set[str]:
        return {*map(str, sublayers), *([OUTPUT] if head else [])}

    @abstractmethod
    def describe(self) -> str:
        """One line for people: the kind of stream and what resulted from its settings."""

    def extra_repr(self) -> str:
        return self.describe()


@dataclass(frozen=True)
class Residual(ABC):
    """A frozen choice of residual stream; its type says which one."""

    def build(self, sublayers: int, width: int, *, pre_norm: bool = True, norm_eps: float = 1e-6) -> Stream:
        """Make the stream of a network.

        Args:
            sublayers: how many modules read and write the stream; attention and MLP count separately.
            width: D of the stream.
            pre_norm: `read` applies an RMSNorm with a learned weight. False for sublayers that bring their own.
            norm_eps: eps of these pre-norms.
        """
        return self._build(StreamShape(sublayers, width, pre_norm, norm_eps))

    @abstractmethod
    def _build(self, shape: StreamShape) -> Stream: ...
