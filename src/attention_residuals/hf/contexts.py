"""What the tokens of a forward are told: positions, masks and caches in the forms that `transformers` gives them."""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from transformers import Cache
from transformers.masking_utils import create_causal_mask, create_recurrent_attention_mask

from attention_residuals.errors import InputError
from attention_residuals.hf.caches import LayerCaches, recurrent_layers
from attention_residuals.hf.configuration import BackboneModelConfig
from attention_residuals.hf.inputs import default_positions
from attention_residuals.models import Backbone
from attention_residuals.nn import Context

ATTENTION, RECURRENT = "full_attention", "linear_attention"
"""What `transformers` calls the two kinds of layers, in configs and in masks made beforehand."""


def make_context(
    model: Backbone,
    config: BackboneModelConfig,
    embedding: Float[Tensor, "batch time width"],
    attention_mask: Any,
    position_ids: Tensor | None,
    cache: Cache | None,
) -> Context:
    """The context of new tokens.

    Args:
        attention_mask: `[B, past + T]`, 0 for padding; `[B, 1, T, keys]`, true where a token may look; one of them for
            each kind of layers, as `generate` gives it for a cache of fixed size; None.
        position_ids: None: counted from the first token that is no padding.

    Raises:
        InputError: a mask of four dimensions and recurrent layers, which see no pairs of tokens.
    """
    recurrent = recurrent_layers(model.config)
    mixes_pairs = 2 * len(recurrent) < model.config.sublayers
    past = 0 if cache is None or not mixes_pairs else cache.get_seq_length()
    packed = position_ids  # positions that begin anew are several texts in a row
    if position_ids is None:
        padding = attention_mask if isinstance(attention_mask, Tensor) else None
        if padding is None and not mixes_pairs:
            _require_first(model, cache, recurrent[0])
        position_ids = default_positions(embedding, padding, past)
    valid = _valid(config, embedding, attention_mask) if recurrent else None
    mask = _causal(config, embedding, attention_mask, cache, packed) if mixes_pairs else None
    # Ours and theirs are updated by the same call; what recurrent layers keep is another call.
    kept = LayerCaches(cache) if cache is not None and recurrent else cache
    return model.context(position_ids, mask, kept, valid)


def _require_first(model: Backbone, cache: Cache | None, layer: int) -> None:
    """No layer counts the tokens: states of fixed sizes do not tell how many they have seen."""
    if model.config.turn is not None and cache is not None and LayerCaches(cache).state(layer) is not None:
        raise InputError(
            "no layer of this model counts the tokens in its cache; give position_ids, or attention_mask for them all"
        )


def _causal(
    config: BackboneModelConfig, embedding: Tensor, attention_mask: Any, cache: Cache | None, packed: Tensor | None
) -> Tensor | None:
    if isinstance(attention_mask, dict):
        return attention_mask[ATTENTION]
    return create_causal_mask(
        config=config,
        inputs_embeds=embedding,
        attention_mask=attention_mask,
        cache=cache,
        position_ids=packed,
        # A cache of fixed size returns keys that are still empty: there None would not mean the plain causal rule.
        allow_is_causal_skip=cache is None or not cache.is_compileable,
    )


def _valid(config: BackboneModelConfig, embedding: Tensor, attention_mask: Any) -> Bool[Tensor, "batch time"] | None:
    """Which of the new tokens are no padding; None: all."""
    if isinstance(attention_mask, dict):
        found = attention_mask[RECURRENT]
    elif attention_mask is not None and attention_mask.ndim == 4:
        raise InputError(
            "attention_mask says for pairs of tokens who sees whom, and a recurrent layer sees no pairs; give one of "
            "[batch, tokens], 0 for padding"
        )
    else:
        found = create_recurrent_attention_mask(config, embedding, attention_mask)
    return None if found is None else found.to(torch.bool)
