"""How many bytes the GPU's kernels move, counted address by address as Triton's interpreter runs them.

`TRITON_INTERPRET=1 python -m attention_residuals.bench.traffic` prints a Markdown table, in units of U, the bytes of
one tensor `[T, D]`. A program that touches an address again has it in its cache, so it counts once a program; what it
reads after having written it does not count. Plain torch operations count with all that they read and write.
With few tokens (`launch.FEW_TOKENS`) of a width beyond `launch.SLICE`, a read takes the path that spreads D over
programs and reads its sources twice.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from triton import knobs
from triton.runtime.interpreter import interpreter_builder

from attention_residuals.bench.floors import block_units, read_units
from attention_residuals.bench.launches import Launch, Pass, block_pass, read_pass, taken
from attention_residuals.ops.gpu import kernels

NORM_UNITS = (2, 3)
"""A norm by itself, forward and backward: in and out; input and gradient in, gradient out."""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass
class Traffic:
    """Bytes of some launches and torch operations.

    Args:
        rows: of tensors `[T, D]`, once a program.
        small: of all else, once a launch: numbers a token, vectors, partial sums of their gradients, tables.
        again: of what is small, once a program and beyond `small`; later programs find it in the cache of the GPU.
        asked: by all loads and stores, those of what a program has at hand included.
        torch: of plain torch operations.
    """

    rows: int = 0
    small: int = 0
    again: int = 0
    asked: int = 0
    torch: int = 0

    @property
    def memory(self) -> int:
        """What has to come from memory or go there."""
        return self.rows + self.small + self.torch


@dataclass(frozen=True)
class _Run:
    """Elements of `size` bytes one behind the other that were loaded or stored."""

    begin: int
    count: int
    size: int
    stored: bool


class _Touched:
    """What a program loaded or stored: each run once, in the order they first came; and the bytes it asked for."""

    def __init__(self) -> None:
        self.asked = 0
        self._runs: dict[_Run, None] = {}

    def add(self, addresses: np.ndarray, size: int, stored: bool) -> None:
        """Add the elements at `addresses`."""
        self.asked += len(addresses) * size
        if len(addresses):
            ends = np.flatnonzero(np.diff(addresses) != size) + 1
            for part in np.split(addresses, ends):
                self._runs.setdefault(_Run(int(part[0]), len(part), size, stored))

    def moved(self) -> tuple[np.ndarray, np.ndarray]:
        """Addresses and sizes of the elements that move: each once if it is loaded first, and once if it is stored."""
        runs = list(self._runs)
        counts = [run.count for run in runs]
        addresses = np.concatenate([run.begin + run.size * np.arange(run.count) for run in runs])
        sizes, stored = (np.repeat(one, counts) for one in ([r.size for r in runs], [r.stored for r in runs]))
        _, first = np.unique(addresses, return_index=True)
        _, stores = np.unique(addresses[stored], return_index=True)
        moved = np.concatenate([first[~stored[first]], np.flatnonzero(stored)[stores]])
        return addresses[moved], sizes[moved]


class _Programs:
    """The programs of a launch, while it runs in the interpreter."""

    def __init__(self) -> None:
        self.programs: dict[tuple[int, ...], _Touched] = {}

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Within, loads and stores of the interpreter are noted."""
        load, store = interpreter_builder.create_masked_load, interpreter_builder.create_masked_store

        def masked_load(pointers: Any, mask: Any, *rest: Any) -> Any:
            self._note(pointers, mask, stored=False)
            return load(pointers, mask, *rest)

        def masked_store(pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
            self._note(pointers, mask, stored=True)
            return store(pointers, value, mask, *rest)

        builder: Any = interpreter_builder
        builder.create_masked_load, builder.create_masked_store = masked_load, masked_store
        try:
            yield
        finally:
            del builder.create_masked_load, builder.create_masked_store

    def _note(self, pointers: Any, mask: Any, stored: bool) -> None:
        program = self.programs.setdefault(tuple(interpreter_builder.grid_idx), _Touched())
        size = pointers.get_element_ty().primitive_bitwidth // 8
        program.add(pointers.data[np.broadcast_to(mask.data, pointers.data.shape)].astype(np.int64), size, stored)

    def traffic(self, numbers: int) -> Traffic:
        """Of the launch; a run of touched memory is a tensor `[T, D]` if it has `numbers` or more."""
        moved = [touched.moved() for touched in self.programs.values()]
        addresses, sizes = (np.concatenate(parts) for parts in zip(*moved, strict=True))
        once, first = np.unique(addresses, return_index=True)
        begins = np.flatnonzero(np.diff(once, prepend=-1) != np.concatenate([[0], sizes[first][:-1]]))
        is_long = np.diff(begins, append=len(once)) >= numbers
        is_row = is_long[np.searchsorted(once[begins], addresses, side="right") - 1]
        small = int(np.add.reduceat(sizes[first], begins)[~is_long].sum())
        asked = sum(touched.asked for touched in self.programs.values())
        return Traffic(int(sizes[is_row].sum()), small, int(sizes[~is_row].sum()) - small, asked)


class _TorchBytes(TorchDispatchMode):
    """Bytes that torch operations read and write; views and empty tensors cost nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0
        self.paused = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not self.paused and not _is_free(func):
            tensors = [one for one in tree_iter((args, kwargs, result)) if isinstance(one, Tensor)]
            self.total += sum(one.nbytes for one in tensors)
        return result


def _is_free(func: Any) -> bool:
    """Whether an operation only makes room or another view of it, or is one of ours, whose launches count instead."""
    if func.namespace == "attention_residuals":
        return True
    views = any(one.alias_info is not None and not one.alias_info.is_write for one in func._schema.returns)
    return views or "empty" in func.__name__


class Count:
    """Counts what runs in its `counted` blocks, where tensors `[T, D]` have this many `numbers`."""

    def __init__(self, numbers: int):
        self._numbers = numbers
        self.launches: list[tuple[str, Traffic]] = []
        self._torch = _TorchBytes()

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Within, the operators run their kernels in the interpreter."""
        with taken(self._take), self._torch:
            yield

    @property
    def total(self) -> Traffic:
        """Of all launches and torch operations."""
        sums = {
            name: sum(getattr(one, name) for _, one in self.launches) for name in ("rows", "small", "again", "asked")
        }
        return Traffic(**sums, torch=self._torch.total)

    def _take(self, launch: Launch) -> None:
        programs = _Programs()
        self._torch.paused = True
        with programs.watched():
            getattr(kernels, launch.kernel)[launch.grid](*launch.arguments, **launch.keywords)
        self._torch.paused = False
        self.launches.append((launch.kernel, programs.traffic(self._numbers)))


def count(run: Pass, numbers: int) -> tuple[Count, Count]:
    """The traffic of a forward and of its backward, of tensors `[T, D]` with so many numbers."""
    forward, backward = Count(numbers), Count(numbers)
    with forward.counted():
        gradients = run()
    with backward.counted():
        gradients()
    return forward, backward


@dataclass(frozen=True)
class Case:
    """A line of the table for a forward and one for its backward: what runs, and the units it cannot do without."""

    name: str
    run: Callable[[int, int, torch.dtype], Pass]
    floor: tuple[int, int]


def cases() -> list[Case]:
    """One read over 8 sources and over 32; a block of 8 reads over 8 closed sources, without and with the norms."""
    reads = [
        Case(f"read, N = {n}", lambda tokens, width, dtype, n=n: read_pass(n, tokens, width, dtype), read_units(n))
        for n in (8, 32)
    ]
    floor = block_units(8, 8)
    blocks = [
        Case(
            f"block, N = S = 8{', norms' if normed else ''}",
            lambda tokens, width, dtype, normed=normed: block_pass(8, 8, tokens, width, dtype, normed),
            _with_norms(floor, 8) if normed else floor,
        )
        for normed in (False, True)
    ]
    return [*reads, *blocks]


def _with_norms(floor: tuple[int, int], reads: int) -> tuple[int, int]:
    forward, backward = NORM_UNITS
    return floor[0] + reads * forward, floor[1] + reads * backward


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table, row by row as it comes to be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--launches", action="store_true", help="a line for every launch too")
    chosen = parser.parse_args(arguments)
    if not knobs.runtime.interpret:
        parser.error("the kernels are counted in Triton's interpreter: set TRITON_INTERPRET=1")
    print(f"T = {chosen.tokens}, D = {chosen.width}; in units of U.\n")
    print("| case | sources | pass | floor | memory | of the floor | rows | torch | small | again | asked |")
    print("| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name in chosen.dtype:
        dtype = DTYPES[name]
        numbers = chosen.tokens * chosen.width
        unit = numbers * dtype.itemsize
        for case in cases():
            counts = count(case.run(chosen.tokens, chosen.width, dtype), numbers)
            for way, floor, counted in zip(("forward", "backward"), case.floor, counts, strict=True):
                print(_row(f"{case.name} | {name} | {way}", counted.total, unit, floor), flush=True)
                if chosen.launches:
                    for kernel, one in counted.launches:
                        print(_row(f"{kernel} | {name} | {way}", one, unit), flush=True)


def _row(name: str, traffic: Traffic, unit: int, floor: int | None = None) -> str:
    ratio = "-" if floor is None else f"{traffic.memory / unit / floor:.3f}"
    parts = (traffic.rows, traffic.torch, traffic.small, traffic.again, traffic.asked)
    shown = " | ".join(f"{part / unit:.2f}" for part in parts)
    return f"| {name} | {'-' if floor is None else floor} | {traffic.memory / unit:.2f} | {ratio} | {shown} |"


if __name__ == "__main__":
    main()
