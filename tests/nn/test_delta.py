"""The delta rule: the recurrence against the formula with matrices, chunks and kernels against the recurrence."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from attention_residuals.errors import InputError
from attention_residuals.nn import delta_chunked, delta_recurrent, delta_rule
from attention_residuals.nn.delta_kernels import fused, kernels

from .deltas import Decay, Work, cast, problem

LENGTHS = (1, 2, 5, 63, 64, 65, 150)
each_decay = pytest.mark.parametrize("decay", Decay)
each_length = pytest.mark.parametrize("tokens", LENGTHS)


def assert_close(found: Tensor, expected: Tensor, allowed: float) -> None:
    """Equal to `allowed` of the largest number, or of 1."""
    assert found.shape == expected.shape
    assert (found.double() - expected).abs().max() <= allowed * max(1, expected.abs().max())


@each_decay
def test_the_recurrence_equals_the_formula_with_matrices(decay: Decay) -> None:
    query, key, value, log_decay, beta, state = problem(6, decay)
    outputs, last = delta_recurrent(query, key, value, log_decay, beta, state)
    for row in range(2):
        for head in range(3):
            memory = state[row, head]
            for t in range(6):
                k, v = key[row, t, head], value[row, t, head]
                erase = torch.eye(7, dtype=torch.float64) - beta[row, t, head] * torch.outer(k, k)
                memory = erase @ torch.diag(log_decay[row, t, head].exp()) @ memory
                memory = memory + beta[row, t, head] * torch.outer(k, v)
                assert_close(outputs[row, t, head], memory.T @ query[row, t, head], 1e-14)
            assert_close(last[row, head], memory, 1e-14)


def test_without_decay_and_with_orthogonal_keys_values_are_found_again() -> None:
    key = torch.eye(4, dtype=torch.float64)[None, :, None]
    value = torch.randn(1, 4, 1, 3, dtype=torch.float64)
    ones = torch.ones(1, 4, 1, dtype=torch.float64)
    _, memory = delta_recurrent(key, key, value, torch.zeros_like(key), ones)
    again, _ = delta_chunked(key, key, value, torch.zeros_like(key), torch.zeros_like(ones), memory)
    assert torch.equal(again, value)


def weigh(x: Tensor) -> Tensor:
    """The same for every tensor of one shape, however it lies in memory."""
    return torch.randn(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(0))


@each_decay
@each_length
@pytest.mark.parametrize("beta", [None, 0.0, 1.0])
def test_chunks_equal_the_recurrence_with_all_gradients(tokens: int, decay: Decay, beta: float | None) -> None:
    inputs = [x.requires_grad_() for x in problem(tokens, decay, beta=beta)]
    found = []
    for rule in (delta_chunked, delta_recurrent):
        output, last = rule(*inputs)
        loss = (output * weigh(output)).sum() + (last * weigh(last)).sum()
        found.append((output, last, *torch.autograd.grad(loss, inputs)))
    for ours, expected in zip(*found, strict=True):
        assert_close(ours, expected, 1e-12)


@pytest.mark.parametrize("chunk_tokens", [1, 2, 16, 256])
def test_chunks_of_any_power_of_two_equal_the_recurrence(chunk_tokens: int) -> None:
    inputs = problem(75)[:5]
    for ours, expected in zip(delta_chunked(*inputs, chunk_tokens=chunk_tokens), delta_recurrent(*inputs), strict=True):
        assert_close(ours, expected, 1e-12)


def test_gradients_equal_finite_differences() -> None:
    inputs = [x.requires_grad_() for x in problem(5, batch=1, heads=2, key=3, value=2)]
    assert torch.autograd.gradcheck(lambda *given: delta_chunked(*given, chunk_tokens=2), inputs)


@each_decay
@each_length
def test_float32_loses_what_its_sums_must_lose(tokens: int, decay: Decay) -> None:
    """An output is a sum over keys of sums over a chunk: as many roundings, each of half an eps, at worst."""
    inputs = problem(tokens, decay)
    expected = delta_recurrent(*inputs)
    allowed = (64 + 7) * torch.finfo(torch.float32).eps / 2
    for ours, exact in zip(delta_chunked(*cast(inputs, torch.float32)), expected, strict=True):
        assert ours.dtype == torch.float32
        assert_close(ours, exact, allowed)


def test_a_weak_decay_after_strong_ones_is_not_lost() -> None:
    """Running sums of -50 and -1e-3, 64 tokens of them, differ by -1e-3 with an error of 2e-4 in float32."""
    query, key, value, log_decay, beta, _ = problem(64, Decay.STRONG)
    log_decay[:, 50:] = -1e-3
    expected, _ = delta_recurrent(query, key, value, log_decay, beta)
    found, _ = delta_chunked(*cast((query, key, value, log_decay, beta), torch.float32))
    assert_close(found, expected, (64 + 7) * torch.finfo(torch.float32).eps / 2)


def test_the_state_goes_on_where_it_stopped() -> None:
    *inputs, state = problem(100)
    whole, last = delta_chunked(*[*inputs, state])
    outputs = []
    for begin, end in ((0, 30), (30, 31), (31, 100)):
        output, state = delta_rule(*[*(x[:, begin:end] for x in inputs), state])
        outputs.append(output)
    assert_close(torch.cat(outputs, 1), whole, 1e-12)
    assert_close(state, last, 1e-12)


def test_a_token_without_strength_and_decay_leaves_no_trace() -> None:
    *given, state = problem(70)
    given[3][:, 60:], given[4][:, 60:] = 0, 0  # log_decay and beta
    _, short = delta_chunked(*[*(x[:, :60] for x in given), state])
    _, long = delta_chunked(*[*given, state])
    _, still = delta_recurrent(*[*(x[:, 60:] for x in given), state])
    assert_close(long, short, 1e-14)
    assert torch.equal(still, state)


def test_half_precision_is_summed_in_single() -> None:
    inputs = cast(problem(70, Decay.NONE), torch.bfloat16)
    for rule in (delta_chunked, delta_recurrent):
        output, state = rule(*inputs)
        assert (output.dtype, state.dtype) == (torch.bfloat16, torch.float32)
        assert_close(state, delta_recurrent(*cast(inputs, torch.float64))[1], 1e-5)


def cost(tokens: int) -> tuple[int, int]:
    inputs = problem(tokens)
    with FlopCounterMode(display=False) as products, Work() as work:
        delta_chunked(*inputs)
    return products.get_total_flops(), work.numbers


def test_cost_grows_with_the_tokens() -> None:
    """Products and numbers written: what each further chunk adds is the same."""
    costs = [cost(64 * chunks) for chunks in (1, 2, 3, 7)]
    for first, second, third, seventh in zip(*costs, strict=True):
        assert 0 < second - first == third - second
        assert seventh - third == 4 * (second - first)


def test_kernels_are_for_gpus_and_get_our_layout() -> None:
    assert kernels(torch.zeros(1, 2, 1, 4)) is None
    calls = []

    def record(name: str):
        def rule(q, k, v, g, beta, scale, initial_state, output_final_state):
            assert scale == 1.0 and output_final_state
            calls.append(name)
            return delta_recurrent(q, k, v, g, beta, initial_state)

        return rule

    run: Any = fused
    module = SimpleNamespace(chunk_kda=record("chunk"), fused_recurrent_kda=record("single"))
    *inputs, state = cast(problem(3), torch.float32)
    one = [x[:, :1] for x in inputs]
    for ours, expected in zip(run(module, *inputs, state), delta_recurrent(*[*inputs, state]), strict=True):
        assert torch.equal(ours, expected)
    run(module, *one, state)
    with torch.no_grad():
        run(module, *one, None)
    assert calls == ["chunk", "chunk", "single"]


@pytest.mark.parametrize(
    ("place", "sizes", "message"),
    [
        (0, (2, 4, 3, 6), "query is .* it must be .2, 4, 3, 7."),
        (1, (2, 0, 3, 7), "key is .2, 0, 3, 7.; it must be .* with at least 1 token"),
        (2, (2, 4, 1, 5), "value is .2, 4, 1, 5."),
        (3, (2, 4, 3, 1), "log_decay is .2, 4, 3, 1."),
        (4, (2, 4, 3, 1), "beta is .2, 4, 3, 1."),
        (5, (2, 3, 5, 7), "state is .* it must be .2, 3, 7, 5."),
    ],
)
def test_sizes_that_do_not_fit_are_refused(place: int, sizes: tuple[int, ...], message: str) -> None:
    inputs = problem(4)
    inputs[place] = torch.zeros(sizes)
    for rule in (delta_rule, delta_chunked, delta_recurrent):
        with pytest.raises(InputError, match=message):
            rule(*inputs)


@pytest.mark.parametrize("chunk_tokens", [0, 48, 2.0])
def test_chunks_that_cannot_be_halved_are_refused(chunk_tokens: int) -> None:
    with pytest.raises(InputError, match=f"chunk_tokens is {chunk_tokens}; it must be a power of two"):
        delta_chunked(*problem(4), chunk_tokens=chunk_tokens)
