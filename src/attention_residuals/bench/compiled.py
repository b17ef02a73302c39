"""What the Triton kernels are compiled to, on a machine that need not have a GPU.

Each kernel is compiled in the variants that `ops/gpu/launch.py` launches: what Triton makes of the arguments of a
launch is asked of Triton itself. `python -m attention_residuals.bench.compiled` prints registers, shared memory and
spills as a Markdown table; `--target`, `--width` and `--dtype` choose some.
"""

import argparse
import re
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.runtime.jit import create_function_from_signature

from attention_residuals.bench.launches import Launch, block_pass, full_pass, partial_pass, read_pass, taken
from attention_residuals.ops.gpu import kernels, launch
from attention_residuals.ops.gpu.tables import AT_ONCE

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
WIDTHS = (1024, 4096, 7168)
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}

MANY_TOKENS, FEW_TOKENS = launch.FEW_TOKENS + 64, 16
"""Multiples of 16, as real numbers of tokens are: the rows of a read's statistics then begin at aligned addresses."""


@dataclass(frozen=True)
class Variant:
    """A kernel with all that it is compiled for; two launches with equal variants share the compiled code.

    `signature` has the types of the arguments, `constants` and `attributes` what is known of their values.
    """

    kernel: str
    signature: tuple[tuple[str, str], ...]
    constants: tuple[tuple[tuple[int, ...], Any], ...]
    attributes: tuple[tuple[tuple[int, ...], str], ...]
    warps: int

    @property
    def words(self) -> str:
        """What tells it from other variants of its kernel: the sides of its tile, and which of its branches it has."""
        named = {list(self.signature)[path[0]][0]: value for path, value in self.constants}
        tile = [f"{name.removeprefix('tile_')} {value}" for name, value in named.items() if name.startswith("tile_")]
        branches = [name for name, value in named.items() if value is True and name != "packed"]
        return ", ".join([*tile, *branches])


@dataclass(frozen=True)
class Compiled:
    """What became of a variant: registers and spilled bytes a thread, bytes of shared memory a program."""

    variant: Variant
    target: str
    registers: int
    shared: int
    spilled: int
    seconds: float


def variants(launches: Iterable[Launch], target: str) -> list[Variant]:
    """The different variants among `launches`, in their order."""
    return list(dict.fromkeys(_variant(one, target) for one in launches))


def launches(width: int, dtype: torch.dtype, sources: int = 3, reads: int = 4) -> list[Launch]:
    """Launches of every kernel, forward and backward; with four reads there are groups of one, two and more."""
    made: list[Launch] = []
    passes = [read_pass(sources, tokens, width, dtype) for tokens in (MANY_TOKENS, FEW_TOKENS)]
    passes += [block_pass(sources, reads, MANY_TOKENS, width, dtype, normed) for normed in (False, True)]
    passes += [
        partial_pass(sources, reads, MANY_TOKENS, width, dtype),
        full_pass(sources, reads, MANY_TOKENS, width, dtype),
    ]
    passes += [block_pass(sources, 2, MANY_TOKENS, width, dtype, True)]
    passes += [block_pass(sources, reads, FEW_TOKENS, width, dtype, True)]
    with taken(made.append):
        for one in passes:
            one()()
    table = torch.empty(AT_ONCE, dtype=torch.int64)
    return [*made, Launch("write_table_kernel", (1,), (table, *[table.data_ptr()] * AT_ONCE), {"num_warps": 1})]


def compile_variant(variant: Variant, target: str) -> Compiled:
    """Compile from scratch, whatever is in Triton's cache."""
    source = ASTSource(
        getattr(kernels, variant.kernel),
        dict(variant.signature),
        dict(variant.constants),
        {path: make_backend(TARGETS[target]).parse_attr(text) for path, text in variant.attributes},
    )
    with _cache_of_its_own():
        began = time.perf_counter()
        made = triton.compile(source, target=TARGETS[target], options={"num_warps": variant.warps})
        seconds = time.perf_counter() - began
    registers, spilled = _of_cubin(made.asm["cubin"]) if "cubin" in made.asm else _of_assembly(made.asm["amdgcn"])
    return Compiled(variant, target, registers, made.metadata.shared, spilled, seconds)


def _variant(one: Launch, target: str) -> Variant:
    """By the function that Triton itself builds for a kernel to look at arguments with."""
    kernel, backend = getattr(kernels, one.kernel), make_backend(TARGETS[target])
    bind = create_function_from_signature(kernel.signature, kernel.params, backend)
    arguments, specialization, options = bind(*one.arguments, **one.keywords)
    types = [kind for kind, _ in specialization]
    constants = {(n,): value for n, value in enumerate(arguments.values()) if types[n] == "constexpr"}
    attributes = {
        (n,): text for n, (kind, text) in enumerate(specialization) if kind != "constexpr" and isinstance(text, str)
    }
    return Variant(
        one.kernel,
        tuple(zip(arguments, types, strict=True)),
        tuple(constants.items()),
        tuple(attributes.items()),
        options["num_warps"],
    )


@contextmanager
def _cache_of_its_own() -> Iterator[None]:
    with tempfile.TemporaryDirectory() as folder, knobs.cache.scope():
        knobs.cache.dir = folder
        yield


def _of_cubin(cubin: bytes) -> tuple[int, int]:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return _number("REG:", text), _number("STACK:", text) + _number("LOCAL:", text)


def _of_assembly(text: str) -> tuple[int, int]:
    """AMD's vector registers; registers beyond the first 256 are accumulation ones, which count among them."""
    return _number(r"\.vgpr_count:", text), _number(r"\.private_segment_fixed_size:", text)


def _number(before: str, text: str) -> int:
    found = re.search(before + r"\s*(\d+)", text)
    assert found is not None, f"no {before} in what the compiler says"
    return int(found[1])


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table, row by row as it comes to be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", nargs="+", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--width", nargs="+", type=int, default=list(WIDTHS))
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, default=list(DTYPES))
    chosen = parser.parse_args(arguments)
    print(
        "| target | width | sources | kernel | variant | warps | registers | shared, B | spilled, B | compiled in, s |"
    )
    print("| --- | ---: | --- | --- | --- | ---: | ---: | ---: | ---: | ---: |")
    for target in chosen.target:
        for width in chosen.width:
            for dtype in chosen.dtype:
                for variant in variants(launches(width, DTYPES[dtype]), target):
                    print(_row(width, dtype, compile_variant(variant, target)), flush=True)


def _row(width: int, dtype: str, made: Compiled) -> str:
    variant = made.variant
    cells = [made.target, width, dtype, variant.kernel, variant.words, variant.warps]
    cells += [made.registers, f"{made.shared:,}", f"{made.spilled:,}", f"{made.seconds:.1f}"]
    return f"| {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    main()
