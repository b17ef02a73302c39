"""The command `attnres bench`."""

import argparse
import time
from pathlib import Path

from rich.console import Console

from attention_residuals.bench.catalogue import BENCHMARKS, TINY, make_request
from attention_residuals.bench.request import ALLOCATORS, DTYPES, Request
from attention_residuals.bench.run import bench
from attention_residuals.errors import InputError


def add_options(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the options of the command."""
    parser.formatter_class = argparse.ArgumentDefaultsHelpFormatter
    add = parser.add_argument
    add("benchmark", nargs="?", help="name of a benchmark; see --list")
    add("--list", action="store_true", help="list the benchmarks, the numbers of their shapes, their implementations")
    add(
        "--shape",
        action="append",
        default=[],
        metavar="N,N,...",
        help=f"sizes to measure, may be given again; {TINY}: in seconds; empty: the benchmark's own",
    )
    add("--only", nargs="+", default=[], metavar="NAME", help="implementations to run; empty: all")
    add("--dtype", default=Request.dtype, choices=list(DTYPES), help="type of the sources, for reads by themselves")
    add("--threads", type=int, default=None, help="threads of torch; empty: as torch chooses")
    add("--repeats", type=int, default=Request.repeats, help="rounds of timing at most")
    add("--seconds", type=float, default=Request.seconds, help="begin no round after so long, for each table")
    add(
        "--allocator",
        choices=ALLOCATORS,
        default=None,
        help="shipped, or freed memory kept; empty: one, then the other",
    )
    add("--out", type=Path, default=None, help="folder to write, which must not exist; empty: one named by the time")
    parser.set_defaults(command=_bench)


def _bench(options: argparse.Namespace) -> None:
    if options.list:
        for benchmark in BENCHMARKS.values():
            print(f"{benchmark.name:8} {benchmark.summary}")
            print(f"{'':8} --shape {','.join(benchmark.sizes)}; --only {' '.join(benchmark.entries)}")
    elif options.benchmark is None:
        raise InputError(f"name a benchmark; there are {', '.join(BENCHMARKS)}")
    else:
        request = make_request(
            options.benchmark,
            shapes=options.shape,
            dtype=options.dtype,
            threads=options.threads,
            repeats=options.repeats,
            seconds=options.seconds,
            allocators=() if options.allocator is None else (options.allocator,),
            only=options.only,
        )
        out = options.out or Path("runs") / time.strftime(f"bench-{request.benchmark}-%Y%m%d-%H%M%S")
        bench(request, out, Console())
        print(f"Results: {out}")
