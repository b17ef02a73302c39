"""Names of tensors as data: rules that pair our names with those of a dialect, and their expansion for one model."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from typing import Any, Final, final

import torch
from torch import Tensor

from attention_residuals.dialects.layouts import SAME, Layout
from attention_residuals.models import SUBLAYERS_PER_LAYER, BackboneConfig


class Use(Enum):
    """What a rule is for."""

    NORMAL = "written and read"
    READ = "read where a file has these names; others are written for the same tensors"
    COPY = "written beside the tensor of another rule, with the same numbers; a file may lack it"


@dataclass(frozen=True)
class Rule:
    """Our names and theirs of the same numbers.

    Names may hold `{layer}`, the layer's number, `{mixer}` and `{channels}`, those of its two sublayers, all 0-based.

    Args:
        ours, theirs: the names; those that a `Names` has a prefix for go without it.
        layout: how the tensors differ.
        use: see there.
        unused: a dialect may have such tensors where we have none, since nothing reads them: with what they are filled.
    """

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    layout: Layout = SAME
    use: Use = Use.NORMAL
    unused: float | None = None


def one(ours: str, theirs: str, layout: Layout = SAME, **fields: Any) -> Rule:
    """A rule of one tensor on either side."""
    return Rule((ours,), (theirs,), layout, **fields)


Table = tuple[Rule, ...]

WRAPPERS: Final = frozenset({"_orig_mod", "module", "_checkpoint_wrapped_module"})
"""Parts of a name, up to a dot, that tools put around a model and that mean nothing."""


def unwrapped(name: str, wrappers: frozenset[str]) -> str:
    """A name without wrappers, in front or in between."""
    return ".".join(part for part in name.split(".") if part not in wrappers)


class Naming(ABC):
    """How a dialect names the tensors of any model it can tell."""

    @abstractmethod
    def plain(self, name: str) -> str:
        """A name of a file without the wrappers that tools put around a model."""

    @abstractmethod
    def of_depth(self, name: str) -> bool:
        """Whether a name is that of a depth tensor, of whatever layer; always False where that is no question."""

    @abstractmethod
    def expand(self, config: BackboneConfig, ours: Mapping[str, Tensor]) -> list[Rule]:
        """The rules for one model, every name in full; `ours` are its tensors. Those of unused tensors have no `ours`.

        Raises:
            KeyError: a sublayer of a kind that the dialect has no names for.
        """


@final
@dataclass(frozen=True)
class Names(Naming):
    """The names of a dialect as tables.

    Args:
        whole: rules for what a model has once, given its config.
        layers: rules for every layer.
        depth: rules for the depth attention, of every layer or of the whole; left out for other streams.
        mixers, channels: rules for a sublayer by the type of its config, given that config.
        mixer_prefix, channels_prefix: what their names for sublayers begin with.
        wrappers: see `WRAPPERS`.
    """

    whole: Callable[[BackboneConfig], Table]
    layers: Table
    depth: Table
    mixers: Mapping[type, Callable[[Any], Table]]
    channels: Mapping[type, Callable[[Any], Table]]
    mixer_prefix: str
    channels_prefix: str
    wrappers: frozenset[str] = WRAPPERS

    def plain(self, name: str) -> str:
        return unwrapped(name, self.wrappers)

    def of_depth(self, name: str) -> bool:
        return named(self.depth, name)

    def expand(self, config: BackboneConfig, ours: Mapping[str, Tensor]) -> list[Rule]:
        found = list(self.whole(config))
        has_depth = any(_matches(pattern, name) for rule in self.depth for pattern in rule.ours for name in ours)
        each = [*self.layers, *(self.depth if has_depth else ())]
        found += [rule for rule in each if not _placed(rule)]
        for layer in range(config.sublayers // SUBLAYERS_PER_LAYER):
            mixer, channels = config.layer(layer)
            i = SUBLAYERS_PER_LAYER * layer
            rules = [
                *(rule for rule in each if _placed(rule)),
                *_prefixed(self.mixers[type(mixer)](mixer), "sublayers.{mixer}.", self.mixer_prefix),
                *_prefixed(self.channels[type(channels)](channels), "sublayers.{channels}.", self.channels_prefix),
            ]
            found += [_filled(rule, layer=layer, mixer=i, channels=i + 1) for rule in rules]
        return [_known(rule, ours) for rule in found]


def expanded(table: Table, layers: int, ours: Mapping[str, Tensor]) -> list[Rule]:
    """A table of the depth attention for so many layers, every name in full.

    Where our tensor does not exist, that of the first read, there is a rule only if the dialect has an unused one.
    """
    found = [rule for rule in table if not _placed(rule)]
    for layer in range(layers):
        i = SUBLAYERS_PER_LAYER * layer
        found += [_filled(rule, layer=layer, mixer=i, channels=i + 1) for rule in table if _placed(rule)]
    there = [rule for rule in found if rule.unused is not None or all(name in ours for name in rule.ours)]
    return [_known(rule, ours) for rule in there]


def named(table: Table, name: str) -> bool:
    """Whether a name is one of a table's, of whatever layer."""
    return any(_matches(pattern, name) for rule in table for pattern in rule.theirs)


def their_forms(rule: Rule, ours: Mapping[str, Tensor], embedding: Tensor) -> list[Tensor]:
    """The tensors that a rule of an expanded list stands for, on the meta device.

    An unused one would be a vector `[D]` here, of the type of the embedding.
    """
    if not rule.ours:
        return rule.layout.theirs([torch.empty(embedding.shape[1], dtype=embedding.dtype, device="meta")])
    return rule.layout.theirs([ours[name].to("meta") for name in rule.ours])


def _known(rule: Rule, ours: Mapping[str, Tensor]) -> Rule:
    """The rule itself, or for tensors that we do not have one without our names."""
    if all(name in ours for name in rule.ours):
        return rule
    assert rule.unused is not None, f"the model has no {rule.ours}"
    return replace(rule, ours=())


def _prefixed(rules: Sequence[Rule], ours: str, theirs: str) -> list[Rule]:
    return [
        replace(
            rule, ours=tuple(ours + name for name in rule.ours), theirs=tuple(theirs + name for name in rule.theirs)
        )
        for rule in rules
    ]


def _filled(rule: Rule, **numbers: int) -> Rule:
    ours, theirs = (tuple(name.format(**numbers) for name in names) for names in (rule.ours, rule.theirs))
    return replace(rule, ours=ours, theirs=theirs)


def _placed(rule: Rule) -> bool:
    return any("{" in name for name in rule.ours)


def _matches(pattern: str, name: str) -> bool:
    return _compiled(pattern).fullmatch(name) is not None


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """Numbers in the place of what stands in braces."""
    return re.compile(re.sub(r"\\{\w+\\}", r"\\d+", re.escape(pattern)))
