"""What a dialect is: how it writes the config of a model, and how it names the tensors."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from attention_residuals.dialects.names import Naming
from attention_residuals.models import BackboneConfig

Plain = Mapping[str, Any]
"""A `config.json`."""


@dataclass(frozen=True)
class Dialect:
    """One way to write a model down.

    Args:
        name, summary: for people.
        owns: whether a config is of this dialect.
        from_plain: a model's config out of one; raises an `InputError` for what it does not understand.
        to_plain: the config of a model and the type of its weights as one; raises an `InputError` for a model that the
            dialect has no words for.
        names: the tensors.
    """

    name: str
    summary: str
    owns: Callable[[Plain], bool]
    from_plain: Callable[[Plain], BackboneConfig]
    to_plain: Callable[[BackboneConfig, str], dict[str, Any]]
    names: Naming
