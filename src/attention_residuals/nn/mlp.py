"""SwiGLU (arXiv 2002.05202): one sublayer, tensor in, tensor out."""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from attention_residuals.nn.output import OutputLinear


class SwiGLU(nn.Module):
    """`[..., width] -> [..., width]` through a gated hidden layer of `hidden` units, the input already normed."""

    def __init__(self, width: int, hidden: int):
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.output = OutputLinear(hidden, width, bias=False)

    def forward(self, x: Float[Tensor, "*tokens width"]) -> Float[Tensor, "*tokens width"]:
        return self.output(F.silu(self.gate(x)) * self.up(x))
