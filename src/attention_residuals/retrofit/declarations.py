"""What forms one increment of the residual stream in each architecture: names of modules, and no copied code."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TypeAlias

from torch import nn

from attention_residuals.errors import InputError

Names: TypeAlias = str | tuple[str, ...]


@dataclass(frozen=True)
class Sublayer:
    """One increment: who reads the stream for it, and who writes it. Names lead from the layer to the module.

    Args:
        readers: the modules whose input is the stream, the norm in front of a branch or the branch itself. Several
            where branches run beside each other from one input: they share one read.
        writers: the modules whose output is added to the stream, the last ones of their branches. A tuple counts with
            its first element; of several the sum is the increment. A module may write several sublayers in turn.
        scale: attribute of the layer by which the output is multiplied before it is added.
        dropout: attribute of the layer, the probability of a dropout between output and sum that is no module.
        optional: layers without these modules have no such increment.
    """

    readers: Names
    writers: Names
    scale: str | None = None
    dropout: str | None = None
    optional: bool = False


Branches: TypeAlias = tuple[Sublayer, ...] | Callable[[nn.Module], tuple[Sublayer, ...]]
"""Those of a layer in order, or how they follow from the layer."""


@dataclass(frozen=True)
class Stack:
    """A run of layers over one additive stream. Names lead from the module that owns it.

    Args:
        layers: the `ModuleList` of layers; what enters the first one is the embedding.
        sublayers: of each layer.
        norm: the final norm, which is the last reader.
    """

    layers: str
    sublayers: Branches
    norm: str


_STACKS: dict[str, Stack] = {}


def declare(owner: str, stack: Stack) -> None:
    """Make an architecture known, or declare it anew.

    Args:
        owner: name of the class that owns the stack, for example `LlamaModel`; every model that has a module of this
            class can be converted then.
    """
    _STACKS[owner] = stack


def declared() -> tuple[str, ...]:
    """Names of the classes that are known."""
    return tuple(sorted(_STACKS))


@dataclass(frozen=True, eq=False)
class Increment:
    """A `Sublayer` of one layer of one model, with the modules themselves."""

    name: str
    layer: nn.Module
    readers: tuple[nn.Module, ...]
    writers: tuple[nn.Module, ...]
    scale: float
    dropout: float


@dataclass(frozen=True, eq=False)
class Layout:
    """A `Stack` found in a model. `name` leads from the model to its owner, and is empty for the model itself."""

    name: str
    owner: nn.Module
    layers: tuple[nn.Module, ...]
    increments: tuple[Increment, ...]
    norm: nn.Module
    norm_name: str


def find_layouts(model: nn.Module) -> tuple[Layout, ...]:
    """All declared stacks of a model, in order of its modules.

    Raises:
        InputError: there is none, or a declaration names modules that the model does not have.
    """
    found = [
        _lay_out(name, module, _STACKS[type(module).__name__])
        for name, module in model.named_modules()
        if type(module).__name__ in _STACKS
    ]
    if not found:
        raise InputError(
            f"{type(model).__name__} has no stack of layers that is known here, and a stream whose sums are normed "
            f"(post-norm, as in BERT) cannot be converted; known are {', '.join(declared())}, and "
            "attention_residuals.retrofit.declare adds others"
        )
    return tuple(found)


def _lay_out(name: str, owner: nn.Module, stack: Stack) -> Layout:
    layers = _module(owner, name, stack.layers)
    assert isinstance(layers, nn.ModuleList), f"{stack.layers} of {type(owner).__name__} is no list of layers"
    increments = [
        increment
        for i, layer in enumerate(layers)
        for increment in _increments(joined(name, f"{stack.layers}.{i}"), layer, stack.sublayers)
    ]
    norm = _module(owner, name, stack.norm)
    return Layout(name, owner, tuple(layers), tuple(increments), norm, joined(name, stack.norm))


def _increments(name: str, layer: nn.Module, sublayers: Branches) -> list[Increment]:
    chosen: Sequence[Sublayer] = sublayers(layer) if callable(sublayers) else sublayers
    return [_increment(name, layer, each) for each in chosen if not each.optional or _has(layer, each)]


def _increment(name: str, layer: nn.Module, sublayer: Sublayer) -> Increment:
    readers, writers = _tuple(sublayer.readers), _tuple(sublayer.writers)
    return Increment(
        name=joined(name, readers[0]),
        layer=layer,
        readers=tuple(_module(layer, name, path) for path in readers),
        writers=tuple(_module(layer, name, path) for path in writers),
        scale=1.0 if sublayer.scale is None else float(attrgetter(sublayer.scale)(layer)),
        dropout=0.0 if sublayer.dropout is None else float(attrgetter(sublayer.dropout)(layer)),
    )


def _has(layer: nn.Module, sublayer: Sublayer) -> bool:
    names = {name for name, _ in layer.named_modules(remove_duplicate=False)}
    return names.issuperset((*_tuple(sublayer.readers), *_tuple(sublayer.writers)))


def _module(owner: nn.Module, name: str, path: str) -> nn.Module:
    try:
        return owner.get_submodule(path)
    except AttributeError as error:
        raise InputError(
            f"{joined(name, path)} is declared and {type(owner).__name__} has no such module; declare the "
            "architecture as this version of transformers has it"
        ) from error


def _tuple(names: Names) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else names


def joined(name: str, path: str) -> str:
    """The name of a module from that of its owner, which is empty for the model itself."""
    return f"{name}.{path}" if name else path
