"""Weights from safetensors alone, checked before and after: whole, of this model, finite."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import nn

from attention_residuals.errors import InputError
from attention_residuals.train.checkpoint_state import listed, require_finite
from attention_residuals.train.manifests import FORMAT, MANIFEST, file_fault, read_manifest

WEIGHTS = "*.safetensors"
INDEX = "*.safetensors.index.json"
UNSAFE = ("pytorch_model*.bin", "*.pt", "*.pth", "*.ckpt")
"""Weights in formats whose reading can run code."""

DEPTH = re.compile(r"(^|\.)stream\.(?!pre_norms\.)")
"""Tensors that a network has because of its depth attention, and a standard one has not."""


def load_checked(load: Callable[..., Any], name: Any, *arguments: Any, verify: bool, **options: Any) -> Any:
    """Call `transformers`' `from_pretrained` and answer for what it gives.

    Raises:
        InputError: see `AttnResPreTrainedModel.from_pretrained`.
    """
    if options.get("use_safetensors") is False:
        raise InputError("use_safetensors is False, and weights are read from safetensors alone; leave it out")
    given = name if name is not None else "the state dict"
    folder = None if name is None else Path(name) / options.get("subfolder", "")
    if folder is not None and folder.is_dir():
        check_folder(folder, verify)
    wants_info = options.pop("output_loading_info", False)
    # Left to itself the library stops at the first shape with a report; here a sentence names the tensors.
    other_shapes = options.pop("ignore_mismatched_sizes", False)
    options |= {"use_safetensors": True, "output_loading_info": True, "ignore_mismatched_sizes": True}
    try:
        model, info = load(name, *arguments, **options)
    except SafetensorError as error:
        raise InputError(f"{given} is damaged: its weights are no safetensors ({error}); {_AGAIN}") from error
    _require_same_model(given, info, model, other_shapes)
    if verify:
        _require_finite(given, model)
    return (model, info) if wants_info else model


_AGAIN = "copy it again, or export it again"


def check_folder(folder: Path, verify: bool) -> None:
    """Refuse a local folder whose weights cannot be believed; `verify`: compare with the manifest, if there is one.

    Raises:
        InputError: weights that are damaged, missing, or in a format that can run code.
    """
    weights = sorted(folder.glob(WEIGHTS))
    unsafe = sorted(path.name for pattern in UNSAFE for path in folder.glob(pattern))
    if unsafe and not weights:
        raise InputError(
            f"{folder} has its weights in {unsafe[0]}, a format whose reading can run code; convert it to safetensors "
            "where you trust it"
        )
    if verify and (folder / MANIFEST).exists():
        _require_intact(folder)
    for path in folder.glob(INDEX):
        _require_shards(path)
    for path in weights:
        try:
            with safe_open(path, framework="pt"):
                pass
        except (SafetensorError, OSError) as error:
            raise InputError(f"{path} is damaged: it is no whole safetensors file ({error}); {_AGAIN}") from error


def _require_shards(index: Path) -> None:
    try:
        shards = set(json.loads(index.read_bytes())["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{index} is damaged: it is no index of weights ({error}); {_AGAIN}") from error
    missing = sorted(shard for shard in shards if not (index.parent / shard).exists())
    if missing:
        raise InputError(f"{index.parent} is not whole: {missing[0]} is missing; {_AGAIN}")


def _require_intact(folder: Path) -> None:
    """Compare weight files with the manifest; configs may have been edited, and the tokenizer is not read here."""
    try:
        manifest = read_manifest(folder)
    except (OSError, ValueError) as error:
        raise InputError(f"{folder} is damaged: {MANIFEST} cannot be read ({error}); {_AGAIN}") from error
    if manifest["format"] != FORMAT:
        raise InputError(f"{folder} has format {manifest['format']}, this version reads {FORMAT}; use a newer version")
    names = [name for name in manifest["files"] if Path(name).match(WEIGHTS) or Path(name).match(INDEX)]
    faults = (file_fault(folder / name, manifest["files"][name]) for name in names)
    fault = next((fault for fault in faults if fault), None)
    if fault is not None:
        raise InputError(f"{folder} is damaged: {fault}; {_AGAIN}, or give verify=False if the change was meant")


def _require_same_model(given: Any, info: dict[str, Any], model: nn.Module, other_shapes: bool) -> None:
    """All tensors; or all but those of the depth, of a standard network that becomes one with depth attention."""
    depth = {name for name in model.state_dict() if DEPTH.search(name)}
    missing = set(info["missing_keys"])
    new = depth if depth <= missing else set[str]()
    differing = [f"{name} ({list(saved)}, in the model {list(mine)})" for name, saved, mine in info["mismatched_keys"]]
    parts = [
        listed("lacks", sorted(missing - new)),
        listed("has unexpected", sorted(info["unexpected_keys"])),
        "" if other_shapes else listed("differs in", sorted(differing)),
    ]
    if any(parts):
        found = ", ".join(part for part in parts if part)
        raise InputError(f"{given} is of another model: it {found}; load it with the config it was saved with")


def _require_finite(given: Any, model: nn.Module) -> None:
    tensors = {name: value for name, value in model.state_dict().items() if value.device.type != "meta"}
    require_finite(given, tensors)
