"""Blocks that a rank keeps from one of its chunks to the next, and their gradients on the way back.

A kept block goes on in a later chunk as a leaf of its own. When that chunk's backward has run, the leaf has a gradient,
which has to join those of the chunk the block was kept from. `Kept` is the node where it joins: it lets what is sent
pass, and hands the gradients of the leaves to the blocks as it is passed on the way back.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class Depot:
    """The kept blocks of one rank, by micro-batch: those its last chunk left, as leaves of the next one."""

    def __init__(self) -> None:
        self._leaves: dict[int, tuple[Tensor, ...]] = {}
        self.most_held = 0
        """The most blocks held at a time, over all micro-batches."""

    def take(self, micro_batch: int) -> tuple[Tensor, ...]:
        """The blocks kept for the chunk at hand."""
        return self._leaves.get(micro_batch, ())

    def keep(self, micro_batch: int, blocks: Sequence[Tensor], sent: Tensor) -> Tensor:
        """Keep `blocks` for the next chunk of this rank; `sent` to send in its place, so that gradients find back."""
        leaves = tuple(block.detach().requires_grad_(torch.is_grad_enabled()) for block in blocks)
        self._leaves[micro_batch] = leaves
        self.most_held = max(self.most_held, sum(map(len, self._leaves.values())))
        return _Kept.apply(leaves, sent, *blocks)

    def forget(self, micro_batch: int) -> None:
        """Let go of what a micro-batch kept: its last chunk on this rank has taken it."""
        self._leaves.pop(micro_batch, None)


class _Kept(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, leaves: tuple[Tensor, ...], sent: Tensor, *blocks: Tensor) -> Tensor:
        ctx.leaves = leaves
        return sent.view_as(sent)  # not the input itself, which is a node of another graph

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grad_outputs
        grads = [leaf.grad for leaf in ctx.leaves]
        for leaf in ctx.leaves:
            leaf.grad = None
        return None, grad, *grads
