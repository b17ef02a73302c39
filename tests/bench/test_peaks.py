"""Bytes alive, on graphs where they can be counted by hand."""

import torch
from torch import Tensor, nn

from attention_residuals import attn_res
from attention_residuals.bench.peaks import LiveBytes, peak_bytes

BYTES = 4096


def zeros() -> Tensor:
    return torch.zeros(BYTES // 4)


def chain(x: Tensor) -> Tensor:
    """Three new tensors, of which two are alive at once."""
    y = x + 1
    z = y + 1
    del y
    return z + 1


def test_both_counters_agree_on_a_chain() -> None:
    x = zeros()
    with LiveBytes() as live:
        result = chain(x)
        assert live.now == BYTES
        del result
    assert live.now == 0
    assert live.peak == 2 * BYTES
    recorded = peak_bytes(lambda: chain(x))
    assert recorded is not None and 2 * BYTES <= recorded < 2 * BYTES + 64


def test_views_and_what_was_there_before_do_not_count() -> None:
    x = zeros()
    with LiveBytes() as live:
        x.view(-1, 2).add_(1)
        y = (x.view(2, -1) + 1).flatten()[1:]
    assert live.peak == BYTES
    assert y.shape == (BYTES // 4 - 1,)


def test_what_autograd_saves_lives_until_the_backward() -> None:
    x = zeros().requires_grad_()
    with LiveBytes() as live:
        total = x.exp().exp().exp().sum()  # an exponential saves its result
        held = live.peak
        total.backward()
    assert held == 3 * BYTES + 4
    # In the backward a gradient of exp needs its result, its incoming gradient and itself.
    assert 4 * BYTES <= live.peak <= 5 * BYTES + 64


def test_gradients_of_parameters_are_left_out() -> None:
    layer = nn.Linear(64, 64, bias=False)
    x = torch.zeros(1, 64)
    peaks = []
    for leave_out in (False, True):
        layer.zero_grad()
        with LiveBytes() as live:
            if leave_out:
                live.leave_out_gradients(layer)
            layer(x).sum().backward()
        peaks.append(live.peak)
    assert peaks[0] >= layer.weight.nbytes > peaks[1]


def test_a_read_holds_its_mixture_and_a_gradient_a_source() -> None:
    tokens, width, count = 64, 128, 5
    unit = tokens * width * 4
    sources = [torch.randn(tokens, width, requires_grad=True) for _ in range(count)]
    query = torch.randn(width, requires_grad=True)
    with LiveBytes() as live:
        mixed = attn_res(sources, query)
        forward = live.peak
        grads = torch.autograd.grad(mixed, [*sources, query], torch.ones_like(mixed))
    assert unit <= forward < 1.1 * unit
    # The mixture, the gradient that comes in, one that goes out for each source.
    assert (count + 2) * unit <= live.peak < (count + 2.2) * unit
    assert len(grads) == count + 1


def test_a_profile_prints_nothing(capfd) -> None:
    peak_bytes(zeros)
    assert capfd.readouterr() == ("", "")
