"""What flows between sublayers, for draft models, probes and people."""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor

from attention_residuals.errors import InputError
from attention_residuals.models import Decoder
from attention_residuals.nn import Context
from attention_residuals.streams import AttnResStream


@dataclass(frozen=True, eq=False)
class Tap:
    """What there is to read right after a sublayer has written.

    `mixture [B, T, D]`: what the next consumer reads, before its norm: the next sublayer, or after the last one the
    head, whose final norm comes after. It is never a running sum, unless the stream is the standard residual.
    `weights [sources, B, T]`: with which weights it was mixed, in the order of the stream's sources. They sum to 1,
    unless the stream says otherwise; where a read is scaled to a sum (`ReadScale.SUM`, or no output read) the mixture
    is that many sources larger. None for a stream that has no depth weights.
    """

    mixture: Float[Tensor, "batch time width"]
    weights: Float[Tensor, "sources batch time"] | None


def forward_with_taps(
    model: Decoder,
    tokens: Int[Tensor, "batch time"],
    after: Sequence[int],
    context: Context | None = None,
) -> tuple[Float[Tensor, "batch time vocab"], dict[int, Tap]]:
    """The model's logits, the very same as without taps, and a tap after each of the sublayers `after` (0-based).

    Raises:
        InputError: a sublayer that the model does not have.
    """
    sublayers = model.config.sublayers
    for i in after:
        if not 0 <= i < sublayers:
            raise InputError(f"a tap after sublayer {i} is asked for; the model's sublayers are 0 to {sublayers - 1}")
    stream, taps = model.stream, {}
    state = stream.start(model.embedding(tokens))
    for i in range(sublayers):
        state = model.step(state, i, context)
        if i in after:
            mixture = stream.finish(state) if i + 1 == sublayers else stream.mixture(state, i + 1)
            weights = stream.weights(state, i + 1) if isinstance(stream, AttnResStream) else None
            taps[i] = Tap(mixture, weights)
    return model.logits(stream.finish(state)), taps
