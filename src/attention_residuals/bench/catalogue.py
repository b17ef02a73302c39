"""The benchmarks by name, with the shapes they take."""

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from attention_residuals.bench.inference import run_decode, run_prefill, run_prefill_memory
from attention_residuals.bench.memory import MEMORY_MODELS, run_memory
from attention_residuals.bench.networks import MODELS
from attention_residuals.bench.prefill_ranks import run_prefill_ranks
from attention_residuals.bench.progress import Work
from attention_residuals.bench.reads import GROUP_ENTRIES, READ_ENTRIES, run_block, run_full, run_read
from attention_residuals.bench.recurrent import MIXERS, run_recurrent
from attention_residuals.bench.request import ALLOCATORS, Request, Shape
from attention_residuals.bench.results import Table
from attention_residuals.bench.retrofit import NAMES, run_retrofit
from attention_residuals.bench.steps import run_depth, run_step
from attention_residuals.errors import InputError

TINY = "tiny"
DEPTHS = (12, 24, 48, 96)


@dataclass(frozen=True)
class Benchmark:
    """One benchmark.

    Args:
        name, summary: for the command line.
        sizes: what the numbers of a shape are.
        shapes: those it runs unless told otherwise.
        tiny: one that takes seconds, to see that everything works.
        least: the smallest each number may be.
        entries: names of the implementations.
        run: does it.
        any_dtype: whether the type of the numbers is a choice.
        allocators: the settings that make a difference to it.
    """

    name: str
    summary: str
    sizes: tuple[str, ...]
    shapes: tuple[Shape, ...]
    tiny: Shape
    least: Shape
    entries: tuple[str, ...]
    run: Callable[[Request, Work], list[Table]]
    any_dtype: bool = False
    allocators: tuple[str, ...] = ALLOCATORS


BENCHMARKS = {
    one.name: one
    for one in (
        Benchmark(
            "read",
            "one read over depth, against other implementations of it",
            ("SOURCES", "TOKENS", "WIDTH"),
            ((8, 4096, 1024), (32, 1024, 512), (8, 2048, 512)),
            (3, 8, 16),
            (1, 1, 1),
            READ_ENTRIES,
            run_read,
            any_dtype=True,
        ),
        Benchmark(
            "block",
            "the reads of one block in two phases, against the same reads one by one",
            ("CLOSED_SOURCES", "READS", "TOKENS", "WIDTH"),
            ((8, 8, 2048, 512),),
            (2, 3, 8, 16),
            (1, 2, 1, 1),
            GROUP_ENTRIES,
            run_block,
            any_dtype=True,
        ),
        Benchmark(
            "full",
            "all reads of Full in two phases, against the same reads one by one",
            ("READS", "TOKENS", "WIDTH"),
            ((48, 2048, 512),),
            (12, 8, 16),
            (2, 1, 1),
            GROUP_ENTRIES,
            run_full,
            any_dtype=True,
        ),
        Benchmark(
            "step",
            "a whole training step of the standard, Block and Full residual",
            ("WIDTH", "LAYERS", "BATCH", "SEQUENCE", "BLOCK"),
            ((512, 24, 1, 512, 6), (128, 12, 16, 256, 4)),
            (32, 2, 2, 16, 2),
            (16, 1, 1, 2, 1),
            MODELS,
            run_step,
        ),
        Benchmark(
            "depth",
            "what a layer costs more than with the standard residual, at several depths",
            ("LAYERS", "TOKENS", "WIDTH"),
            tuple((layers, 256, 128) for layers in DEPTHS),
            (2, 16, 32),
            (1, 2, 16),
            MODELS,
            run_depth,
        ),
        Benchmark(
            "memory",
            "what depth attention holds more than the standard residual, at several depths",
            ("LAYERS", "TOKENS", "WIDTH"),
            tuple((layers, 512, 64) for layers in DEPTHS),
            (2, 16, 32),
            (1, 2, 16),
            MEMORY_MODELS,
            run_memory,
            allocators=("shipped",),
        ),
        Benchmark(
            "decode",
            "tokens one at a time with a cache, with the standard, Block and Full residual",
            ("BATCH", "TOKENS", "WIDTH", "LAYERS", "BLOCK"),
            ((1, 256, 512, 24, 6), (8, 256, 512, 24, 6)),
            (2, 4, 32, 2, 2),
            (1, 1, 16, 1, 1),
            MODELS,
            run_decode,
            allocators=("kept",),
        ),
        Benchmark(
            "prefill",
            "a prompt taken in, with the standard, Block and Full residual",
            ("BATCH", "TOKENS", "WIDTH", "LAYERS", "BLOCK"),
            ((1, 2048, 512, 24, 6),),
            (2, 16, 32, 2, 2),
            (1, 1, 16, 1, 1),
            MODELS,
            run_prefill,
            allocators=("kept",),
        ),
        Benchmark(
            "prefill-memory",
            "what a prefill holds, at once and in chunks",
            ("TOKENS", "WIDTH", "LAYERS", "BLOCK"),
            ((32768, 128, 8, 2),),
            (32, 32, 2, 2),
            (1, 16, 1, 1),
            MODELS,
            run_prefill_memory,
            allocators=("shipped",),
        ),
        Benchmark(
            "prefill-ranks",
            "what each of 1, 2 and 4 processes holds of the depth in a prefill they share",
            ("TOKENS", "WIDTH", "LAYERS", "BLOCK"),
            ((4096, 256, 8, 2),),
            (32, 256, 2, 2),
            (8, 256, 1, 1),
            MODELS,
            run_prefill_ranks,
            allocators=("shipped",),
        ),
        Benchmark(
            "recurrent",
            "Kimi Delta Attention by the number of tokens, beside softmax and latent attention",
            ("TOKENS", "WIDTH", "HEADS"),
            tuple((tokens, 256, 4) for tokens in (256, 512, 1024, 2048, 4096, 8192)),
            (16, 16, 2),
            (1, 4, 1),
            tuple(MIXERS),
            run_recurrent,
            allocators=("kept",),
        ),
        Benchmark(
            "retrofit",
            "training step and decoded tokens of a converted Llama, against the original",
            ("WIDTH", "LAYERS", "BATCH", "TOKENS", "BLOCK", "VOCABULARY"),
            ((576, 30, 1, 256, 4, 49152),),
            (32, 2, 1, 16, 2, 64),
            (16, 1, 1, 1, 1, 2),
            NAMES,
            run_retrofit,
            allocators=("kept",),
        ),
    )
}


