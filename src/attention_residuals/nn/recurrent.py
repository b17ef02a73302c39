"""What recurrent sublayers share: a state of fixed size that goes on where it stopped, and padding that they skip."""

from abc import abstractmethod

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attention_residuals.nn.context import Context, TokenMixer


class RecurrentMixer(TokenMixer):
    """A sublayer that keeps of all tokens before a state whose size does not grow; `mix` is all there is to write."""

    def forward(
        self, x: Float[Tensor, "batch time width"], context: Context | None = None
    ) -> Float[Tensor, "batch time width"]:
        """Of `context`, cache and padding count; a cache without `state` and `store` is refused with an InputError."""
        past = None if context is None else context.state()
        if context is None or context.valid is None:
            output, state = self.mix(x, past)
        else:
            # A convolution must not see padding between tokens: every row's tokens come first, its padding behind.
            order = (~context.valid).to(torch.uint8).argsort(dim=1, stable=True).unsqueeze(-1)
            count = context.valid.sum(1)
            x = x.masked_fill(~context.valid.unsqueeze(-1), 0)  # whatever the padding holds, even NaN
            output, state = self.mix(x.take_along_dim(order, dim=1), past, count)
            output = output.take_along_dim(order.argsort(dim=1), dim=1)
        if context is not None:
            context.store(state)
        return output

    @abstractmethod
    def mix(
        self,
        x: Float[Tensor, "batch time width"],
        past: tuple[Tensor, ...] | None,
        count: Int[Tensor, "batch"] | None = None,
    ) -> tuple[Float[Tensor, "batch time width"], tuple[Tensor, ...]]:
        """Outputs, and the state after the last token.

        Args:
            x: new tokens.
            past: the state that the tokens before them left; None: there are none.
            count: how many of each row are tokens; the rest, behind them, is padding that holds zeros. None: all.
        """


def is_inside(x: Tensor, count: Tensor | None) -> Tensor | None:
    """`[B, T]`, true for tokens rather than padding, of `x` and `count` as in `RecurrentMixer.mix`; None: all are."""
    return None if count is None else torch.arange(x.shape[1], device=x.device) < count.unsqueeze(1)
