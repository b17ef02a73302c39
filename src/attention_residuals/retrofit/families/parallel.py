"""Attention and MLP beside each other, where a checkpoint has them so: one read serves both, and their sum is written.

A layer is one sublayer then. Two reads of their own could not both be exact: the MLP of the original does not see what
its attention wrote.
"""

from typing import Any

from torch import nn

from attention_residuals.retrofit.declarations import Stack, Sublayer, declare


def _gpt_neox(layer: nn.Module) -> tuple[Sublayer, ...]:
    readers, writers = ("input_layernorm", "post_attention_layernorm"), ("post_attention_dropout", "post_mlp_dropout")
    if layer.use_parallel_residual:
        return (Sublayer(readers, writers),)
    return tuple(map(Sublayer, readers, writers))


def _falcon(layer: nn.Module) -> tuple[Sublayer, ...]:
    config: Any = layer.config
    dropout = "hidden_dropout"
    if not config.parallel_attn and not config.new_decoder_architecture:
        return (
            Sublayer("input_layernorm", "self_attention", dropout="config.attention_dropout"),
            Sublayer("post_attention_layernorm", "mlp", dropout=dropout),
        )
    readers = ("ln_attn", "ln_mlp") if hasattr(layer, "ln_mlp") else "input_layernorm"
    return (Sublayer(readers, ("self_attention", "mlp"), dropout=dropout),)


declare("GPTNeoXModel", Stack(layers="layers", sublayers=_gpt_neox, norm="final_layer_norm"))
declare("FalconModel", Stack(layers="h", sublayers=_falcon, norm="ln_f"))
