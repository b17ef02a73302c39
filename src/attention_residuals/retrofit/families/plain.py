"""Pre-norm layers: a norm and attention, a norm and an MLP or a mixture of experts."""

from attention_residuals.retrofit.declarations import Stack, Sublayer, declare

LLAMA = Stack(
    layers="layers",
    sublayers=(Sublayer("input_layernorm", "self_attn"), Sublayer("post_attention_layernorm", "mlp")),
    norm="norm",
)

for owner in (
    *("LlamaModel", "MistralModel", "Qwen2Model", "Qwen3Model", "GemmaModel", "OlmoModel", "Starcoder2Model"),
    *("MixtralModel", "Qwen3MoeModel", "DeepseekV3Model", "KimiLinearModel"),
):
    declare(owner, LLAMA)

declare(
    "GraniteModel",
    Stack(
        layers="layers",
        sublayers=(
            Sublayer("input_layernorm", "self_attn", scale="residual_multiplier"),
            Sublayer("post_attention_layernorm", "mlp", scale="residual_multiplier"),
        ),
        norm="norm",
    ),
)

declare(
    "Phi3Model",
    Stack(
        layers="layers",
        sublayers=(
            Sublayer("input_layernorm", "resid_attn_dropout"),
            Sublayer("post_attention_layernorm", "resid_mlp_dropout"),
        ),
        norm="norm",
    ),
)

declare(
    "GPT2Model",
    Stack(
        layers="h",
        sublayers=(
            Sublayer("ln_1", "attn"),
            Sublayer("ln_cross_attn", "crossattention", optional=True),
            Sublayer("ln_2", "mlp"),
        ),
        norm="ln_f",
    ),
)

declare(
    "ModernBertModel",
    Stack(
        layers="layers",
        sublayers=(Sublayer("attn_norm", "attn"), Sublayer("mlp_norm", "mlp")),
        norm="final_norm",
    ),
)
