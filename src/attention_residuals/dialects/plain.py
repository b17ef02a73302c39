"""Reading a foreign `config.json`: values are checked where they are read, and two keys for one thing must agree."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from attention_residuals.errors import InputError, is_count

T = TypeVar("T")

_NEEDED: Any = object()


def count(plain: Mapping[str, Any], key: str) -> int:
    """A whole number of at least 1.

    Raises:
        InputError: it is missing or something else.
    """
    value = plain.get(key)
    if value is None:
        raise InputError(f"the config has no {key}; bring back the config.json that the weights were saved with")
    if not is_count(value):
        raise InputError(f"{key} is {value!r}; it must be a whole number of at least 1")
    return value


def optional_count(plain: Mapping[str, Any], key: str) -> int | None:
    """The same, or None where the key is missing or null."""
    return None if plain.get(key) is None else count(plain, key)


def optional_whole(plain: Mapping[str, Any], key: str) -> int | None:
    """A whole number of at least 0, or None where the key is missing or null.

    Raises:
        InputError: it is something else.
    """
    value = plain.get(key)
    if value is None or value == 0 or is_count(value):
        return None if value is None else int(value)
    raise InputError(f"{key} is {value!r}; it must be a whole number of at least 0")


def positive(plain: Mapping[str, Any], key: str) -> float:
    """A positive number.

    Raises:
        InputError: it is missing or something else.
    """
    value = plain.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value > 0):
        raise InputError(f"{key} is {value!r}; it must be a positive number")
    return float(value)


def either(one: str, mine: T | None, other: str, theirs: T | None, default: Any = _NEEDED) -> T:
    """What two keys say together: either may be None, which is silent.

    Raises:
        InputError: they disagree, or both are silent and there is no default.
    """
    if mine is not None and theirs is not None and mine != theirs:
        raise InputError(f"{one} says {mine} and {other} says {theirs}; bring back the config that was saved")
    found = mine if mine is not None else theirs
    if found is None and default is _NEEDED:
        raise InputError(f"the config has neither {one} nor {other}; bring back the config that was saved")
    return default if found is None else found


def require_neutral(plain: Mapping[str, Any], neutral: Mapping[str, tuple[Any, ...]]) -> None:
    """Refuse values that ask for something our sublayers do not compute.

    Raises:
        InputError: it names the first such key, and what is allowed.
    """
    for key, allowed in neutral.items():
        value = plain.get(key)
        if value is not None and value not in allowed:
            may = " or ".join(repr(item) for item in (*allowed, None))
            raise InputError(f"{key} is {value!r}, which is not computed here; it must be {may}")


def only(configs: Sequence[Any], kind: type[T]) -> T | None:
    """The one config of this kind that layers have; None if none has one.

    Raises:
        InputError: there are several.
    """
    found = list(dict.fromkeys(config for config in configs if isinstance(config, kind)))
    if len(found) > 1:
        raise InputError(f"layers have {found[0]} and {found[1]}, and the config has room for one of them")
    return found[0] if found else None


def same_at_both_levels(plain: Mapping[str, Any], text: Mapping[str, Any], key: str) -> Any:
    """A key of the text model, which the config around it may repeat.

    Raises:
        InputError: they disagree.
    """
    outer = None if text is plain else plain.get(key)
    return either(f"text_config.{key}", text.get(key), key, outer, None)
