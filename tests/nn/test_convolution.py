"""The short convolution against torch's own, and its state."""

import pytest
import torch
import torch.nn.functional as F

from attention_residuals.errors import InputError
from attention_residuals.nn import ShortConvolution


@pytest.mark.parametrize("kernel", [1, 2, 4])
@pytest.mark.parametrize("tokens", [1, 3, 9])
def test_equals_a_depthwise_convolution(kernel: int, tokens: int) -> None:
    torch.manual_seed(0)
    convolution, x = ShortConvolution(5, kernel).double(), torch.randn(2, tokens, 5, dtype=torch.float64)
    padded = F.pad(x.transpose(1, 2), (kernel - 1, 0))
    expected = F.silu(F.conv1d(padded, convolution.weight, groups=5)).transpose(1, 2)
    torch.testing.assert_close(convolution(x)[0], expected, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("cuts", [[1] * 9, [2, 1, 6], [5, 4]])
def test_the_tokens_may_be_cut_anywhere(cuts: list[int]) -> None:
    """Sums are the same to the bit; a sigmoid may differ in its last one by where it stands in memory."""
    torch.manual_seed(0)
    convolution, x = ShortConvolution(5), torch.randn(2, 9, 5)
    expected, last = convolution(x)
    outputs, state = [], None
    for piece in x.split(cuts, dim=1):
        output, state = convolution(piece, state)
        outputs.append(output)
    torch.testing.assert_close(torch.cat(outputs, 1), expected, rtol=4 * torch.finfo(torch.float32).eps, atol=0)
    assert state is not None and torch.equal(state, last) and torch.equal(state, x[:, -3:])


def test_padding_behind_a_row_stays_out_of_its_state() -> None:
    torch.manual_seed(0)
    convolution, x, before = ShortConvolution(5), torch.randn(4, 6, 5), torch.randn(4, 3, 5)
    _, state = convolution(x, before, torch.tensor([6, 2, 0, 4]))
    for row, count in enumerate((6, 2, 0, 4)):
        assert torch.equal(state[row], torch.cat((before[row], x[row, :count]))[-3:])


def test_a_state_keeps_nothing_else_alive() -> None:
    _, state = ShortConvolution(5)(torch.randn(2, 100, 5))
    assert state.untyped_storage().nbytes() == 2 * 3 * 5 * 4


@pytest.mark.parametrize(("channels", "kernel", "name"), [(5, 0, "kernel"), (0, 4, "channels"), (5, 1.5, "kernel")])
def test_sizes_below_one_are_refused(channels: int, kernel: int, name: str) -> None:
    with pytest.raises(InputError, match=f"{name} of a convolution is"):
        ShortConvolution(channels, kernel)
