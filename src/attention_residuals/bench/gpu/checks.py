"""Every operator on the device against the formula in float64, each result up to the rounding it may have."""

from collections.abc import Callable, Sequence
from math import sqrt

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_residuals.bench.gpu import calls, formula

ROUNDINGS = 16
"""Roundings of float32 that a result of size 1 may be off by: a few a step, added up over all sources."""


class Gauge:
    """The largest error seen, in parts of what is allowed; above 1 is wrong, and so is nan."""

    def __init__(self, device: str):
        self._cuts_off = device == "cpu"  # Triton's interpreter cuts bfloat16 off where a GPU rounds
        self.worst = 0.0

    def compare(self, found: Tensor, expected: Tensor, scale: float) -> None:
        """`found` is `expected` up to one rounding to its type and `ROUNDINGS` of float32 at `scale`."""
        if found.shape != expected.shape:
            raise ValueError(f"shape {tuple(found.shape)} instead of {tuple(expected.shape)}")
        stored = 0.0 if found.dtype == torch.float32 else torch.finfo(found.dtype).eps / 2
        if found.dtype == torch.bfloat16 and self._cuts_off:
            stored *= 2
        allowed = stored * expected.abs() + ROUNDINGS * torch.finfo(torch.float32).eps * scale
        ratio = ((found.double() - expected).abs() / allowed).max().item()
        self.worst = ratio if ratio != ratio else max(self.worst, ratio)

    @property
    def right(self) -> bool:
        """Whether everything was."""
        return self.worst <= 1


