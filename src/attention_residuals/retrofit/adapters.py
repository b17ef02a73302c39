"""The depth tensors of a converted model by themselves: a small folder that makes the original into that model."""

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from attention_residuals.configs import from_plain
from attention_residuals.errors import InputError
from attention_residuals.retrofit.convert import retrofit
from attention_residuals.retrofit.fingerprints import fingerprint, unwrapped
from attention_residuals.retrofit.settings import NAME, Settings, read_entry
from attention_residuals.streams import AttnResStream
from attention_residuals.train.checkpoint_state import require_finite, require_model_fits
from attention_residuals.train.durable import explain_refusals, replace_bytes

WEIGHTS = "depth.safetensors"
ABOUT = "depth.json"
FORMAT = 1


def save_depth(model: Any, folder: Path | str) -> None:
    """Write the depth queries and key norms of a converted model, and nothing else of it.

    `depth.safetensors` holds them under the names of the model, `depth.json` the conversion (class, block with its
    unit, scale, stacks) and the fingerprint of all other weights. A second call overwrites the first.

    Args:
        model: converted by `retrofit`, or a `PeftModel` around one.
        folder: made if it is not there.

    Raises:
        InputError: a model that was not converted, NaN in its depth tensors, or a folder that cannot be written.
    """
    folder, inner = Path(folder), unwrapped(model)
    settings = read_entry(inner.config, type(inner).__name__)
    tensors = {name: value.detach().cpu().contiguous() for name, value in depth_parameters(inner).items()}
    require_finite(type(inner).__name__, tensors)
    about = {
        "format": FORMAT,
        "settings": settings.to_entry(),
        "fingerprint": fingerprint(inner),
        "parameters": sum(value.numel() for value in tensors.values()),
    }
    with explain_refusals(folder, "make room there, or name another folder"):
        folder.mkdir(parents=True, exist_ok=True)
        replace_bytes(folder / WEIGHTS, save(tensors, {"format": "pt"}))
        replace_bytes(folder / ABOUT, (json.dumps(about, indent=2) + "\n").encode())


def load_depth(model: Any, folder: Path | str) -> None:
    """Give a model the depth attention that `save_depth` wrote, in place.

    Args:
        model: the original, which is converted first (`retrofit`), or one that was converted with the same block.

    Raises:
        InputError: a folder that is damaged, or belongs to other weights or to another block; missing, unexpected or
            misshapen tensors, NaN. The model is as it was then.
    """
    folder, inner = Path(folder), unwrapped(model)
    about, tensors = _read(folder)
    settings = from_plain(Settings, about["settings"], str(folder / ABOUT))
    if settings.architecture != type(inner).__name__:
        raise InputError(f"{folder} belongs to a {settings.architecture}, and this is a {type(inner).__name__}")
    if getattr(inner.config, NAME, None) is not None:
        _require_same_block(folder, settings, read_entry(inner.config, type(inner).__name__))
    if about["fingerprint"] != fingerprint(inner):
        raise InputError(
            f"{folder} belongs to other weights (fingerprint {str(about['fingerprint'])[:12]}, of this model "
            f"{fingerprint(inner)[:12]}); load the model that it was tuned with"
        )
    _require_fit(folder, settings, tensors)
    if getattr(inner.config, NAME, None) is None:
        retrofit(inner, settings.block, scale=settings.scale, gradients=False)
    for name, parameter in depth_parameters(inner).items():
        parameter.data.copy_(tensors[name])


def depth_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Queries and key norms of all stacks by name."""
    return {
        f"{name}.{key}": parameter
        for name, module in model.named_modules()
        if isinstance(module, AttnResStream)
        for key, parameter in module.named_parameters()
    }


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    try:
        about = json.loads((folder / ABOUT).read_bytes())
        tensors = load_file(folder / WEIGHTS)
    except (OSError, ValueError, SafetensorError) as error:
        raise InputError(
            f"{folder} is no folder that save_depth wrote, or is damaged ({error}); copy it again"
        ) from error
    version = about.get("format") if isinstance(about, dict) else None
    if version != FORMAT or not {"settings", "fingerprint"} <= about.keys():
        raise InputError(f"{folder} has format {version!r}, and this version reads {FORMAT}; use a newer one")
    return about, tensors


def _require_same_block(folder: Path, saved: Settings, mine: Settings) -> None:
    same = [(each.scale, each.stacks) for each in (saved, mine)]
    if same[0] != same[1]:
        raise InputError(
            f"{folder} was tuned with {saved.block} and scale {saved.scale.value}, and the model was converted with "
            f"{mine.block} and {mine.scale.value}; load the original, and load_depth converts it"
        )


def _require_fit(folder: Path, settings: Settings, tensors: dict[str, Tensor]) -> None:
    """Against the streams that the settings build, so that nothing is converted before all is known to fit."""
    expected = {
        f"{stack.name}.{NAME}.{key}" if stack.name else f"{NAME}.{key}": str(list(value.shape))
        for stack in settings.stacks
        for key, value in stack.build(settings.scale).state_dict().items()
    }
    require_model_fits(folder, {name: str(list(value.shape)) for name, value in tensors.items()}, expected)
    require_finite(folder, tensors)
