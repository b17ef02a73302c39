"""Hooks on readers, writers and layers: all that is added to the code of a model.

They are objects that hold what they need, so that a deep copy of a model has hooks of its own on parts of its own.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from attention_residuals.errors import InputError
from attention_residuals.retrofit.declarations import Layout
from attention_residuals.retrofit.walks import DepthWalk, Place, Reader, Walk
from attention_residuals.streams import AttnResStream

HIDDEN = "hidden_states"
"""The name of the stream among the arguments of modules, where it is not the first of them."""


def wire(layout: Layout, walk: Walk) -> list[RemovableHandle]:
    """Have a walk told of every forward of a stack, until the handles are removed."""
    handles = [layer.register_forward_pre_hook(_Entry(walk), with_kwargs=True) for layer in layout.layers]
    for module, sublayers in _sublayers(layout, "readers").items():
        handles.append(module.register_forward_pre_hook(_Reading(walk, sublayers), with_kwargs=True))
    for module, sublayers in _sublayers(layout, "writers").items():
        handles.append(module.register_forward_hook(_Writing(walk, sublayers)))
    handles.append(layout.norm.register_forward_pre_hook(_Finishing(walk), with_kwargs=True))
    handles.append(layout.owner.register_forward_hook(_Leaving(walk), always_call=True))
    return handles


def places(layout: Layout) -> list[Place]:
    """Where the readers and writers of a stack, its final norm and its stream stand."""
    wanted = {layout.norm, *_sublayers(layout, "readers"), *_sublayers(layout, "writers")}
    return [
        Place(parent, name, module)
        for parent in layout.owner.modules()
        for name, module in parent._modules.items()
        if module is not None and (module in wanted or isinstance(module, AttnResStream))
    ]


def walks_of(model: nn.Module) -> list[DepthWalk]:
    """The walks of a converted model, one a stack; empty for any other model."""
    hooks = [hook for module in model.modules() for hook in module._forward_hooks.values()]
    return [hook.walk for hook in hooks if isinstance(hook, _Leaving) and isinstance(hook.walk, DepthWalk)]


@contextmanager
def reading(model: nn.Module, reader: Reader) -> Iterator[None]:
    """Have a reader asked for what every read of a converted model sees, while the body runs."""
    walks = walks_of(model)
    before = [walk.reader for walk in walks]
    for walk in walks:
        walk.reader = reader
    try:
        yield
    finally:
        for walk, each in zip(walks, before, strict=True):
            walk.reader = each


def _sublayers(layout: Layout, role: str) -> dict[nn.Module, tuple[int, ...]]:
    """Each module of a role, and the sublayers that it has it for."""
    found: dict[nn.Module, list[int]] = defaultdict(list)
    for i, increment in enumerate(layout.increments):
        for module in getattr(increment, role):
            found[module].append(i)
    return {module: tuple(sublayers) for module, sublayers in found.items()}


@dataclass(frozen=True, eq=False)
class _Entry:
    walk: Walk

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.walk.enter(module, _hidden(module, args, kwargs))


@dataclass(frozen=True, eq=False)
class _Reading:
    walk: Walk
    sublayers: Sequence[int]

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return _replaced(args, kwargs, self.walk.read(self.sublayers, _hidden(module, args, kwargs)))


@dataclass(frozen=True, eq=False)
class _Writing:
    walk: Walk
    sublayers: Sequence[int]

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self.walk.write(self.sublayers, output[0] if isinstance(output, tuple) else output)


@dataclass(frozen=True, eq=False)
class _Finishing:
    walk: Walk

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return _replaced(args, kwargs, self.walk.finish(_hidden(module, args, kwargs)))


@dataclass(frozen=True, eq=False)
class _Leaving:
    walk: Walk

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self.walk.leave()


def _hidden(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    hidden = args[0] if args else kwargs.get(HIDDEN)
    if not isinstance(hidden, Tensor):
        raise InputError(
            f"{type(module).__name__} is called without a tensor in first place or as {HIDDEN}, so it is no reader of "
            "a stream; declare another module"
        )
    return hidden


def _replaced(args: tuple[Any, ...], kwargs: dict[str, Any], hidden: Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if args:
        return (hidden, *args[1:]), kwargs
    return args, {**kwargs, HIDDEN: hidden}
