"""The gated delta rule with a decay per channel (Kimi Delta Attention, arXiv 2510.26692): pure functions of tensors.

A head keeps a state `S [key, value]`. A token lets it decay, looks up its key, and moves what it found there towards
its value; its query then reads:

    S <- exp(log_decay) * S;  S <- S + beta key (value - key^T S)^T;  output = query^T S

Queries are taken as they are, so scale them before. Keys of length at most 1 and `beta` in [0, 1] keep the state
bounded. A token with `beta` 0 and `log_decay` 0 leaves no trace.
"""

from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from attention_residuals.errors import InputError, is_count
from attention_residuals.nn.delta_chunks import chunked, in_chunks
from attention_residuals.nn.delta_kernels import fused, kernels

Keys: TypeAlias = Float[Tensor, "batch time heads key"]
Values: TypeAlias = Float[Tensor, "batch time heads value"]
Strengths: TypeAlias = Float[Tensor, "batch time heads"]
Memory: TypeAlias = Float[Tensor, "batch heads key value"]

CHUNK_TOKENS = 64
"""Tokens of a chunk: products inside it cost as much as those with the state, for heads of about 64 features."""


def delta_rule(
    query: Keys, key: Keys, value: Values, log_decay: Keys, beta: Strengths, state: Memory | None = None
) -> tuple[Values, Memory]:
    """The delta rule in whichever way is fastest; arguments, result and errors as `delta_recurrent`.

    On a GPU the kernels of flash-linear-attention (`fla.ops.kda`) do it where that package is installed, for heads that
    they can hold. Without them one token takes the recurrence, and several take chunks.
    """
    if (found := kernels(query)) is not None:
        require_fit(query, key, value, log_decay, beta, state)
        return fused(found, query, key, value, log_decay, beta, state)
    rule = delta_recurrent if query.shape[1] == 1 else delta_chunked
    return rule(query, key, value, log_decay, beta, state)


def delta_recurrent(
    query: Keys, key: Keys, value: Values, log_decay: Keys, beta: Strengths, state: Memory | None = None
) -> tuple[Values, Memory]:
    """Token by token, as the rule is written: what other ways are tested against.

    Args:
        query, key: `[B, T, heads, key]`.
        value: `[B, T, heads, value]`.
        log_decay: `[B, T, heads, key]`, at most 0; -inf forgets.
        beta: `[B, T, heads]`.
        state: of the tokens before, `[B, heads, key, value]`; None: zero.

    Returns:
        Outputs `[B, T, heads, value]` in the type of the values, and the state after the last token, in float32 at
        least. That is also what everything is computed in.

    Raises:
        InputError: sizes that do not fit, or no token.
    """
    require_fit(query, key, value, log_decay, beta, state)
    kind, state = value.dtype, first_state(key, value, state)
    query, key, value, log_decay, beta = (x.to(state.dtype) for x in (query, key, value, log_decay, beta))
    outputs = []
    for t in range(key.shape[1]):
        state = state * log_decay[:, t].exp().unsqueeze(-1)
        found = (key[:, t].unsqueeze(-1) * state).sum(-2)
        change = beta[:, t].unsqueeze(-1) * (value[:, t] - found)
        state = state + key[:, t].unsqueeze(-1) * change.unsqueeze(-2)
        outputs.append((query[:, t].unsqueeze(-1) * state).sum(-2))
    return torch.stack(outputs, dim=1).to(kind), state


def delta_chunked(
    query: Keys,
    key: Keys,
    value: Values,
    log_decay: Keys,
    beta: Strengths,
    state: Memory | None = None,
    *,
    chunk_tokens: int = CHUNK_TOKENS,
) -> tuple[Values, Memory]:
    """As `delta_recurrent`, by matrix products over chunks of tokens; gradients included.

    Time and memory grow with the tokens, not with their square. No exp is above 1, however strong the decay.

    Args:
        query, key, value, log_decay, beta, state: as there.
        chunk_tokens: a power of two; any number of tokens may come, since the last chunk is filled up.

    Raises:
        InputError: as there, or `chunk_tokens` is no power of two.
    """
    require_fit(query, key, value, log_decay, beta, state)
    if not is_count(chunk_tokens) or chunk_tokens & (chunk_tokens - 1):
        raise InputError(f"chunk_tokens is {chunk_tokens}; it must be a power of two, for example {CHUNK_TOKENS}")
    tokens, kind, state = key.shape[1], value.dtype, first_state(key, value, state)
    size = min(chunk_tokens, 2 ** (tokens - 1).bit_length())
    query, key, value, log_decay, beta = (
        in_chunks(x.to(state.dtype), size) for x in (query, key, value, log_decay, beta.unsqueeze(-1))
    )
    output, state = chunked(query, key, value, log_decay, beta, state)
    return output[:, :, :tokens].transpose(1, 2).to(kind), state


def first_state(key: Keys, value: Values, state: Memory | None) -> Memory:
    """The state to begin with, in float32 at least: it sums up more tokens than a smaller type could count."""
    dtype = torch.promote_types(value.dtype, torch.float32)
    if state is not None:
        return state.to(dtype)
    batch, _, heads, width = key.shape
    return value.new_zeros(batch, heads, width, value.shape[-1], dtype=dtype)


def require_fit(
    query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, beta: Tensor, state: Tensor | None
) -> None:
    """Refuse sizes that would be stretched or would fail far from here.

    Raises:
        InputError: it names the tensor, its sizes, and those it must have.
    """
    if key.dim() != 4 or key.shape[1] == 0:
        raise InputError(f"key is {list(key.shape)}; it must be [batch, time, heads, key] with at least 1 token")
    batch, tokens, heads, width = key.shape
    expected = {
        "query": (query, [batch, tokens, heads, width]),
        "value": (value, [batch, tokens, heads, value.shape[-1]]),
        "log_decay": (log_decay, [batch, tokens, heads, width]),
        "beta": (beta, [batch, tokens, heads]),
    }
    if state is not None:
        expected["state"] = (state, [batch, heads, width, value.shape[-1]])
    for name, (given, sizes) in expected.items():
        if list(given.shape) != sizes:
            raise InputError(f"{name} is {list(given.shape)} beside a key of {list(key.shape)}; it must be {sizes}")
