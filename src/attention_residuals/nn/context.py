"""What a sublayer that mixes tokens may be told of them, beyond the tensor it is given."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor, nn

from attention_residuals.errors import InputError
from attention_residuals.nn.rope import Rotation


@runtime_checkable
class KeyValueCache(Protocol):
    """Where keys and values of earlier tokens are kept. The caches of transformers are such caches too."""

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int) -> tuple[Tensor, Tensor]:
        """Add keys and values `[B, kv_heads, T, head_dim]` of new tokens; returns all of that layer."""
        ...


@runtime_checkable
class RecurrentCache(Protocol):
    """Where sublayers keep what they have made of earlier tokens: tensors of sizes that do not grow with them."""

    def state(self, layer: int) -> tuple[Tensor, ...] | None:
        """What `layer` stored last; None before its first tokens."""
        ...

    def store(self, layer: int, state: tuple[Tensor, ...]) -> None:
        """Keep this in place of it."""
        ...


@dataclass(frozen=True, eq=False)
class Context:
    """Where the tokens `[B, T]` of a forward stand in their sequences, and what they see of them.

    Args:
        rotation: of the tokens, `[B or 1, 1, T, head_dim / 2]`; None where no sublayer turns its heads.
        mask: `[B or 1, 1, T, keys]`, true where a token may look. None: at every key up to its own, the tokens' own
            keys being the last ones.
        cache: keys and values of the tokens before, and the states of recurrent sublayers. None: there are none.
            Nothing of the depth is ever in it.
        layer: under which number the cache keeps them.
        valid: `[B, T]`, false where there is padding, for sublayers that look at no mask. None: all are tokens.
    """

    rotation: Rotation | None
    mask: Tensor | None = None
    cache: KeyValueCache | None = None
    layer: int = 0
    valid: Tensor | None = None

    def at(self, layer: int) -> "Context":
        """The context of another layer."""
        return replace(self, layer=layer)

    def extend(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of the new tokens behind those there are."""
        return (key, value) if self.cache is None else self.cache.update(key, value, self.layer)

    def state(self) -> tuple[Tensor, ...] | None:
        """What this layer has made of the tokens before; None if there are none.

        Raises:
            InputError: a cache for keys and values alone.
        """
        return None if self.cache is None else _recurrent(self.cache).state(self.layer)

    def store(self, state: tuple[Tensor, ...]) -> None:
        """Keep what this layer has made of all tokens so far, if there is a cache.

        Raises:
            InputError: as `state`.
        """
        if self.cache is not None:
            _recurrent(self.cache).store(self.layer, state)


def _recurrent(cache: KeyValueCache) -> RecurrentCache:
    if not isinstance(cache, RecurrentCache):
        raise InputError(
            f"the cache is a {type(cache).__name__}, which has keys and values alone; "
            "a recurrent sublayer needs one with `state` and `store`, such as GrowingCache"
        )
    return cache


class TokenMixer(nn.Module, ABC):
    """A sublayer in which tokens see each other: tensor in, tensor out, with a context where one is needed.

    Without it the tokens are whole sequences from their first token on.
    """

    @abstractmethod
    def forward(
        self, x: Float[Tensor, "batch time width"], context: Context | None = None
    ) -> Float[Tensor, "batch time width"]: ...
