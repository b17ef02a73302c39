"""The file through which tools that do not import this package find its classes."""

from pathlib import Path
from typing import Any

STUB = "modeling_attn_res.py"


def write_stub(folder: Path, config: Any) -> None:
    """Write it beside the weights, and into the config where it is (`auto_map`, for `trust_remote_code=True`)."""
    family = type(config).__name__.removesuffix("Config")
    classes = {
        "AutoConfig": f"{family}Config",
        "AutoModel": f"{family}Model",
        "AutoModelForCausalLM": f"{family}ForCausalLM",
    }
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f"from attention_residuals.hf import {name} as {name}\n" for name in classes.values()]
    (folder / STUB).write_text("".join(lines))
    config.auto_map = {auto: f"{Path(STUB).stem}.{name}" for auto, name in classes.items()}
