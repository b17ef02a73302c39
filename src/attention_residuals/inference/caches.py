"""What is kept of earlier tokens, layer by layer: keys and values, or the state of a recurrent sublayer.

Depth has no part in it: its state lives inside one forward.
"""

from typing import final

import torch
from torch import Tensor

from attention_residuals.errors import InputError, is_count


@final
class GrowingCache:
    """Takes any number of tokens. Room doubles when it runs out, so that few tokens are ever copied.

    Args:
        reserve_tokens: tokens to make room for at first; the number to expect, if it is known.
    """

    def __init__(self, reserve_tokens: int = 0):
        self._reserve = reserve_tokens
        self._layers: dict[int, _Room] = {}
        self._states: dict[int, tuple[Tensor, ...]] = {}

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int) -> tuple[Tensor, Tensor]:
        """Add `[B, kv_heads, T, head_dim]` of new tokens; returns those of all tokens."""
        room = self._layers.setdefault(layer_idx, _Room())
        needed = room.tokens + key_states.shape[2]
        if needed > room.capacity:
            room.grow(max(needed, 2 * room.capacity, self._reserve), key_states, value_states)
        room.append(key_states, value_states)
        return room.keys[:, :, :needed], room.values[:, :, :needed]

    def keys_for(self, tokens: int) -> int:
        """How many keys `update` will return once there are so many tokens."""
        return tokens

    def state(self, layer: int) -> tuple[Tensor, ...] | None:
        """What a recurrent sublayer stored last; None before its first tokens."""
        return self._states.get(layer)

    def store(self, layer: int, state: tuple[Tensor, ...]) -> None:
        """Keep this in place of it."""
        self._states[layer] = state


@final
class StaticCache:
    """Room for a fixed number of tokens, taken once: every forward of one token has the same shapes, for compilation.

    Keys of tokens that have not come yet are zero, and for the mask to hide.
    """

    def __init__(self, capacity_tokens: int):
        if not is_count(capacity_tokens):
            raise InputError(f"capacity_tokens is {capacity_tokens}; it must be a whole number of at least 1")
        self.capacity = capacity_tokens
        self._layers: dict[int, _FixedRoom] = {}
        self._states: dict[int, tuple[Tensor, ...]] = {}

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int) -> tuple[Tensor, Tensor]:
        """Add `[B, kv_heads, T, head_dim]` of new tokens; returns all there is room for, `[.., capacity, ..]`."""
        if layer_idx not in self._layers:
            self._layers[layer_idx] = _FixedRoom(self.capacity, key_states, value_states)
        room = self._layers[layer_idx]
        room.append(key_states, value_states)
        return room.keys, room.values

    def keys_for(self, tokens: int) -> int:
        """How many keys `update` will return once there are so many tokens.

        Raises:
            InputError: more tokens than there is room for.
        """
        if tokens > self.capacity:
            raise InputError(
                f"the cache has room for {self.capacity} tokens, and {tokens} are to be kept; "
                "make a StaticCache for prompt and new tokens together"
            )
        return self.capacity

    def state(self, layer: int) -> tuple[Tensor, ...] | None:
        """What a recurrent sublayer stored last; None before its first tokens. The next `store` writes over it."""
        return self._states.get(layer)

    def store(self, layer: int, state: tuple[Tensor, ...]) -> None:
        """Keep this in place of it, in the same memory."""
        if layer not in self._states:
            self._states[layer] = tuple(tensor.clone() for tensor in state)
            return
        for kept, new in zip(self._states[layer], state, strict=True):
            kept.copy_(new)


class _Room:
    """Of one layer: `[B, kv_heads, capacity, head_dim]` keys and values, the first `tokens` of them used."""

    keys: Tensor
    values: Tensor
    tokens = capacity = 0

    def grow(self, capacity: int, *like: Tensor) -> None:
        grown = [_zeros(states, capacity) for states in like]
        if self.tokens:
            for new, old in zip(grown, (self.keys, self.values), strict=True):
                new[:, :, : self.tokens] = old[:, :, : self.tokens]
        self.keys, self.values = grown
        self.capacity = capacity

    def append(self, keys: Tensor, values: Tensor) -> None:
        end = self.tokens + keys.shape[2]
        self.keys[:, :, self.tokens : end] = keys
        self.values[:, :, self.tokens : end] = values
        self.tokens = end


class _FixedRoom:
    """Of one layer. How much of it is used is a tensor: a number would be compiled in, token by token."""

    def __init__(self, capacity: int, keys: Tensor, values: Tensor):
        self.keys, self.values = _zeros(keys, capacity), _zeros(values, capacity)
        self.used = torch.zeros((), dtype=torch.int64, device=keys.device)

    def append(self, keys: Tensor, values: Tensor) -> None:
        slots = self.used + torch.arange(keys.shape[2], device=keys.device)
        self.keys.index_copy_(2, slots, keys)
        self.values.index_copy_(2, slots, values)
        self.used += keys.shape[2]


def _zeros(states: Tensor, capacity: int) -> Tensor:
    return states.new_zeros(*states.shape[:2], capacity, states.shape[3])
