"""A group for execution without gradients: its kernels, and as little between them as can be.

With one token, as in decoding, a read is cheaper than the calls around it, so these are few.
"""

from collections.abc import Sequence
from typing import NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor

from attention_residuals.ops.checks import fold
from attention_residuals.ops.group import Ahead, Group, PreNorm, TracedGroup, converted
from attention_residuals.ops.loops import compute_dtype
from attention_residuals.ops.partial import attn_res_partial


class Made(NamedTuple):
    """A read that was made with the sum in front of it."""

    asked: Ahead
    result: Tensor


class Parts:
    """The first phase of a group: each part is handed out once; asked again, the phase runs anew.

    `halved`: parts beside a narrow type are in halves, as in `EagerGroup`, so that results are those of training.
    """

    def __init__(self, common: Sequence[Tensor], queries: Tensor, key_weights: Tensor, eps: float, halved: bool):
        self.common, self.queries, self.key_weights, self.eps = tuple(common), queries, key_weights, eps
        self.dtype, self.kind = common[0].dtype, compute_dtype(common[0].dtype)
        self.folded = fold(queries, key_weights, self.dtype)
        self.halved = halved and self.kind != self.dtype
        self.values: list[Tensor | None] = [None] * len(queries)

    def take(self, r: int) -> Tensor:
        """The mixture `[..., D]` of read `r` in the compute type, or in halves; `maxima` and `totals` `[R, T]`, and
        `scales` if in halves, are at hand with it.
        """
        values = self.values[r]
        if values is None:
            operators = torch.ops.attention_residuals
            if self.halved:
                made, self.maxima, self.totals, self.scales = operators.mix_halves(
                    self.common, self.folded, self.eps, -1
                )
            else:
                made, self.maxima, self.totals = operators.mix(self.common, self.folded, self.eps, 1.0, True)
            self.values, values = made, made[r]
        self.values[r] = None
        return values


@final
class PlainGroup(Group):
    """`Group` while no gradients are recorded. Reads that ask for some in a group that began without have them too."""

    def __init__(self, parts: Parts, local_sources: int = 0, made: Made | None = None):
        self.common = parts.common
        self._parts, self._local_sources, self._made = parts, local_sources, made

    def publish(
        self, output: Tensor, partial_sum: Tensor | None = None, ahead: Ahead | None = None
    ) -> tuple["PlainGroup", Float[Tensor, "*tokens width"]]:
        parts = self._parts
        if partial_sum is None:
            return PlainGroup(parts, self._local_sources + 1), output
        if ahead is None or self._local_sources != 1 or torch.is_grad_enabled():
            return PlainGroup(parts, self._local_sources), partial_sum + output
        r, gain, norm = ahead
        if norm is None or parts.halved:
            result, source = self._extend(ahead, [output], partial_sum)
        else:
            values, weight = parts.take(r), norm.weight
            if weight.dtype != parts.kind:
                weight = weight.to(parts.kind)
            result, source = torch.ops.attention_residuals.advance(
                output, partial_sum, parts.folded, r, values, parts.maxima, parts.totals,
                weight, parts.eps, norm.eps, gain,
            )  # fmt: skip
        return PlainGroup(parts, 1, Made(ahead, result)), source

    def read(
        self, r: int, local: Sequence[Tensor], gain: float, norm: PreNorm | None = None
    ) -> Float[Tensor, "*tokens width"]:
        assert len(local) == self._local_sources, f"{len(local)} local sources, the group has {self._local_sources}"
        made, asked = self._made, Ahead(r, gain, norm)
        if torch.is_grad_enabled():
            return self._traced().go_on(local, converted(asked, self._parts.dtype))
        if made is not None and asked.is_that(made.asked):
            return made.result
        return self._extend(asked, local, None)[0]

    def _extend(self, asked: Ahead, local: Sequence[Tensor], partial_sum: Tensor | None) -> tuple[Tensor, Tensor]:
        """The read, and, if there is a `partial_sum`, the source; see `operators.extend`."""
        parts = self._parts
        r, gain, norm = converted(asked, parts.dtype)
        own, values = slice(r, r + 1), parts.take(r)
        weight, norm_eps = norm or (None, 0.0)
        part, folded, operators = (
            [values, parts.maxima[own], parts.totals[own]],
            parts.folded[own],
            torch.ops.attention_residuals,
        )
        if parts.halved:
            part.append(parts.scales[own])
            result, _, _, _, source = operators.extend_halves(
                local, partial_sum, folded, part, weight, parts.eps, norm_eps, gain, parts.dtype
            )
            return result, source
        if norm is None and not local and gain == 1.0:
            return values.to(parts.dtype), values  # the part is the mixture
        mixed, _, _, normed, source = operators.extend(
            local, partial_sum, folded, part, weight, parts.eps, norm_eps, gain, parts.dtype
        )
        return (mixed.to(parts.dtype) if norm is None else normed), source

    def _traced(self) -> TracedGroup:
        parts = self._parts
        part = attn_res_partial(parts.common, parts.queries, parts.key_weights, eps=parts.eps)
        return TracedGroup(parts.common, part, parts.queries, parts.key_weights, parts.eps)
