"""Several reads at once as the operators see them: inputs, an oracle in plain float64 autograd, and comparisons."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from .support import assert_rounded_once, compute_type, draw_sources, signed, size

EPS = 1e-6
OPS = torch.ops.attention_residuals
"""Looked up at each call, so that `plain_operators` takes effect."""


@dataclass(frozen=True)
class Reads:
    """R reads of `own` and `others`; the operators differentiate them by `own` alone."""

    own: list[Tensor]
    others: list[Tensor]
    folded: Tensor
    grads: list[Tensor]
    """Of the mixtures."""
    gains: list[float]
    running: list[Tensor | None] = field(default_factory=list)

    @property
    def sources(self) -> list[Tensor]:
        return [*self.own, *self.others]

    @property
    def compute(self) -> torch.dtype:
        return self.folded.dtype

    @cached_property
    def logits(self) -> Tensor:
        """The logits `[N, T, R]` by the oracle."""
        sources = [source.double() for source in self.sources]
        return oracle_logits(sources, [self.folded.double()] * len(sources)).flatten(1, -2)

    @cached_property
    def mixtures(self) -> Tensor:
        """The mixtures `[R, ..., D]` with gain 1 by the oracle."""
        sources = [source.double() for source in self.sources]
        return oracle_mix(sources, [self.folded.double()] * len(sources))

    @cached_property
    def gradients(self) -> tuple[list[Tensor], Tensor]:
        """What `mix_backward` promises, by the oracle."""
        return oracle_backward(self)

    def first(self, count: int) -> "Reads":
        """The same reads of the first `count` sources."""
        return replace(self, own=self.own[:count])

    def mix(self, wide: bool = True) -> tuple[list[Tensor], Tensor, Tensor]:
        """All reads of all sources, with gain 1."""
        return OPS.mix(self.sources, self.folded, EPS, 1.0, wide)

    def added(self, weight: Tensor, norm_eps: float) -> tuple[Tensor, ...]:
        """The one read of the others, gone on with to the sum of the two own sources, and its norm."""
        values, *statistics = OPS.mix(self.others, self.folded, EPS, 1.0, True)
        part, dtype = [*values, *statistics], self.others[0].dtype
        one, other = self.own
        return OPS.extend([other], one, self.folded, part, weight, EPS, norm_eps, self.gains[0], dtype)

    def normed(self, weight: Tensor, norm_eps: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The one read of the others, gone on with to the own sources, and its norm."""
        values, *statistics = OPS.mix(self.others, self.folded, EPS, 1.0, True)
        part = [*values, *statistics]
        return OPS.extend(
            self.own, None, self.folded, part, weight, EPS, norm_eps, self.gains[0], self.others[0].dtype
        )[:4]

    def mix_backward(self, with_deltas: bool, from_mixtures: bool = False) -> tuple[list[Tensor], Tensor]:
        """Gradients of the own sources, and of the folded queries through these sources.

        With `from_mixtures` every other delta is to be made of its mixture.
        """
        mixed, maxima, totals = self.mix()
        # Of the mixture without its gain, so there is none to divide by.
        deltas = [OPS.row_products(grad, one) for grad, one in zip(self.grads, mixed, strict=True)]
        mixtures: list[Tensor | None] = []
        known: list[Tensor | None] = [*deltas] if with_deltas else []
        if from_mixtures:
            # Times its gain, as a read leaves it.
            mixtures = [
                None if r % 2 else gain * one for r, (one, gain) in enumerate(zip(mixed, self.gains, strict=True))
            ]
            known = [delta if r % 2 else None for r, delta in enumerate(deltas)]
        grads, sums, made = OPS.mix_backward(
            self.own,
            self.running,
            self.folded,
            self.grads,
            list(maxima),
            list(totals),
            known,
            mixtures,
            [],
            [],
            self.gains,
            EPS,
        )
        assert len(made) == sum(one is not None for one in mixtures)
        for one, delta in zip(made, deltas[::2], strict=False):
            assert_rounded_once(one, delta.double(), max(size([delta]), self.folded.shape[-1] ** 0.5))
        return grads, sums.sum(0)