def find_benchmark(name: str) -> Benchmark:
    """The benchmark of that name.

    Raises:
        InputError: there is none; near names are given.
    """
    if name in BENCHMARKS:
        return BENCHMARKS[name]
    near = difflib.get_close_matches(name, BENCHMARKS, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(BENCHMARKS)}"
    raise InputError(f"'{name}' is no benchmark; {hint}")


def make_request(
    name: str,
    *,
    shapes: Sequence[str] = (),
    dtype: str = "float32",
    threads: int | None = None,
    repeats: int = Request.repeats,
    seconds: float = Request.seconds,
    allocators: Sequence[str] = (),
    only: Sequence[str] = (),
) -> Request:
    """What the command line asked for, checked.

    Raises:
        InputError: a name, shape or setting that is not allowed.
    """
    benchmark = find_benchmark(name)
    if dtype != "float32" and not benchmark.any_dtype:
        raise InputError(f"dtype is {dtype}; {name} runs in float32 alone")
    for one in only:
        if one not in benchmark.entries:
            raise InputError(f"{name} has no '{one}'; it has {', '.join(benchmark.entries)}")
    return Request(
        benchmark=name,
        shapes=tuple(_shape(benchmark, text) for text in shapes) or benchmark.shapes,
        dtype=dtype,
        threads=torch.get_num_threads() if threads is None else threads,
        repeats=repeats,
        seconds=seconds,
        allocators=tuple(allocators) or benchmark.allocators,
        only=tuple(only),
    )


def _shape(benchmark: Benchmark, text: str) -> Shape:
    if text == TINY:
        return benchmark.tiny
    example = ",".join(map(str, benchmark.shapes[0]))
    wanted = f"{benchmark.name} takes {','.join(benchmark.sizes)}, for example {example}, or {TINY}"
    try:
        shape = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"'{text}' is no shape; {wanted}") from None
    if len(shape) != len(benchmark.sizes):
        raise InputError(f"shape {text} has {len(shape)} numbers; {wanted}")
    for size, number, least in zip(benchmark.sizes, shape, benchmark.least, strict=True):
        if number < least:
            raise InputError(f"{size} in shape {text} is {number}; it must be at least {least}")
    return shape
