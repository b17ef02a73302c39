"""Generation: the same tokens with and without a cache, alone and in a batch; and what it refuses."""

from itertools import islice

import pytest
import torch
from torch import Tensor

from attention_residuals import Decoder, InputError
from attention_residuals.inference import Padding, Sampling, StaticCache, generate, stream

from .support import RESIDUALS, build, prompts

each_residual = pytest.mark.parametrize("residual", RESIDUALS.values(), ids=RESIDUALS.keys())
RAGGED = (5, 17, 1, 40, 30)
TOKENS = 24


def greedy_without_cache(model: Decoder, prompt: Tensor, tokens: int) -> Tensor:
    """Every token runs the whole text again. Ends where the top two logits are too close to tell apart."""
    text = prompt
    for _ in range(tokens):
        logits = model(text[None])[0, -1]
        first, second = logits.topk(2).values
        if first - second <= 2e-5 * logits.abs().max():
            break
        text = torch.cat((text, logits.argmax()[None]))
    return text[len(prompt) :]


@each_residual
@pytest.mark.parametrize("padding", Padding)
def test_greedy_tokens_are_those_without_a_cache(residual, padding: Padding) -> None:
    model, batch = build(residual), prompts(*RAGGED)
    together = generate(model, batch, tokens=TOKENS, padding=padding, chunk_tokens=7)
    for row, prompt in enumerate(batch):
        expected = greedy_without_cache(model, prompt, TOKENS)
        assert len(expected) > TOKENS // 2, "a tie too early to test anything"
        (alone,) = generate(model, [prompt], tokens=TOKENS, cache=StaticCache(TOKENS + len(prompt)))
        assert torch.equal(together[row][: len(expected)], expected)
        assert torch.equal(alone[: len(expected)], expected)


def test_a_seed_gives_the_same_text_again() -> None:
    model, batch = build(RESIDUALS["block"]), prompts(4)
    drawn = [generate(model, batch, tokens=12, sampling=Sampling(seed=seed))[0] for seed in (0, 0, 1)]
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])
    assert drawn[0].shape == (12,) and drawn[0].dtype == torch.int64


def test_the_first_row_draws_the_same_alone_and_in_a_batch() -> None:
    model, batch = build(RESIDUALS["full"]), prompts(7, 12)
    together = generate(model, batch, tokens=8, sampling=Sampling(seed=3))
    assert torch.equal(generate(model, batch[:1], tokens=8, sampling=Sampling(seed=3))[0], together[0])


def test_equal_prompts_draw_differently() -> None:
    model, batch = build(RESIDUALS["block"]), prompts(7) * 2
    one, other = generate(model, batch, tokens=12, sampling=Sampling())
    assert not torch.equal(one, other)


def test_a_stop_token_is_the_last_one_of_its_row_alone() -> None:
    model, batch = build(RESIDUALS["block"]), prompts(4, 9)
    free = generate(model, batch, tokens=10, sampling=Sampling(seed=5))
    stop = free[0][3].item()
    assert stop not in free[1].tolist() and stop not in free[0][:3].tolist()
    stopped = generate(model, batch, tokens=10, sampling=Sampling(seed=5), stop_token=int(stop))
    assert torch.equal(stopped[0], free[0][:4]) and torch.equal(stopped[1], free[1])


def test_the_stream_ends_when_every_row_has_stopped() -> None:
    model, batch = build(RESIDUALS["block"]), prompts(4)
    (first,) = generate(model, batch, tokens=1)
    assert list(stream(model, batch, tokens=10, stop_token=int(first[0]))) == [[int(first[0])]]


def test_tokens_come_one_by_one() -> None:
    model, batch = build(RESIDUALS["full"]), prompts(4, 6)
    taken = list(islice(stream(model, batch, tokens=1000), 3))
    assert [list(row) for row in zip(*taken, strict=True)] == [row.tolist() for row in generate(model, batch, tokens=3)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokens": 0}, "tokens is 0"),
        ({"chunk_tokens": 0}, "chunk_tokens is 0"),
        ({"chunk_tokens": 2.5}, "chunk_tokens is 2.5"),
        ({"context_tokens": 12}, "a prompt of 9 tokens and 4 new ones do not fit a context of 12"),
    ],
)
def test_wrong_counts_are_refused_at_once(options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        stream(build(RESIDUALS["block"]), prompts(9, 3), **{"tokens": 4, **options})


def test_wrong_prompts_are_refused() -> None:
    model = build(RESIDUALS["block"])
    for batch, message in [
        ([], "there are no prompts"),
        ([torch.tensor([1]), torch.tensor([], dtype=torch.int64)], "prompt 1 is empty"),
        ([torch.tensor([1, 2]), torch.tensor([3, 256, 4])], "token 1 of prompt 1 is 256; .* run from 0 to 255"),
        ([torch.tensor([-1])], "token 0 of prompt 0 is -1"),
    ]:
        with pytest.raises(InputError, match=message):
            stream(model, batch, tokens=1)


def test_nan_weights_are_named() -> None:
    model = build(RESIDUALS["block"])
    model.stream.pre_norms["3"][2] = float("nan")
    with pytest.raises(InputError, match=r"stream.pre_norms.3 holds NaN"):
        generate(model, prompts(3), tokens=1)
