"""Attention Residuals in a model of your own: the four verbs, and nothing else changes.

The model below is an ordinary stack of sublayers. It trains twice, once on the standard residual and once on Block
Attention Residuals, from the same weights, on a small task: add up, position by position, how often a mark was seen.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention_residuals import Additive, AttnRes, Residual, Sublayers

WIDTH, LAYERS, MARKS = 32, 6, 8


class CausalMean(nn.Module):
    """Any module from [B, T, D] to [B, T, D] will do as a sublayer; this one averages over the past."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        positions = torch.arange(1, x.shape[1] + 1).unsqueeze(-1)
        return self.project(x.cumsum(1) / positions)


class OwnModel(nn.Module):
    """Sublayers without norms of their own: the stream norms what it hands out."""

    def __init__(self, residual: Residual) -> None:
        super().__init__()
        mlp = lambda: nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))  # noqa: E731
        self.embedding = nn.Embedding(MARKS, WIDTH)
        self.sublayers = nn.ModuleList(module for _ in range(LAYERS) for module in (CausalMean(), mlp()))
        self.stream = residual.build(sublayers=len(self.sublayers), width=WIDTH)
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, tokens: Tensor) -> Tensor:
        state = self.stream.start(self.embedding(tokens))
        for i, sublayer in enumerate(self.sublayers):
            state = self.stream.write(state, i, sublayer(self.stream.read(state, i)))
        return self.head(self.stream.finish(state)).squeeze(-1)


def train(residual: Residual, steps: int = 200) -> float:
    """Loss after `steps` steps."""
    torch.manual_seed(0)
    model = OwnModel(residual)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loss = torch.tensor(0.0)
    for step in range(steps):
        tokens = torch.randint(MARKS, (16, 24), generator=torch.Generator().manual_seed(step))
        target = (tokens == 0).float().cumsum(1).sqrt()
        loss = F.mse_loss(model(tokens), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


if __name__ == "__main__":
    for residual in (Additive(), AttnRes(Sublayers(4))):
        print(f"{residual}: loss {train(residual):.4f}")
