"""Models for `transformers`: the same modules behind its interfaces. Importing this tells its Auto classes of them."""

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from attention_residuals.hf.configuration import AttnResConfig
from attention_residuals.hf.hybrid_configuration import AttnResHybridConfig
from attention_residuals.hf.modeling import (
    AttnResForCausalLM,
    AttnResHybridForCausalLM,
    AttnResHybridModel,
    AttnResModel,
    AttnResPreTrainedModel,
    wrap_decoder,
)
from attention_residuals.hf.tokenizer import fast_tokenizer

for _config, _model, _causal in (
    (AttnResConfig, AttnResModel, AttnResForCausalLM),
    (AttnResHybridConfig, AttnResHybridModel, AttnResHybridForCausalLM),
):
    AutoConfig.register(_config.model_type, _config, exist_ok=True)
    AutoModel.register(_config, _model, exist_ok=True)
    AutoModelForCausalLM.register(_config, _causal, exist_ok=True)

__all__ = [
    "AttnResConfig",
    "AttnResForCausalLM",
    "AttnResHybridConfig",
    "AttnResHybridForCausalLM",
    "AttnResHybridModel",
    "AttnResModel",
    "AttnResPreTrainedModel",
    "fast_tokenizer",
    "wrap_decoder",
]
