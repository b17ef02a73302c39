"""The caches of `transformers` as our sublayers use them."""

from typing import Any, final

from torch import Tensor
from transformers import Cache
from transformers.cache_utils import LinearAttentionCacheLayerMixin

from attention_residuals.errors import InputError
from attention_residuals.models import BackboneConfig, HybridConfig


def recurrent_layers(config: BackboneConfig) -> list[int]:
    """Layers whose token mixer keeps a state of fixed size instead of keys and values."""
    mixers = config.mixers if isinstance(config, HybridConfig) else ()
    return [layer for layer, mixer in enumerate(mixers) if mixer.states]


@final
class LayerCaches:
    """A cache of `transformers` that recurrent sublayers can use too.

    What they keep lies where its layers keep recurrent states, so that beams, offloading and resets find it.
    """

    def __init__(self, cache: Cache):
        self._cache = cache

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int) -> tuple[Tensor, Tensor]:
        """As theirs."""
        return self._cache.update(key_states, value_states, layer_idx)

    def state(self, layer: int) -> tuple[Tensor, ...] | None:
        """What `layer` stored last; None before its first tokens.

        Raises:
            InputError: a cache that was made without the config of the model.
        """
        kept = self._states(layer)
        found = [kept.recurrent_states[i] for i in range(kept.number_of_states) if kept.has_previous_state[i]]
        return tuple(tensor for tensor in found if tensor is not None) or None

    def store(self, layer: int, state: tuple[Tensor, ...]) -> None:
        """Keep this in place of it, in the same memory. Raises as `state`."""
        kept = self._states(layer)
        assert len(state) <= kept.number_of_states
        for i, tensor in enumerate(state):
            kept.update_recurrent_state(tensor, i)
            kept.has_previous_state[i] = True
        kept.device, kept.dtype = state[0].device, state[0].dtype

    def _states(self, layer: int) -> Any:
        layers = self._cache.layers
        kept = layers[layer] if layer < len(layers) else None
        if not isinstance(kept, LinearAttentionCacheLayerMixin):
            raise InputError(
                f"the {type(self._cache).__name__} has no room for the state of layer {layer}, which is recurrent; "
                "make the cache with config=model.config"
            )
        return kept
