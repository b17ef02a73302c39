"""Frozen dataclasses as configs: to plain JSON and back, and changed by `path=value` with the types of their fields."""

import dataclasses
import difflib
import json
import types
import typing
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from attention_residuals.errors import InputError

Config = TypeVar("Config")

WANTED = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
"""What a person writes for a field of each plain type."""

TYPE_KEY = "type"
"""Where a plain object keeps the name of its dataclass, so that a field of an abstract type can be read back."""


def to_plain(value: Any) -> Any:
    """Dataclasses, enums, paths and tuples as what JSON knows; a dataclass keeps the name of its type."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {TYPE_KEY: type(value).__name__, **fields}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    return value


def from_plain(kind: type[Config], plain: Any, path: str = "") -> Config:
    """What `to_plain` wrote, as a `kind` again; fields that are absent take their defaults.

    Raises:
        InputError: a field that is unknown or holds a value of another type; it names the path.
    """
    return _read(kind, plain, path)


def first_difference(one: Any, other: Any, path: str = "") -> tuple[str, Any, Any] | None:
    """Where two plain values differ first: the path, and what either has there, None for what it has not."""
    if not (isinstance(one, Mapping) and isinstance(other, Mapping)):
        return None if one == other else (path, one, other)
    for key in dict.fromkeys((*one, *other)):
        inner = f"{path}.{key}" if path else key
        if found := first_difference(one.get(key), other.get(key), inner):
            return found
    return None


def override(config: Config, assignments: Sequence[str]) -> Config:
    """A copy with `path=value` applied in order, for example `model.layers=24`, `optimizer=Muon`, `seeds=[0,1]`.

    A value is read by the type of its field: numbers, booleans, words as they are, JSON for lists and whole objects. A
    field that may hold several dataclasses takes the name of one, with its defaults. None is written `none`.

    Raises:
        InputError: no `=`, an unknown path (near ones are named), or a value that does not fit.
    """
    for assignment in assignments:
        path, sign, text = assignment.partition("=")
        if not sign:
            raise InputError(f"'{assignment}' is no assignment; write path=value, for example steps=1000")
        config = _assign(config, path.split("."), text, path)
    return config


def paths(config: Any, prefix: str = "") -> list[str]:
    """Every path of a config that can be assigned to."""
    found = []
    for field in dataclasses.fields(config):
        value, path = getattr(config, field.name), prefix + field.name
        found.append(path)
        if dataclasses.is_dataclass(value):
            found += paths(value, path + ".")
    return found


def choices(kind: Any) -> dict[str, type]:
    """The concrete dataclasses that a field of type `kind` may hold, by name."""
    is_abstract = bool(getattr(kind, "__abstractmethods__", None))
    if isinstance(kind, type) and (dataclasses.is_dataclass(kind) or is_abstract):
        below = {name: found for sub in kind.__subclasses__() for name, found in choices(sub).items()}
        return below if is_abstract else {kind.__name__: kind, **below}
    return {name: found for argument in typing.get_args(kind) for name, found in choices(argument).items()}


def _assign(config: Any, steps: Sequence[str], text: str, path: str) -> Any:
    hints = typing.get_type_hints(type(config))
    names = [field.name for field in dataclasses.fields(config)]
    name, *rest = steps
    if name not in names:
        raise InputError(_unknown(path, name, names))
    value = getattr(config, name)
    if not rest:
        return dataclasses.replace(config, **{name: _parse(hints[name], text, path)})
    if not dataclasses.is_dataclass(value):
        raise InputError(f"{path} leads into {name}, which is a value and has no fields; assign to it as a whole")
    return dataclasses.replace(config, **{name: _assign(value, rest, text, path)})


def _unknown(path: str, name: str, names: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, names, n=3) or sorted(names)
    return f"{path} is unknown: there is no field '{name}'; did you mean {', '.join(near)}?"


def _parse(kind: Any, text: str, path: str) -> Any:
    """A value as typed on a command line."""
    if text in choices(kind):
        return choices(kind)[text]()
    if kind is str or _is_enum(kind) or kind is Path:
        return _read(kind, text, path)
    try:
        plain = json.loads({"none": "null", "True": "true", "False": "false"}.get(text, text))
    except json.JSONDecodeError:
        plain = text
    return _read(kind, plain, path)


def _read(kind: Any, plain: Any, path: str) -> Any:
    """A plain value as a `kind`."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return plain
    if origin in (typing.Union, types.UnionType):
        return _read_union(arguments, plain, path)
    if origin is tuple:
        return _read_tuple(arguments, plain, path)
    if origin is dict:
        return _read_mapping(arguments[1], plain, path)
    if choices(kind):
        return _read_dataclass(kind, plain, path)
    if _is_enum(kind):
        return _read_enum(kind, plain, path)
    if kind is Path and isinstance(plain, str):
        return Path(plain)
    if kind is float and isinstance(plain, int) and not isinstance(plain, bool):
        return float(plain)
    if kind is int and isinstance(plain, float) and plain.is_integer():
        return int(plain)
    if type(plain) is not kind:
        wanted = f"; give {WANTED[kind]}" if kind in WANTED else ""
        raise InputError(f"{path} is {plain!r}, which is no {getattr(kind, '__name__', kind)}{wanted}")
    return plain


def _read_union(kinds: Sequence[Any], plain: Any, path: str) -> Any:
    if plain is None and type(None) in kinds:
        return None
    errors = []
    for kind in kinds:
        if kind is not type(None):
            try:
                return _read(kind, plain, path)
            except InputError as error:
                errors.append(error)
    raise errors[0]


def _read_tuple(kinds: Sequence[Any], plain: Any, path: str) -> tuple[Any, ...]:
    items = plain if isinstance(plain, list | tuple) else [plain]
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        return tuple(_read(kinds[0], item, f"{path}[{n}]") for n, item in enumerate(items))
    if len(items) != len(kinds):
        raise InputError(f"{path} is {plain!r}; it takes {len(kinds)} values")
    return tuple(_read(kind, item, f"{path}[{n}]") for n, (kind, item) in enumerate(zip(kinds, items, strict=True)))


def _read_mapping(kind: Any, plain: Any, path: str) -> dict[str, Any]:
    if not isinstance(plain, Mapping):
        raise InputError(f"{path} is {plain!r}; it takes an object of names and values")
    return {str(key): _read(kind, item, f"{path}.{key}") for key, item in plain.items()}


def _read_dataclass(kind: Any, plain: Any, path: str) -> Any:
    allowed = choices(kind)
    if not isinstance(plain, Mapping):
        raise InputError(f"{path or 'the config'} is {plain!r}; choose {', '.join(allowed)}")
    name = plain.get(TYPE_KEY, next(iter(allowed)) if len(allowed) == 1 else None)
    if name not in allowed:
        raise InputError(f"{path or 'the config'} has type {name!r}; choose {', '.join(allowed)}")
    chosen = allowed[name]
    hints, names = typing.get_type_hints(chosen), [field.name for field in dataclasses.fields(chosen)]
    values = {}
    for key, item in plain.items():
        if key != TYPE_KEY:
            inner = f"{path}.{key}" if path else key
            if key not in names:
                raise InputError(_unknown(inner, key, names))
            values[key] = _read(hints[key], item, inner)
    return chosen(**values)


def _read_enum(kind: type[Enum], plain: Any, path: str) -> Enum:
    for member in kind:
        if plain == member.value:
            return member
    raise InputError(f"{path} is {plain!r}; choose {', '.join(str(member.value) for member in kind)}")


def _is_enum(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Enum)
