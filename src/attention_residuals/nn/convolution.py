"""A short causal convolution over tokens, channel by channel, that can go on where it stopped."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from attention_residuals.errors import InputError, is_count


class ShortConvolution(nn.Module):
    """`SiLU(sum_j weight_j x_{t-j})` in each channel by itself: a token and the `kernel - 1` before it.

    The weight is `[channels, 1, kernel]` with the token itself last, as `nn.Conv1d` has it. With `bias` there is a
    learned number for each channel, which is added before the SiLU.

    Raises:
        InputError: a kernel or number of channels below 1.
    """

    def __init__(self, channels: int, kernel: int = 4, *, bias: bool = False):
        super().__init__()
        for name, count in (("channels", channels), ("kernel", kernel)):
            if not is_count(count):
                raise InputError(f"{name} of a convolution is {count}; it must be a whole number of at least 1")
        self.kernel = kernel
        self.weight = nn.Parameter(torch.randn(channels, 1, kernel) * kernel**-0.5)
        self.bias = nn.Parameter(torch.zeros(channels)) if bias else None

    def forward(
        self,
        x: Float[Tensor, "batch time channels"],
        state: Float[Tensor, "batch before channels"] | None = None,
        count: Int[Tensor, "batch"] | None = None,
    ) -> tuple[Float[Tensor, "batch time channels"], Float[Tensor, "batch before channels"]]:
        """Outputs, and the state for the tokens to come.

        Args:
            x: new tokens.
            state: the last `kernel - 1` inputs before them; None: zeros.
            count: how many of each row are tokens; the rest, behind them, is padding. None: all.
        """
        before, tokens = self.kernel - 1, x.shape[1]
        if state is None:
            state = x.new_zeros(len(x), before, x.shape[2])
        inputs = torch.cat((state, x), dim=1)
        weight = self.weight.squeeze(1)
        total = inputs[:, :tokens] * weight[:, 0]
        for j in range(1, self.kernel):
            total = total.addcmul(inputs[:, j : j + tokens], weight[:, j])
        if self.bias is not None:
            total = total + self.bias
        return F.silu(total), _last(inputs, before, count)


def _last(inputs: Tensor, before: int, count: Tensor | None) -> Tensor:
    """The last inputs of each row: a copy, since a view would keep all of them alive."""
    if count is None:
        return inputs[:, inputs.shape[1] - before :].clone()
    places = count.unsqueeze(1) + torch.arange(before, device=inputs.device)
    return inputs.take_along_dim(places.unsqueeze(-1), dim=1)
