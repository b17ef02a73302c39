"""A folder that `export` wrote, loaded by the class that its config names."""

import json
from pathlib import Path

from attention_residuals.hf.configuration import AttnResConfig
from attention_residuals.hf.hybrid_configuration import AttnResHybridConfig
from attention_residuals.hf.modeling import AttnResForCausalLM, AttnResHybridForCausalLM

CLASSES = {AttnResConfig.model_type: AttnResForCausalLM, AttnResHybridConfig.model_type: AttnResHybridForCausalLM}


def load_exported(path: Path) -> AttnResForCausalLM:
    """The model of an exported folder, in evaluation mode.

    Raises:
        InputError: the config of another kind of model, or weights as in `AttnResPreTrainedModel.from_pretrained`.
    """
    try:
        named = json.loads((path / "config.json").read_bytes())["model_type"]
    except (OSError, ValueError, KeyError, TypeError):
        named = ""  # said better by what reads the config
    return CLASSES.get(named, AttnResForCausalLM).from_pretrained(path).eval()
