"""Small random checkpoints of many architectures, in float32 and evaluation mode."""

from typing import Any

import torch
import transformers
from torch import Tensor

VOCABULARY = 61
LAYERS = 3
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
"""Of decoders in the names of Llama."""
GEMMA = {**SIZES, "head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 4}
GEMMA["layer_types"] = ["sliding_attention", "full_attention", "sliding_attention"]
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 24}
LATENT = {"q_lora_rank": 16, "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8}
DEEPSEEK = {**SIZES, **EXPERTS, **LATENT, "num_key_value_heads": 4, "n_routed_experts": 4, "n_group": 1}
DEEPSEEK |= {"topk_group": 1, "first_k_dense_replace": 1, "n_shared_experts": 1}
KIMI = {**SIZES, **EXPERTS, **LATENT, "num_key_value_heads": 4, "num_local_experts": 4, "num_hidden_layers": 2}
KIMI |= {"linear_head_dim": 8, "linear_num_heads": 2, "layer_types": ["linear_attention", "full_attention"]}
VIT = {"hidden_size": 32, "num_hidden_layers": LAYERS, "num_attention_heads": 4, "intermediate_size": 40}
VIT |= {"image_size": 16, "patch_size": 8, "num_channels": 3}
SMALL = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": LAYERS, "num_attention_heads": 4}
SMALL |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}
T5 = {"vocab_size": VOCABULARY, "d_model": 32, "d_kv": 8, "d_ff": 40, "num_layers": 2, "num_heads": 4}
WHISPER = {"vocab_size": VOCABULARY, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "num_mel_bins": 8}
WHISPER |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 40, "decoder_ffn_dim": 40}
WHISPER |= {"max_source_positions": 12, "max_target_positions": 32, "pad_token_id": 0, "bos_token_id": 1}
WHISPER |= {"eos_token_id": 2, "decoder_start_token_id": 1, "begin_suppress_tokens": None, "suppress_tokens": None}

ARCHITECTURES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", SIZES),
    "mistral": ("MistralForCausalLM", "MistralConfig", {**SIZES, "sliding_window": 4}),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", SIZES),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", {**SIZES, "head_dim": 8}),
    "gemma2": ("Gemma2ForCausalLM", "Gemma2Config", GEMMA),
    "gemma3": ("Gemma3ForCausalLM", "Gemma3TextConfig", GEMMA),
    "phi3": ("Phi3ForCausalLM", "Phi3Config", SIZES),
    "olmo": ("OlmoForCausalLM", "OlmoConfig", SIZES),
    "olmo2": ("Olmo2ForCausalLM", "Olmo2Config", SIZES),
    "granite": ("GraniteForCausalLM", "GraniteConfig", {**SIZES, "residual_multiplier": 0.22}),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", {**SMALL, "n_positions": 64}),
    "gpt_neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig", {**SMALL, "intermediate_size": 40}),
    "gpt_neox sequential": (
        "GPTNeoXForCausalLM",
        "GPTNeoXConfig",
        {**SMALL, "intermediate_size": 40, "use_parallel_residual": False},
    ),
    "falcon": ("FalconForCausalLM", "FalconConfig", {**SMALL, "new_decoder_architecture": True, "num_kv_heads": 2}),
    "falcon one norm": ("FalconForCausalLM", "FalconConfig", SMALL),
    "falcon sequential": ("FalconForCausalLM", "FalconConfig", {**SMALL, "parallel_attn": False}),
    "starcoder2": ("Starcoder2ForCausalLM", "Starcoder2Config", SIZES),
    "mixtral": ("MixtralForCausalLM", "MixtralConfig", {**SIZES, "num_local_experts": 4}),
    "qwen3_moe": ("Qwen3MoeForCausalLM", "Qwen3MoeConfig", {**SIZES, **EXPERTS, "head_dim": 8, "num_experts": 4}),
    "deepseek_v3": ("DeepseekV3ForCausalLM", "DeepseekV3Config", DEEPSEEK),
    "kimi_linear": ("KimiLinearForCausalLM", "KimiLinearConfig", KIMI),
    "modernbert": ("ModernBertForMaskedLM", "ModernBertConfig", {**SIZES, "cls_token_id": 1, "sep_token_id": 2}),
    "t5": ("T5ForConditionalGeneration", "T5Config", {**T5, "decoder_start_token_id": 0}),
    "whisper": ("WhisperForConditionalGeneration", "WhisperConfig", WHISPER),
    "vit": ("ViTForImageClassification", "ViTConfig", VIT),
    "siglip": ("SiglipVisionModel", "SiglipVisionConfig", VIT),
    "dinov2": ("Dinov2Model", "Dinov2Config", {**VIT, "mlp_ratio": 2, "drop_path_rate": 0.1}),
}
"""Class, class of the config, and sizes."""

GAINS = {"t5": 1, "siglip": 1}
"""Those whose weights start large."""


def build(name: str, **changes: Any) -> Any:
    """A small model with weights from seed 0, larger than at a usual start so that outputs depend on every sublayer."""
    kind, config, sizes = ARCHITECTURES[name]
    torch.manual_seed(0)
    model = getattr(transformers, kind)(getattr(transformers, config)(**{**sizes, **changes}))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(GAINS.get(name, 4))
            else:
                parameter.add_(0.1 * torch.randn(parameter.shape))
    return model.eval()


def stir(model: Any, seed: int = 1) -> None:
    """Depth queries and key norms that are not at their start: else depth would not count."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if ".queries." in f".{name}" and "attention_residuals" in name:
                value.copy_(torch.randn(value.shape, generator=generator))
            elif "attention_residuals" in name:
                value.copy_(1 + 0.3 * torch.randn(value.shape, generator=generator))


def tokens(rows: int = 2, length: int = 9, seed: int = 0) -> Tensor:
    """Without token 0, which pads."""
    return torch.randint(3, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(seed))
