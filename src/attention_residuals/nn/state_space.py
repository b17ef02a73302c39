"""The state space duality of Mamba-2 (arXiv 2405.21060): a linear attention with one decay a head, as pure functions.

A head keeps a state `S [key, value]`; a token lets it decay and adds its own pair, then its query reads:

    S <- exp(log_decay) S + key value^T;  output = query^T S

In the words of state spaces the query is C, the key B, the value the step times x. A token with key or value 0 and
`log_decay` 0 leaves no trace.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from attention_residuals.errors import InputError, is_count
from attention_residuals.nn.delta import CHUNK_TOKENS, Keys, Memory, Strengths, Values, first_state
from attention_residuals.nn.delta_chunks import in_chunks, pairs


def state_space(
    query: Keys, key: Keys, value: Values, log_decay: Strengths, state: Memory | None = None
) -> tuple[Values, Memory]:
    """One token by the recurrence, several by chunks; arguments, result and errors as `state_space_recurrent`."""
    rule = state_space_recurrent if query.shape[1] == 1 else state_space_chunked
    return rule(query, key, value, log_decay, state)


def state_space_recurrent(
    query: Keys, key: Keys, value: Values, log_decay: Strengths, state: Memory | None = None
) -> tuple[Values, Memory]:
    """Token by token, as the rule is written: what the other way is tested against.

    Args:
        query, key: `[B, T, heads, key]`.
        value: `[B, T, heads, value]`.
        log_decay: `[B, T, heads]`, at most 0; -inf forgets.
        state: of the tokens before, `[B, heads, key, value]`; None: zero.

    Returns:
        Outputs `[B, T, heads, value]` in the type of the values, and the state after the last token, in float32 at
        least. That is also what everything is computed in.

    Raises:
        InputError: sizes that do not fit, or no token.
    """
    _require_fit(query, key, value, log_decay, state)
    kind, state = value.dtype, first_state(key, value, state)
    query, key, value, log_decay = (x.to(state.dtype) for x in (query, key, value, log_decay))
    outputs = []
    for t in range(key.shape[1]):
        kept = log_decay[:, t].exp()[..., None, None]
        state = kept * state + key[:, t].unsqueeze(-1) * value[:, t].unsqueeze(-2)
        outputs.append((query[:, t].unsqueeze(-1) * state).sum(-2))
    return torch.stack(outputs, dim=1).to(kind), state


def state_space_chunked(
    query: Keys,
    key: Keys,
    value: Values,
    log_decay: Strengths,
    state: Memory | None = None,
    *,
    chunk_tokens: int = CHUNK_TOKENS,
) -> tuple[Values, Memory]:
    """As `state_space_recurrent`, by matrix products over chunks of tokens (section 6); gradients included.

    Time and memory grow with the tokens, not with their square. Decays inside a chunk are those of `delta_chunks`: no
    difference of running sums, no exp above 1.

    Args:
        query, key, value, log_decay, state: as there.
        chunk_tokens: a power of two; any number of tokens may come, since the last chunk is filled up.

    Raises:
        InputError: as there, or `chunk_tokens` is no power of two.
    """
    _require_fit(query, key, value, log_decay, state)
    if not is_count(chunk_tokens) or chunk_tokens & (chunk_tokens - 1):
        raise InputError(f"chunk_tokens is {chunk_tokens}; it must be a power of two, for example {CHUNK_TOKENS}")
    tokens, kind, state = key.shape[1], value.dtype, first_state(key, value, state)
    size = min(chunk_tokens, 2 ** (tokens - 1).bit_length())
    inputs = (query, key, value, log_decay.unsqueeze(-1))
    query, key, value, log_decay = (in_chunks(x.to(state.dtype), size) for x in inputs)
    outputs, state = _chunks(query, key, value, log_decay, state)
    return outputs[:, :, :tokens].transpose(1, 2).to(kind), state


def _chunks(
    query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, state: Tensor
) -> tuple[Float[Tensor, "batch heads time value"], Float[Tensor, "batch heads key value"]]:
    """Inside a chunk every token reads those before it; from chunk to chunk the state goes on."""
    (seen,), since, until = pairs((query,), key, log_decay)
    from_first = since.exp()
    inside, reading = seen @ value, query * from_first
    added, kept = (key * until.exp()).mT @ value, from_first[..., -1:, :]
    outputs = []
    # Unbound once, as in `delta_chunks`.
    for read, own, keep, new in zip(*(x.unbind(2) for x in (reading, inside, kept, added)), strict=True):
        outputs.append(read @ state + own)
        state = keep * state + new
    return torch.cat(outputs, dim=2), state


def _require_fit(query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, state: Tensor | None) -> None:
    if key.dim() != 4 or key.shape[1] == 0:
        raise InputError(f"key is {list(key.shape)}; it must be [batch, time, heads, key] with at least 1 token")
    batch, tokens, heads, width = key.shape
    expected = {
        "query": (query, [batch, tokens, heads, width]),
        "value": (value, [batch, tokens, heads, value.shape[-1]]),
        "log_decay": (log_decay, [batch, tokens, heads]),
    }
    if state is not None:
        expected["state"] = (state, [batch, heads, width, value.shape[-1]])
    for name, (given, sizes) in expected.items():
        if list(given.shape) != sizes:
            raise InputError(f"{name} is {list(given.shape)} beside a key of {list(key.shape)}; it must be {sizes}")
