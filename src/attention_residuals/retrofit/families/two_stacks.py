"""Encoders and decoders, each a stack of its own; cross-attention is an increment as any other."""

from attention_residuals.retrofit.declarations import Stack, Sublayer, declare

# An encoder layer has two parts, a decoder layer three, in one list.
declare(
    "T5Stack",
    Stack(
        layers="block",
        sublayers=(
            Sublayer("layer.0.layer_norm", "layer.0.dropout"),
            Sublayer("layer.1.layer_norm", "layer.1.dropout"),
            Sublayer("layer.2.layer_norm", "layer.2.dropout", optional=True),
        ),
        norm="final_layer_norm",
    ),
)

WHISPER = Stack(
    layers="layers",
    sublayers=(
        Sublayer("self_attn_layer_norm", "self_attn", dropout="dropout"),
        Sublayer("encoder_attn_layer_norm", "encoder_attn", dropout="dropout", optional=True),
        Sublayer("final_layer_norm", "fc2", dropout="dropout"),
    ),
    norm="layer_norm",
)
declare("WhisperEncoder", WHISPER)
declare("WhisperDecoder", WHISPER)
