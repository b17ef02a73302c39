"""Models for `transformers`: the same modules behind its interfaces. Importing this tells its Auto classes of them."""

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from attention_residuals.hf.configuration import MODEL_TYPE, AttnResConfig
from attention_residuals.hf.modeling import AttnResForCausalLM, AttnResModel, AttnResPreTrainedModel
from attention_residuals.hf.tokenizer import fast_tokenizer

AutoConfig.register(MODEL_TYPE, AttnResConfig, exist_ok=True)
AutoModel.register(AttnResConfig, AttnResModel, exist_ok=True)
AutoModelForCausalLM.register(AttnResConfig, AttnResForCausalLM, exist_ok=True)

__all__ = ["AttnResConfig", "AttnResForCausalLM", "AttnResModel", "AttnResPreTrainedModel", "fast_tokenizer"]
