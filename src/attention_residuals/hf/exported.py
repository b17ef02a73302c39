"""A folder that `export` wrote, loaded by the class that its config names."""

import json
from pathlib import Path
from typing import Any

from attention_residuals.hf.modeling import AttnResForCausalLM, AttnResHybridForCausalLM

CLASSES = (AttnResForCausalLM, AttnResHybridForCausalLM)


def load_exported(path: Path) -> AttnResForCausalLM:
    """The model of an exported folder, in evaluation mode.

    Raises:
        InputError: the config of another kind of model, or weights as in `AttnResPreTrainedModel.from_pretrained`.
    """
    try:
        named = json.loads((path / "config.json").read_bytes())["model_type"]
    except (OSError, ValueError, KeyError, TypeError):
        named = ""  # said better by what reads the config
    kinds: dict[str, Any] = {kind.config_class.model_type: kind for kind in CLASSES}
    return kinds.get(named, AttnResForCausalLM).from_pretrained(path).eval()
