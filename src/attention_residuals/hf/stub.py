"""The file through which tools that do not import this package find its classes."""

from pathlib import Path
from typing import Any

from attention_residuals.hf.configuration import AUTO_MAP

STUB = "modeling_attn_res.py"

_TEXT = """from attention_residuals.hf import AttnResConfig as AttnResConfig
from attention_residuals.hf import AttnResForCausalLM as AttnResForCausalLM, AttnResModel as AttnResModel
"""


def write_stub(folder: Path, config: Any) -> None:
    """Write it beside the weights, and into the config where it is (`auto_map`, for `trust_remote_code=True`)."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / STUB).write_text(_TEXT)
    config.auto_map = dict(AUTO_MAP)
