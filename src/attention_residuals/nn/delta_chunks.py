"""The delta rule inside chunks of tokens, by matrix products (the WY form of arXiv 2510.26692, section 3).

Within a chunk the changes that tokens make to the state solve a triangular system, since each depends on those before:

    change_i + beta_i sum_{j<i} (key_i . key_j decayed from j to i) change_j = beta_i (value_i - key_i^T decayed state)

What token j left is decayed by exp of a sum of `log_decay` over the tokens after j up to i. That sum is never taken as
a difference of two running sums: where decays are strong these are large and nearly equal. A chunk is halved again and
again instead. Every two tokens are parted by one middle, and sums up to it and from it on are all there is to know;
they have one sign, so that nothing cancels and no exp is above 1.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

Chunks = Float[Tensor, "batch heads chunks chunk _"]


class Pairs(NamedTuple):
    """Of the tokens in each chunk.

    `blocks`: a matrix `[.., chunk, chunk]` for each kind of rows, zero above the diagonal: row i times the key of token
    j, decayed from j to i. `since`, `until`: `[.., chunk, key]` sums of `log_decay`, from the first token of the chunk
    up to each token, and over the tokens after it.
    """

    blocks: list[Tensor]
    since: Tensor
    until: Tensor


def in_chunks(x: Float[Tensor, "batch time heads _"], size: int) -> Chunks:
    """Tokens in chunks of `size`. The last one is filled up with zeros: tokens that leave no trace."""
    tokens = x.shape[1]
    return F.pad(x.transpose(1, 2), (0, 0, 0, -tokens % size)).unflatten(2, (-1, size))


def chunked(
    query: Chunks,
    key: Chunks,
    value: Chunks,
    log_decay: Chunks,
    beta: Float[Tensor, "batch heads chunks chunk 1"],
    state: Float[Tensor, "batch heads key value"],
) -> tuple[Float[Tensor, "batch heads time value"], Float[Tensor, "batch heads key value"]]:
    """Outputs of all tokens, and the state after the last; the tokens of a chunk are a power of two."""
    (among, seen), since, until = pairs((beta * key, query), key, log_decay)
    from_first = since.exp()
    given = torch.cat((beta * value, beta * key * from_first), dim=-1)
    solved = torch.linalg.solve_triangular(among, given, upper=False, unitriangular=True)
    fresh, recalled = solved.split((value.shape[-1], key.shape[-1]), dim=-1)
    reading, writing, kept = query * from_first, (key * until.exp()).mT, from_first[..., -1, :].unsqueeze(-1)
    outputs = []
    # Unbound once: to index them would give each of them a whole gradient for every chunk.
    parts = (x.unbind(2) for x in (fresh, recalled, reading, seen, kept, writing))
    for new, old, read, own, keep, write in zip(*parts, strict=True):
        change = new - old @ state
        outputs.append(read @ state + own @ change)
        state = keep * state + write @ change
    return torch.cat(outputs, dim=2), state


def pairs(rows: Sequence[Tensor], key: Tensor, log_decay: Tensor) -> Pairs:
    """From single tokens upwards: two neighbouring blocks of `size` tokens become one.

    `log_decay` may have one feature, for all of a key.
    """
    size, blocks = 1, [(row * key).sum(-1)[..., None, None] for row in rows]
    since, until = log_decay, torch.zeros_like(log_decay)
    while size < key.shape[-2]:
        (since_first, since_second), (until_first, until_second) = _halves(since, size), _halves(until, size)
        early_keys = (_halves(key, size)[0] * until_first.exp()).mT
        decay = since_second.exp()
        blocks = [
            _join(block, (_halves(row, size)[1] * decay) @ early_keys) for block, row in zip(blocks, rows, strict=True)
        ]
        first, second = since_first[..., -1:, :], since_second[..., -1:, :]  # sums over all tokens of each half
        since = torch.cat((since_first, since_second + first), dim=-2).flatten(-3, -2)
        until = torch.cat((until_first + second, until_second), dim=-2).flatten(-3, -2)
        size *= 2
    return Pairs([block.squeeze(-3) for block in blocks], since, until)


def _halves(x: Float[Tensor, "*chunks chunk _"], size: int) -> tuple[Tensor, Tensor]:
    """First and second halves `[.., blocks, size, _]` of blocks of twice `size` tokens."""
    first, second = x.unflatten(-2, (-1, 2, size)).unbind(-3)
    return first, second


def _join(blocks: Float[Tensor, "*chunks blocks size size"], below: Tensor) -> Tensor:
    """Every two blocks on the diagonal of one twice as large, with `below [.., blocks / 2, size, size]` under it."""
    first, second = blocks.unflatten(-3, (-1, 2)).unbind(-3)
    size = below.shape[-1]
    return torch.cat((F.pad(first, (0, size)), torch.cat((below, second), dim=-1)), dim=-2)
