"""The state space duality: chunks against the recurrence, forward and backward, and its bad input."""

import pytest
import torch
from torch import Tensor

from attention_residuals.errors import InputError
from attention_residuals.nn import state_space, state_space_chunked, state_space_recurrent

from .deltas import Decay, log_decays

NAMES = ("query", "key", "value", "log_decay", "state")


def problem(tokens: int, decay: Decay = Decay.WIDE) -> list[Tensor]:
    torch.manual_seed(tokens)
    sizes = (2, tokens, 3)
    query, key, value = (torch.randn(*sizes, width, dtype=torch.float64) for width in (7, 7, 5))
    return [query, key, value, log_decays(decay, *sizes), torch.randn(2, 3, 7, 5, dtype=torch.float64)]


def test_the_recurrence_is_the_formula() -> None:
    query, key, value, log_decay, state = problem(6)
    outputs, last = state_space_recurrent(query, key, value, log_decay, state)
    for row in range(2):
        for head in range(3):
            memory = state[row, head]
            for t in range(6):
                memory = torch.exp(log_decay[row, t, head]) * memory + torch.outer(
                    key[row, t, head], value[row, t, head]
                )
                torch.testing.assert_close(outputs[row, t, head], memory.T @ query[row, t, head], rtol=1e-12, atol=0)
            torch.testing.assert_close(last[row, head], memory, rtol=1e-12, atol=0)


@pytest.mark.parametrize("decay", Decay)
@pytest.mark.parametrize(("tokens", "chunk"), [(1, 64), (2, 1), (13, 4), (64, 16), (65, 64), (150, 64)])
def test_chunks_equal_the_recurrence_with_gradients(decay: Decay, tokens: int, chunk: int) -> None:
    inputs = [tensor.requires_grad_() for tensor in problem(tokens, decay)]
    others = [tensor.detach().clone().requires_grad_() for tensor in inputs]
    expected = state_space_recurrent(*inputs)
    found = state_space_chunked(*others, chunk_tokens=chunk)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
    for result in (expected, found):
        (result[0].square().sum() + result[1].square().sum()).backward()
    for name, one, other in zip(NAMES, inputs, others, strict=True):
        assert one.grad is not None and other.grad is not None, name
        torch.testing.assert_close(other.grad, one.grad, rtol=1e-9, atol=1e-9, msg=name)


def test_without_a_state_it_begins_with_zero_and_goes_on_where_it_stopped() -> None:
    query, key, value, log_decay, _ = problem(100)
    whole, last = state_space(query, key, value, log_decay)
    torch.testing.assert_close(whole, state_space_recurrent(query, key, value, log_decay)[0], rtol=1e-10, atol=1e-10)
    state, pieces = None, []
    for part in (slice(0, 37), slice(37, 38), slice(38, 100)):
        output, state = state_space(query[:, part], key[:, part], value[:, part], log_decay[:, part], state)
        pieces.append(output)
    assert state is not None
    torch.testing.assert_close(torch.cat(pieces, 1), whole, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(state, last, rtol=1e-10, atol=1e-10)


def test_single_precision_loses_nothing_to_strong_decays() -> None:
    inputs = problem(200, Decay.STRONG)
    expected, _ = state_space_recurrent(*inputs)
    found, state = state_space_chunked(*(tensor.float() for tensor in inputs))
    assert found.dtype == state.dtype == torch.float32 and found.isfinite().all()
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("place", range(5))
def test_sizes_that_do_not_fit_are_refused(place: int) -> None:
    inputs = problem(4)
    inputs[place] = inputs[place][..., :2] if place != 1 else inputs[place][:, :0]
    if place == 2:
        inputs[place] = inputs[place][:, :3]
    with pytest.raises(InputError, match=f"{NAMES[place]} is "):
        state_space(*inputs)


def test_chunks_that_are_no_power_of_two_are_refused() -> None:
    with pytest.raises(InputError, match="chunk_tokens is 12; it must be a power of two"):
        state_space_chunked(*problem(4), chunk_tokens=12)
