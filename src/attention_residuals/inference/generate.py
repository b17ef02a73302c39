"""Text out of a trained model: prefill in chunks, then one token at a time with a cache."""

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float, Int, Integer
from torch import Tensor

from attention_residuals.errors import InputError, is_count
from attention_residuals.inference.caches import GrowingCache
from attention_residuals.inference.prompts import Padding, Prompts
from attention_residuals.inference.sampling import GREEDY, Sampling, draw
from attention_residuals.inference.session import Forward, Session, SessionCache, TextModel

CHUNK_TOKENS = 1024
"""Prompt tokens taken in at once: enough for products at full speed, and a small state of the depth."""


def generate(
    model: TextModel, prompts: Sequence[Integer[Tensor, "_"]], *, tokens: int, **options: object
) -> list[Int[Tensor, "_"]]:
    """Up to `tokens` tokens after each of the prompts `[T_b]`, without the prompts; options as for `stream`.

    Raises:
        InputError: as `stream`.
    """
    columns = list(stream(model, prompts, tokens=tokens, **options))  # pyright: ignore[reportArgumentType]
    rows = zip(*columns, strict=True) if columns else [()] * len(prompts)
    return [torch.tensor([token for token in row if token is not None], dtype=torch.int64) for row in rows]


def stream(
    model: TextModel,
    prompts: Sequence[Integer[Tensor, "_"]],
    *,
    tokens: int,
    sampling: Sampling = GREEDY,
    stop_token: int | None = None,
    context_tokens: int | None = None,
    chunk_tokens: int | None = CHUNK_TOKENS,
    padding: Padding = Padding.LEFT,
    cache: SessionCache | None = None,
    forward: Forward | None = None,
) -> Iterator[list[int | None]]:
    """The same token by token: each item has the next token of every prompt, None for those that have stopped.

    Args:
        model: on any device, in any type.
        prompts: of any lengths; alone or in a batch, a prompt gets the same logits.
        tokens: at most so many new tokens for each.
        sampling: how they are drawn; greedy by default.
        stop_token: a prompt has stopped once it drew this token, which is its last.
        context_tokens: the longest that prompt and new tokens may be together; None: no bound.
        chunk_tokens: prompt tokens taken in at once; None: all.
        padding: on which side short prompts are filled up; a matter of layout alone.
        cache: a new cache to use, a `StaticCache` for instance; None: one that grows.
        forward: how tokens go through the model, for one that several processes share; None: all in this process.

    Raises:
        InputError: an empty prompt, a token outside the vocabulary, prompt and tokens beyond the context, a count below
            1, or logits that are not numbers. All but the last are raised at once, before the first item is asked for.
    """
    for name, count in (("tokens", tokens), ("chunk_tokens", chunk_tokens), ("context_tokens", context_tokens)):
        if count is not None and not is_count(count):
            raise InputError(f"{name} is {count}; it must be a whole number of at least 1")
    batch = Prompts.pad(prompts, padding)
    batch.require_vocabulary(model.config.vocab_size)
    if context_tokens is not None:
        batch.require_room(tokens, context_tokens)
    if cache is None:
        cache = GrowingCache(reserve_tokens=batch.tokens.shape[1] + tokens)
    return _stream(Session(model, cache, forward), batch, tokens, sampling, stop_token, chunk_tokens)


def _stream(
    session: Session,
    prompts: Prompts,
    tokens: int,
    sampling: Sampling,
    stop_token: int | None,
    chunk_tokens: int | None,
) -> Iterator[list[int | None]]:
    rows = len(prompts.tokens)
    generators, running = sampling.generators(rows), [True] * rows
    drawn = torch.empty(0)
    for n in range(tokens):
        with torch.no_grad():
            logits = session.append(drawn) if n else session.prefill(prompts, chunk_tokens)
        _require_numbers(session.model, logits)
        drawn = draw(logits, sampling, generators)
        found = drawn.tolist()
        yield [token if runs else None for token, runs in zip(found, running, strict=True)]
        running = [runs and token != stop_token for token, runs in zip(found, running, strict=True)]
        if not any(running):
            return


def _require_numbers(model: TextModel, logits: Float[Tensor, "batch vocab"]) -> None:
    """Refuse to draw from what is no distribution.

    Raises:
        InputError: it names the parameter that holds NaN, if one does.
    """
    if not logits.isnan().any():
        return
    for name, parameter in model.named_parameters():
        if parameter.isnan().any():
            raise InputError(f"the model's logits are NaN because its weights are: {name} holds NaN; use another copy")
    raise InputError(f"the model's logits are NaN although its weights are not: sums overflow in {logits.dtype}")