class Inputs:
    """Sources `[T, D]` and all else operators take: entries of size 0.5 to 1.5, so that errors are relative to 1."""

    def __init__(self, device: str, dtype: torch.dtype, count: int, tokens: int, width: int):
        self.device, self.dtype, self.count, self.tokens, self.width = device, dtype, count, tokens, width
        self._generator = torch.Generator(device).manual_seed(count * tokens + width)
        self.own = [self.draw(tokens, width) for _ in range(count)]
        self.others = [self.draw(tokens, width) for _ in range(2)]
        self.gauge = Gauge(device)

    def draw(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Numbers of size 0.5 to 1.5 and either sign."""
        uniform = 2 * torch.rand(*shape, generator=self._generator, device=self.device) - 1
        return (uniform + 0.5 * uniform.sign()).to(dtype or self.dtype)

    def queries(self, reads: int) -> Tensor:
        """Folded queries `[R, D]` that give logits of size about 1."""
        return self.draw(reads, self.width, dtype=torch.float32) / sqrt(self.width)


def check_mix(inputs: Inputs) -> None:
    """Mixtures, and statistics that give the logits' log-sum-exp; one read rounded, five in float32."""
    for reads, wide in ((1, False), (5, True)):
        folded, gain = inputs.queries(reads), -0.5
        mixed, maximum, total = calls.mix(inputs.own, folded, gain, wide)
        doubles = [source.double() for source in inputs.own]
        expected = gain * formula.mixtures(doubles, [folded.double()] * inputs.count)
        for one, reference in zip(mixed, expected, strict=True):
            inputs.gauge.compare(one, reference, _size([expected]))
        _compare_statistics(inputs, doubles, folded, maximum, total)


def check_extend(inputs: Inputs) -> None:
    """A read gone on with from other sources, and its norm."""
    folded, gain = inputs.queries(1), 3.0
    norm = inputs.draw(inputs.width, dtype=torch.float32)
    values, *statistics = calls.mix(inputs.others, folded, 1.0, True)
    doubles = [source.double() for source in (*inputs.own, *inputs.others)]
    expected = gain * formula.mixtures(doubles, [folded.double()] * len(doubles))[0]
    for weight in (None, norm):
        mixed, maximum, total, normed = calls.extend(inputs.own, folded, [*values, *statistics], weight, gain)
        inputs.gauge.compare(mixed, expected, _size([expected]))
        _compare_statistics(inputs, doubles, folded, maximum, total)
        if weight is not None:
            reference = F.rms_norm(expected, weight.shape, weight.double(), formula.NORM_EPS)
            inputs.gauge.compare(normed, reference, max(_size([reference]), formula.NORM_EPS**-0.5))


def check_mix_backward(inputs: Inputs) -> None:
    """One read of all its sources; and three that had others as well, added to running gradients."""
    for reads, others in ((1, []), (3, inputs.others)):
        folded, gains = inputs.queries(reads), [1.0, 3.0, -0.5][:reads]
        grads = [inputs.draw(inputs.tokens, inputs.width) for _ in range(reads)]
        running = [None if n % 2 else inputs.draw(inputs.tokens, inputs.width) for n in range(inputs.count)]
        running = running if others else []
        mixed, maxima, totals = calls.mix([*inputs.own, *others], folded, 1.0, True)
        deltas = [calls.row_products(grad, one) for grad, one in zip(grads, mixed, strict=True)] if others else []
        found, found_folded = calls.mix_backward(
            inputs.own, running, folded, grads, (list(maxima), list(totals)), deltas, gains
        )
        expected, expected_folded = formula.gradients(inputs.own, others, folded, grads, gains, running)
        for one, reference in zip(found, expected, strict=True):
            inputs.gauge.compare(one, reference, _size(expected))
        # A sum over tokens of products of size `width ** 0.5`, whose roundings add up like a root.
        scale = max(map(abs, gains)) * 1.5 * sqrt(inputs.count * inputs.tokens * inputs.width)
        inputs.gauge.compare(found_folded, expected_folded, max(scale, _size([expected_folded])))


def check_norm_backward(inputs: Inputs) -> None:
    """Gradients of a norm, and the products of the rounded one."""
    grad = inputs.draw(inputs.tokens, inputs.width)
    mixed = inputs.draw(inputs.tokens, inputs.width, dtype=torch.float32)
    weight = inputs.draw(inputs.width, dtype=torch.float32)
    grad_mixed, products, grad_weight = calls.norm_backward(grad, mixed, weight)
    expected, expected_weight = formula.norm_gradients(grad, mixed, weight)
    inputs.gauge.compare(grad_mixed, expected, _size([expected]))
    inner = (grad_mixed.double() * mixed.double()).sum(-1)
    inputs.gauge.compare(products, inner, max(_size([inner]), sqrt(inputs.width) * _size([expected])))
    inputs.gauge.compare(grad_weight, expected_weight, max(sqrt(inputs.tokens), _size([expected_weight])))


def check_row_products(inputs: Inputs) -> None:
    """Inner products."""
    grad, mixed = inputs.own[0], inputs.draw(inputs.tokens, inputs.width, dtype=torch.float32)
    expected = (grad.double() * mixed.double()).sum(-1)
    inputs.gauge.compare(calls.row_products(grad, mixed), expected, max(_size([expected]), 1.5 * sqrt(inputs.width)))


OPERATOR_CHECKS: dict[str, Callable[[Inputs], None]] = {
    "mix": check_mix,
    "extend": check_extend,
    "mix_backward": check_mix_backward,
    "norm_backward": check_norm_backward,
    "row_products": check_row_products,
}


def _compare_statistics(
    inputs: Inputs, doubles: Sequence[Tensor], folded: Tensor, maximum: Tensor, total: Tensor
) -> None:
    logits = formula.logits(doubles, [folded.double()] * len(doubles))
    inputs.gauge.compare(maximum, logits.amax(0).T, _size([logits]))
    inputs.gauge.compare(maximum + total.log(), logits.logsumexp(0).T, _size([logits]))


def _size(tensors: Sequence[Tensor]) -> float:
    """The largest entry, and 1 where it is smaller."""
    return max([1.0, *(tensor.abs().max().item() for tensor in tensors)])
