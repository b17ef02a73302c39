"""Bytes of tensors alive at once, counted exactly: by the allocator's own record, or storage by storage."""

import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


def peak_bytes(run: Callable[[], object]) -> int | None:
    """The most bytes of CPU memory `run` holds at once beyond what was there, temporaries of kernels included.

    From the record torch's allocator gives the profiler, so that compiled code is counted too. None where this torch
    does not give it.
    """
    with _quiet(), torch.autograd.profiler.profile(use_kineto=False, profile_memory=True) as profile:
        run()
    recorded = getattr(profile, "kineto_results", None)
    if recorded is None:
        return None
    events = sorted((event for event in recorded.events() if event.name() == "[memory]"), key=lambda e: e.start_ns())
    return _peak([event.nbytes() for event in events]) if events else None


class LiveBytes(TorchDispatchMode):
    """Follows every storage that operations make inside it, from its first tensor to the death of its last.

    A storage counts from the end of the operation that made it, so what an operator uses inside itself does not.
    """

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[int, weakref.ref[Any]] = {}
        self._events: list[tuple[int, int]] = []
        self._excluded: set[int] = set()
        self._next = 0
        self._numbers: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for tensor in tree_iter((args, kwargs)):
            if isinstance(tensor, Tensor) and tensor.untyped_storage()._cdata not in self._numbers:
                self._exclude(tensor)  # it was there before
        result = func(*args, **kwargs)
        for tensor in tree_iter(result):
            if isinstance(tensor, Tensor):
                self._follow(tensor)
        return result

    def leave_out_gradients(self, module: nn.Module) -> None:
        """Leave out the gradients of the module's parameters, which belong to its weights and not to a step."""
        for parameter in module.parameters():
            parameter.register_post_accumulate_grad_hook(self._exclude_gradient)

    @property
    def peak(self) -> int:
        """The most bytes that were alive at once, without what was left out."""
        return _peak(self._changes())

    @property
    def now(self) -> int:
        """The bytes that are alive now, without what was left out."""
        return sum(self._changes())

    def _changes(self) -> list[int]:
        return [size for number, size in self._events if number not in self._excluded]

    def _exclude_gradient(self, parameter: Tensor) -> None:
        if parameter.grad is not None:
            self._exclude(parameter.grad)

    def _exclude(self, tensor: Tensor) -> None:
        # Left out from its birth on, though only now known for what it is: the peak is taken at the end.
        self._excluded.add(self._follow(tensor))

    def _follow(self, tensor: Tensor) -> int:
        """The number of the tensor's storage, which is new if the storage is."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._numbers:
            return self._numbers[key]
        number, size = self._next, storage.nbytes()
        self._next += 1
        self._numbers[key] = number
        self._events.append((number, size))

        def died(_: object) -> None:
            self._events.append((number, -size))
            del self._numbers[key], self._known[key]

        self._known[key] = weakref.ref(storage, died)
        return number


def _peak(changes: Sequence[int]) -> int:
    """The highest partial sum, at least 0."""
    total = highest = 0
    for change in changes:
        total += change
        highest = max(highest, total)
    return highest


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep off the terminal what torch's profiler prints there from C++ on every use."""
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(nowhere)
        os.close(kept)