def draw_reads(
    count: int, queries: int, width: int, dtype: torch.dtype, *, shape: Sequence[int] = (3,), others: int = 0
) -> Reads:
    """Logits of size about 1, a gain for each read, and gradients of size 1."""
    sources = draw_sources(count + others, shape, width, dtype)
    folded = signed((queries, width), compute_type(dtype), seed=1001) / width**0.5
    grads = [signed((*shape, width), dtype, seed=2001 + r) for r in range(queries)]
    gains = [(1.0, 3.0, -0.5)[r % 3] for r in range(queries)]
    return Reads(sources[:count], sources[count:], folded, grads, gains)


def with_running(reads: Reads) -> Reads:
    """With a gradient from elsewhere for every other source."""
    return replace(
        reads,
        running=[None if n % 2 else signed(source.shape, source.dtype, 3001 + n) for n, source in enumerate(reads.own)],
    )


def oracle_logits(sources: Sequence[Tensor], folded: Sequence[Tensor]) -> Tensor:
    """`[N, ..., R]`; one matrix of folded queries a source, so that their gradients can be told apart."""
    keys = [v * torch.rsqrt(v.square().mean(-1, keepdim=True) + EPS) for v in sources]
    return torch.stack([key @ matrix.T for key, matrix in zip(keys, folded, strict=True)])


def oracle_mix(sources: Sequence[Tensor], folded: Sequence[Tensor]) -> Tensor:
    """The mixtures `[R, ..., D]` with gain 1."""
    weights = oracle_logits(sources, folded).softmax(0)
    return torch.einsum("n...r,n...d->r...d", weights, torch.stack(list(sources)))


def oracle_backward(reads: Reads) -> tuple[list[Tensor], Tensor]:
    """What `Reads.mix_backward` promises."""
    own = [source.detach().double().requires_grad_() for source in reads.own]
    folded = reads.folded.detach().double().requires_grad_()
    matrices = [folded] * len(own) + [folded.detach()] * len(reads.others)
    mixed = oracle_mix([*own, *(source.double() for source in reads.others)], matrices)
    incoming = torch.stack([gain * grad.double() for gain, grad in zip(reads.gains, reads.grads, strict=True)])
    *grads, grad_folded = torch.autograd.grad(mixed, [*own, folded], incoming)
    for n, running in enumerate(reads.running):
        if running is not None:
            grads[n] = grads[n] + running.double()
    return grads, grad_folded


def assert_mixtures(mixed: list[Tensor], reads: Reads, gain: float = 1.0) -> None:
    """`mixed` are the mixtures of all sources, rounded once to their type."""
    expected = gain * reads.mixtures
    assert len(mixed) == len(expected)
    for one, reference in zip(mixed, expected, strict=True):
        assert one.is_contiguous()
        assert_rounded_once(one, reference, size([expected]), reads.compute)


def assert_statistics(maximum: Tensor, total: Tensor, reads: Reads) -> None:
    """The maximum is that of the logits, and with the total it gives their log-sum-exp."""
    logits = reads.logits
    assert_rounded_once(maximum, logits.amax(0).T, size([logits]))
    assert (total >= 1).all()
    assert_rounded_once(maximum + total.log(), logits.logsumexp(0).T, size([logits]))


def assert_gradients(ours: tuple[list[Tensor], Tensor], reads: Reads, alike: int = 1) -> None:
    """`ours` are the gradients of the oracle, rounded once; of the tokens, each has `alike` that are the same."""
    (grads, grad_folded), (expected, expected_folded) = ours, reads.gradients
    for grad, source, reference in zip(grads, reads.own, expected, strict=True):
        assert grad.dtype == source.dtype
        assert grad.is_contiguous()
        assert_rounded_once(grad, reference, size(expected))
    # It sums tokens times width products of size 1, whose roundings add up like a root; but tokens that are the same
    # have the same roundings.
    scale = max(map(abs, reads.gains)) * size(reads.own) * max(1, alike * reads.own[0].numel()) ** 0.5
    assert grad_folded.dtype == reads.compute
    assert_rounded_once(grad_folded, expected_folded, max(scale, size([expected_folded])))
