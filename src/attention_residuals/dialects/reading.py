"""Weight files of a folder: one `model.safetensors`, or several with an index; whole, or refused by name."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from attention_residuals.dialects.digests import PREFIX
from attention_residuals.errors import InputError

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"

TYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""The types of numbers that a weight may be of; anything else is a quantised one."""

_AGAIN = "copy it again"


class Stored(NamedTuple):
    """A tensor in a file: under which name, of which shape and type; `read` gives a view of the file.

    `digest`: that of its bytes when it was written, if the file says so.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    read: Callable[[], Tensor]
    digest: str | None = None


def read_config(folder: Path) -> dict[str, Any]:
    """The `config.json` of a folder.

    Raises:
        InputError: there is none, or it is damaged.
    """
    file = folder / CONFIG
    if not file.is_file():
        raise InputError(f"{folder} has no {CONFIG}; name the folder of a whole checkpoint")
    return _json(file)


def stored_tensors(folder: Path, plain_name: Callable[[str], str]) -> dict[str, Stored]:
    """Every tensor of a folder by its plain name. Nothing is read but the headers of the files.

    Raises:
        InputError: a file is missing, damaged or cut off, files and index disagree, or two tensors have one plain name.
    """
    found: dict[str, Stored] = {}
    for file, expected in _files(folder).items():
        tensors = _tensors_of(file)
        if expected is not None and expected != tensors.keys():
            odd = sorted(expected ^ tensors.keys())
            raise InputError(f"{folder / INDEX} and {file.name} disagree about {odd[0]}; {_AGAIN}")
        for raw, tensor in tensors.items():
            name = plain_name(raw)
            if name in found:
                raise InputError(
                    f"{folder} has {found[name].name} and {raw}, which are the same tensor; keep one of them"
                )
            found[name] = tensor
    return found


def _files(folder: Path) -> dict[Path, set[str] | None]:
    """The weight files, and the names that the index says each has."""
    single, index = folder / WEIGHTS, folder / INDEX
    if single.is_file() and index.is_file():
        raise InputError(f"{folder} has both {WEIGHTS} and {INDEX}; keep the weights that belong to its {CONFIG}")
    if single.is_file():
        return {single: None}
    if not index.is_file():
        raise InputError(f"{folder} has neither {WEIGHTS} nor {INDEX}; weights are read from safetensors alone")
    places: dict[str, set[str]] = {}
    for name, file in _weight_map(index).items():
        places.setdefault(file, set()).add(name)
    missing = sorted(file for file in places if not (folder / file).is_file())
    if missing:
        raise InputError(f"{folder} is not whole: {missing[0]} and {len(missing) - 1} more files are missing; {_AGAIN}")
    return {folder / file: names for file, names in sorted(places.items())}


def _weight_map(index: Path) -> Mapping[str, str]:
    found = _json(index).get("weight_map")
    if not isinstance(found, dict) or not found:
        raise InputError(f"{index} is damaged: it has no weight_map; {_AGAIN}")
    for file in found.values():
        if not isinstance(file, str) or Path(file).name != file:
            raise InputError(f"{index} names {file!r}, which is no file beside it; {_AGAIN}")
    return found


def _tensors_of(file: Path) -> dict[str, Stored]:
    try:
        opened = safe_open(file, framework="pt")
        return {name: _stored(opened, name, file) for name in opened.keys()}  # noqa: SIM118 - it is no mapping
    except (SafetensorError, OSError) as error:
        raise InputError(f"{file} is damaged: it is no whole safetensors file ({error}); {_AGAIN}") from error


def _stored(opened: Any, name: str, file: Path) -> Stored:
    about = opened.get_slice(name)
    kind = about.get_dtype()
    if kind not in TYPES:
        raise InputError(f"{name} in {file} is {kind}, a quantised weight; weights are {', '.join(TYPES)}")
    written = (opened.metadata() or {}).get(PREFIX + name)
    return Stored(name, tuple(about.get_shape()), TYPES[kind], lambda: opened.get_tensor(name), written)


def _json(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise InputError(f"{file} cannot be read ({error}); {_AGAIN}") from error
    if not isinstance(found, dict):
        raise InputError(f"{file} is damaged: it holds no object; {_AGAIN}")
    return found
