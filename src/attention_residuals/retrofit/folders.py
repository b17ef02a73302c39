"""Converted models as folders: written by `save_pretrained`, and loaded with their depth attention again."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor

from attention_residuals.errors import InputError
from attention_residuals.retrofit.convert import attach, retrofit
from attention_residuals.retrofit.declarations import Layout, find_layouts
from attention_residuals.retrofit.refusals import require_plain_weights
from attention_residuals.retrofit.report import Report, submodule_names
from attention_residuals.retrofit.settings import NAME, Settings, read_entry
from attention_residuals.streams import AttnResStream, BlockSize, ReadScale
from attention_residuals.train.checkpoint_files import DEBRIS
from attention_residuals.train.checkpoint_state import listed, require_finite, require_model_fits
from attention_residuals.train.durable import explain_refusals, sync_file, sync_folder

WEIGHTS = (".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json", ".pt", ".pth", ".h5", ".msgpack")
"""Endings of files that are not copied from one folder to another: weights are written anew."""


def load_retrofitted(folder: Path | str, **options: Any) -> Any:
    """A model that `save_pretrained` wrote after `retrofit`, with its depth attention, in evaluation mode.

    `AutoModel...from_pretrained` gives the original network from such a folder, without it: the depth tensors are
    unexpected there, and a warning says so.

    Args:
        folder: a local folder.
        options: those of `from_pretrained`, for example `dtype`, which leaves the depth parameters as they were saved.

    Raises:
        InputError: a folder that was not converted, is damaged, or holds another model than its config says.
    """
    import transformers

    folder = _local(folder)
    settings = read_entry(transformers.AutoConfig.from_pretrained(folder), folder)
    model = load_plain(folder, **options)
    require_plain_weights(model)
    layouts = find_layouts(model)
    _require_same_stacks(folder, settings, layouts)
    streams = [stack.build(settings.scale) for stack in settings.stacks]
    saved = _depth_tensors(folder)
    for name, layout, stream in zip(submodule_names(settings), layouts, streams, strict=True):
        _fill(folder, name, stream, {key: value for key, value in saved.items() if key.startswith(f"{name}.")})
        stream.to(next(layout.layers[0].parameters()).device)
    attach(layouts, streams)
    return model.eval()


def _fill(folder: Path, name: str, stream: AttnResStream, saved: dict[str, Tensor]) -> None:
    """Give a stream its saved values, in their type."""
    current = {f"{name}.{key}": str(list(value.shape)) for key, value in stream.state_dict().items()}
    require_model_fits(folder, {key: str(list(value.shape)) for key, value in saved.items()}, current)
    require_finite(folder, saved)
    stream.load_state_dict({key.removeprefix(f"{name}."): value for key, value in saved.items()}, assign=True)


def retrofit_folder(
    source: Path | str,
    out: Path | str,
    block_size: BlockSize,
    *,
    scale: ReadScale = ReadScale.SUM,
    gradients: bool = True,
    tolerance: float | None = None,
) -> Report:
    """Convert a local folder of `transformers` into another one; arguments as in `retrofit`.

    Files beside the weights, such as the tokenizer, are copied. `out` appears by one rename, when all of it is written.

    Raises:
        InputError: `out` exists or cannot be written, or the model cannot be loaded or converted.
    """
    source, out = _local(source), Path(out)
    if out.exists():
        raise InputError(f"{out} exists; name another folder, or remove it first")
    model = load_plain(source)
    report = retrofit(model, block_size, scale=scale, gradients=gradients, tolerance=tolerance)
    write_model(model, source, out)
    return report


def write_model(model: Any, source: Path, out: Path) -> None:
    """Write a model, with the files of `source` beside its weights; `out` appears when all of it is on the disk.

    Raises:
        InputError: it cannot be written.
    """
    temporary = out.with_name(DEBRIS + out.name)
    with explain_refusals(out, "make room there, or name another folder"):
        out.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(temporary, ignore_errors=True)  # left by one that was killed
        try:
            model.save_pretrained(temporary)
            _copy_rest(source, temporary)
            for path in temporary.iterdir():
                sync_file(path)
            temporary.rename(out)
            sync_folder(out.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _local(folder: Path | str) -> Path:
    folder = Path(folder)
    if not (folder / "config.json").is_file():
        raise InputError(f"{folder} is no folder of a model: there is no config.json in it; download the model first")
    return folder


def _copy_rest(source: Path, out: Path) -> None:
    for path in sorted(source.iterdir()):
        if path.is_file() and not path.name.endswith(WEIGHTS) and not (out / path.name).exists():
            shutil.copyfile(path, out / path.name)


def is_retrofitted(folder: Path | str) -> bool:
    """Whether the config of a local folder tells of a conversion.

    Raises:
        InputError: no folder of a model.
    """
    file = _local(folder) / "config.json"
    try:
        return json.loads(file.read_bytes()).get(NAME) is not None
    except (OSError, ValueError, AttributeError) as error:
        raise InputError(f"{file} is damaged ({error}); copy it again") from error


def load_plain(folder: Path | str, **options: Any) -> Any:
    """The model of a folder without depth attention, in the class that its config names.

    Raises:
        InputError: no folder of a model, or one that is not whole.
    """
    import transformers

    from attention_residuals.hf.loading import check_folder

    folder = _local(folder)
    check_folder(folder, verify=False)
    config = transformers.AutoConfig.from_pretrained(folder)
    name = (config.architectures or ["AutoModel"])[0]
    kind = getattr(transformers, name, None)
    if kind is None:
        raise InputError(f"{folder} is a {name}, which this version of transformers does not have; use a newer one")
    options |= {"use_safetensors": True, "output_loading_info": True}
    with _quiet():
        model, info = kind.from_pretrained(folder, **options)
    wrong = [
        listed("lacks", sorted(info["missing_keys"])),
        listed("has unexpected", sorted(key for key in info["unexpected_keys"] if f"{NAME}." not in key)),
    ]
    if any(wrong):
        found = ", ".join(part for part in wrong if part)
        raise InputError(f"{folder} is not whole: it {found}; copy it again")
    return model


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the warning that depth tensors are unexpected: they are taken from the files afterwards."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)


def _require_same_stacks(folder: Path, settings: Settings, layouts: tuple[Layout, ...]) -> None:
    saved = [(stack.name, stack.owner, stack.sublayers) for stack in settings.stacks]
    found = [(layout.name, type(layout.owner).__name__, len(layout.increments)) for layout in layouts]
    if saved != found:
        raise InputError(
            f"{folder} was converted with the stacks {saved}, and its model has {found}; declare the architecture as "
            "it was, or convert the original anew"
        )


def _depth_tensors(folder: Path) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            found |= {name: file.get_tensor(name) for name in file.keys() if f"{NAME}." in name}  # noqa: SIM118
    return found
