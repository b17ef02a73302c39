"""A group for execution without gradients: its kernels, and as little between them as can be.

With one token, as in decoding, a read is cheaper than the calls around it, so these are few.
"""

from collections.abc import Sequence
from typing import NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor

from attention_residuals.ops.group import Ahead, Group, PreNorm, TracedGroup, converted
from attention_residuals.ops.loops import compute_dtype
from attention_residuals.ops.partial import attn_res_partial

ADVANCE = torch.ops.attention_residuals.advance.default
FOLD_ROWS = torch.ops.attention_residuals.fold_rows.default
"""With their overload named, which is looked up at every call otherwise."""


class Made(NamedTuple):
    """A read that was made with the sum in front of it."""

    asked: Ahead
    result: Tensor

    def answers(self, r: int, gain: float, norm: PreNorm | None) -> bool:
        """Whether it is the read that these ask for."""
        (its_r, its_gain, its_norm), _ = self
        if r != its_r or gain != its_gain or norm is None or its_norm is None:
            return r == its_r and gain == its_gain and norm is its_norm
        return norm[0] is its_norm[0] and norm[1] == its_norm[1]


class Parts:
    """The first phase of a group: each part is handed out once; asked again, the phase runs anew.

    `halved`: parts beside a narrow type are in halves, as in `EagerGroup`, so that results are those of training.
    """

    def __init__(
        self,
        common: Sequence[Tensor],
        queries: Sequence[Tensor],
        key_weights: Sequence[Tensor],
        eps: float,
        halved: bool,
    ):
        self.common, self.queries, self.key_weights, self.eps = tuple(common), queries, key_weights, eps
        self.dtype = common[0].dtype
        self.kind = compute_dtype(self.dtype)
        self.folded = FOLD_ROWS(queries, key_weights, self.kind)
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
            weight, norm_eps = norm
            if weight.dtype != parts.kind:
                weight = weight.to(parts.kind)
            values = parts.take(r)
            result, source = ADVANCE(
                output, partial_sum, parts.folded, r, values, parts.maxima, parts.totals,
                weight, parts.eps, norm_eps, gain,
            )  # fmt: skip
        return PlainGroup(parts, 1, Made(ahead, result)), source

    def read(
        self, r: int, local: Sequence[Tensor], gain: float, norm: PreNorm | None = None
    ) -> Float[Tensor, "*tokens width"]:
        assert len(local) == self._local_sources, f"{len(local)} local sources, the group has {self._local_sources}"
        if torch.is_grad_enabled():
            return self._traced().go_on(local, converted(Ahead(r, gain, norm), self._parts.dtype))
        if self._made is not None and self._made.answers(r, gain, norm):
            return self._made.result
        return self._extend(Ahead(r, gain, norm), local, None)[0]

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
        queries, key_weights = torch.stack(list(parts.queries)), torch.stack(list(parts.key_weights))
        part = attn_res_partial(parts.common, queries, key_weights, eps=parts.eps)
        return TracedGroup(parts.common, part, queries, key_weights, parts.eps)
