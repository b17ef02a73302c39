"""SwiGLU against its formula."""

import torch

from attention_residuals.nn import SwiGLU


def test_equals_the_formula() -> None:
    torch.manual_seed(0)
    mlp = SwiGLU(5, 8).double()
    x = torch.randn(3, 5, dtype=torch.float64)
    gate, up = x @ mlp.gate.weight.T, x @ mlp.up.weight.T
    expected = (gate * torch.sigmoid(gate) * up) @ mlp.output.weight.T
    torch.testing.assert_close(mlp(x), expected, rtol=1e-12, atol=1e-12)
