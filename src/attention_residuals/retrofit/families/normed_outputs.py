"""Layers that norm what a branch gives before it is added: that norm is the writer, and the stream stays a sum."""

from attention_residuals.retrofit.declarations import Stack, Sublayer, declare

GEMMA = Stack(
    layers="layers",
    sublayers=(
        Sublayer("input_layernorm", "post_attention_layernorm"),
        Sublayer("pre_feedforward_layernorm", "post_feedforward_layernorm"),
    ),
    norm="norm",
)
declare("Gemma2Model", GEMMA)
declare("Gemma3TextModel", GEMMA)

# No norm in front: the branches themselves read the stream.
declare(
    "Olmo2Model",
    Stack(
        layers="layers",
        sublayers=(Sublayer("self_attn", "post_attention_layernorm"), Sublayer("mlp", "post_feedforward_layernorm")),
        norm="norm",
    ),
)
