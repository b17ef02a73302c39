"""Attention to the last tokens alone: masks, pieces of long texts, and a cache no larger than the window."""

from functools import lru_cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from attention_residuals.nn.attend import MASK_ENTRIES, attend
from attention_residuals.nn.context import Context

PIECE_TOKENS = 256
"""Tokens that look at their windows together, at least: fewer would make many small products of a long text."""


class WindowState(NamedTuple):
    """The last `window - 1` tokens, which are all that later ones may look at; room that is not used is in front.

    `key`, `value`: `[B, kv_heads, window - 1, head_dim]`. `there`: `[B, window - 1]`, false where there is none.
    """

    key: Tensor
    value: Tensor
    there: Tensor


def attend_window(
    query: Float[Tensor, "batch heads time head"],
    key: Float[Tensor, "batch kv_heads time head"],
    value: Float[Tensor, "batch kv_heads time head"],
    window: int,
    context: Context,
) -> Float[Tensor, "batch heads time head"]:
    """Causal attention in which a token sees itself and the `window - 1` tokens before it; padding is no token.

    With a cache the tokens before are its state of this layer, a `WindowState`, and padding is what `context.valid`
    says. Without one, `context.mask` says what a token may look at, and its window counts what it sees of that.
    """
    if context.cache is None and context.mask is not None:
        return attend(query, key, value, narrowed(context.mask, window))
    past, there = context.state(), context.valid
    if there is None:
        there = torch.ones(len(key), key.shape[2], dtype=torch.bool, device=key.device)
    if past is None and context.valid is None:
        attended = attend_band(query, key, value, window)
    else:
        if past is not None:
            before = WindowState(*past)
            key, value = torch.cat((before.key, key), dim=2), torch.cat((before.value, value), dim=2)
            there = torch.cat((before.there, there), dim=1)
        attended = attend(query, key, value, _mask(there, query.shape[2], window))
    if context.cache is not None:
        context.store(_last(key, value, there, window - 1, gaps=context.valid is not None))
    return attended


def narrowed(mask: Bool[Tensor, "batch 1 time keys"], window: int) -> Bool[Tensor, "batch 1 time keys"]:
    """Of the keys up to its own that a mask shows a token, the last `window`. The keys are those of the tokens."""
    causal = mask.tril()
    after = causal.flip(-1).cumsum(-1, dtype=torch.int32).flip(-1)  # keys seen from this one on
    return causal & (after <= window)


def attend_band(query: Tensor, key: Tensor, value: Tensor, window: int) -> Float[Tensor, "batch heads time head"]:
    """Of whole sequences without padding, in pieces: time and memory grow with tokens times window."""
    tokens = query.shape[2]
    if window >= tokens:
        return attend(query, key, value, None)
    rows = max(1, min(max(window, PIECE_TOKENS), MASK_ENTRIES // (window + PIECE_TOKENS)))
    pieces = []
    for begin in range(0, tokens, rows):
        end, first = min(begin + rows, tokens), max(0, begin - window + 1)
        mask = band(end - begin, end - first, window, query.device)
        pieces.append(attend(query[:, :, begin:end], key[:, :, first:end], value[:, :, first:end], mask))
    return torch.cat(pieces, dim=2)


def band(tokens: int, keys: int, window: int, device: torch.device) -> Bool[Tensor, "1 1 time keys"]:
    """The mask of the last `tokens` of `keys` tokens.

    All layers and pieces of one shape share one tensor: the last few are kept, at most about 1 MiB each. A compiler
    makes its own.
    """
    return (_band if torch.compiler.is_compiling() else _kept_band)(tokens, keys, window, device)


def _band(tokens: int, keys: int, window: int, device: torch.device) -> Tensor:
    ones = torch.ones(1, 1, tokens, keys, dtype=torch.bool, device=device)
    return ones.tril(keys - tokens).triu(keys - tokens - window + 1)


@lru_cache(maxsize=8)
def _kept_band(tokens: int, keys: int, window: int, device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # a tensor made in that mode could not be used in training later on
        return _band(tokens, keys, window, device)


def _mask(there: Bool[Tensor, "batch keys"], tokens: int, window: int) -> Bool[Tensor, "batch 1 tokens keys"]:
    """What the last `tokens` may look at: tokens count, wherever padding stands between them."""
    keys = there.shape[1]
    places = torch.arange(keys, device=there.device)
    own, rank = places[keys - tokens :].unsqueeze(1), there.cumsum(1)
    near = rank[:, keys - tokens :].unsqueeze(2) - rank.unsqueeze(1) < window
    mask = there.unsqueeze(1) & near & (places <= own)
    # A token of padding sees itself: a softmax over nothing has no value.
    return (mask | (places == own)).unsqueeze(1)


def _last(key: Tensor, value: Tensor, there: Tensor, count: int, *, gaps: bool) -> WindowState:
    """The last `count` tokens of each row; a copy, since a view would keep all of them alive.

    `gaps`: padding may stand between tokens; otherwise it is in front of them.
    """
    missing = max(0, count - key.shape[2])
    key, value = (F.pad(states, (0, 0, missing, 0)) for states in (key, value))
    there = F.pad(there, (missing, 0))
    first = key.shape[2] - count
    if not gaps:
        return WindowState(key[:, :, first:].clone(), value[:, :, first:].clone(), there[:, first:].clone())
    order = there.to(torch.uint8).argsort(dim=1, stable=True)[:, first:]  # tokens behind padding, each in their order
    places = order[:, None, :, None]
    return WindowState(
        key.take_along_dim(places, dim=2), value.take_along_dim(places, dim=2), there.take_along_dim(order, dim=1)
    )
