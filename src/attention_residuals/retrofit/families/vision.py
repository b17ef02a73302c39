"""Vision transformers, and the text towers that have the same layers."""

from attention_residuals.retrofit.declarations import Stack, Sublayer, declare

declare(
    "ViTModel",
    Stack(
        layers="layers",
        sublayers=(Sublayer("layernorm_before", "dropout"), Sublayer("layernorm_after", "dropout")),
        norm="layernorm",
    ),
)

SIGLIP = (Sublayer("layer_norm1", "self_attn"), Sublayer("layer_norm2", "mlp"))
declare("SiglipVisionModel", Stack(layers="encoder.layers", sublayers=SIGLIP, norm="post_layernorm"))
declare("SiglipTextModel", Stack(layers="encoder.layers", sublayers=SIGLIP, norm="final_layer_norm"))

# One module of stochastic depth behind both layer scales.
declare(
    "Dinov2Model",
    Stack(
        layers="encoder.layer",
        sublayers=(Sublayer("norm1", "drop_path"), Sublayer("norm2", "drop_path")),
        norm="layernorm",
    ),
)
