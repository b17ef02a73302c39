"""The command line: thin, every command a function of the library."""

import argparse
import importlib.util
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console

from attention_residuals.allocator import keep_freed_memory
from attention_residuals.bench.catalogue import BENCHMARKS, TINY, make_request
from attention_residuals.bench.request import ALLOCATORS, DTYPES, Request
from attention_residuals.bench.run import bench
from attention_residuals.commands.convert import add_convert
from attention_residuals.commands.count import add_count
from attention_residuals.commands.depth import add_depth
from attention_residuals.commands.evaluate import add_evaluate
from attention_residuals.commands.inspect import add_inspect
from attention_residuals.commands.mixtures import add_mixtures
from attention_residuals.commands.reproduce import add_reproduce
from attention_residuals.commands.retrofit import add_retrofit
from attention_residuals.commands.studies import add_studies
from attention_residuals.commands.tune import add_tune
from attention_residuals.configs import override
from attention_residuals.distributed.layout import leads, leads_its_machine, restarted
from attention_residuals.errors import InputError, OtherProcessError
from attention_residuals.experiments.arms import allowed
from attention_residuals.experiments.compare import CompareConfig, compare
from attention_residuals.experiments.single import resume, train, train_or_go_on
from attention_residuals.experiments.studies.reports import write_report
from attention_residuals.experiments.writing import TextRequest, write_texts
from attention_residuals.inference import CHUNK_TOKENS, Sampling
from attention_residuals.recipes import RECIPES, find_recipe
from attention_residuals.train import AdamW, TrainingStoppedError, require_device
from attention_residuals.train.durable import REFUSALS


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Exit status: 0, 1 if training had to stop, 2 for wrong input, 130 for Ctrl-C."""
    options = _parse(arguments)
    try:
        options.command(options)
    except InputError as error:
        return _fail(error, 2)
    except OSError as error:
        if error.errno not in REFUSALS:
            raise
        return _fail(f"{error.filename or 'the output'} cannot be used ({error.strerror}); make room or mend this", 2)
    except TrainingStoppedError as error:
        return _fail(error, 1)
    except KeyboardInterrupt:
        return _fail(options.stopped, 130)
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options; `path=value` may stand behind options too, where argparse no longer expects it."""
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    if rest and ("assignments" not in options or any(word.startswith("-") for word in rest)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        options.assignments = [*options.assignments, *rest]
    return options


def _fail(message: object, status: int) -> int:
    # What is wrong for one process of a run is wrong for all on its machine: one of them says it.
    if leads_its_machine() and not isinstance(message, OtherProcessError):
        print(f"attnres: {message}", file=sys.stderr)
    return status


def _compare(options: argparse.Namespace) -> None:
    optimizer = AdamW(learning_rate=options.lr, depth_learning_rate=options.depth_lr)
    config = CompareConfig(
        out=options.out or Path("runs") / time.strftime("compare-%Y%m%d-%H%M%S"),
        models=tuple(options.models),
        layers=options.depth,
        seeds=tuple(options.seeds),
        tokens=options.tokens,
        batch_sequences=options.batch,
        sequence_tokens=options.sequence,
        data=tuple(options.data),
        validation_share=options.validation_share,
        optimizer=optimizer,
        device=_device(options.device),
    )
    console = Console()
    keep_freed_memory()
    report = compare(config, console)
    print(f"Report: {report}")


def _train(options: argparse.Namespace) -> None:
    console = Console(quiet=not leads())
    keep_freed_memory()
    if options.list:
        for name, recipe in RECIPES.items():
            print(f"{name:22} {(recipe.__doc__ or '').strip()}")
    elif options.resume is not None:
        resume(options.resume, console, _layout(options))
    elif options.recipe is None:
        raise InputError(f"name a recipe, or --resume RUN; there are {', '.join(RECIPES)}")
    else:
        config = override(find_recipe(options.recipe), options.assignments)
        if options.out is None and (options.go_on or config.parallel.processes > 1):
            raise InputError("a run over several processes, or one to go on with, needs a folder; name it with --out")
        default = Path("runs") / time.strftime(f"{config.name}-%Y%m%d-%H%M%S")
        run = train_or_go_on if options.go_on or restarted() else train
        run(config, options.out or default, console)


def _layout(options: argparse.Namespace) -> tuple[str, ...]:
    """What `--resume` may be given: how the run is spread over processes."""
    given = tuple(word for word in (options.recipe, *options.assignments) if word is not None)
    if options.out or options.go_on or not all(word.startswith("parallel.") for word in given):
        raise InputError(
            "--resume goes on with a run as it was; it takes no recipe, no --out and no path=value but parallel.*"
        )
    return given


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


def _export(options: argparse.Namespace) -> None:
    if importlib.util.find_spec("transformers") is None:
        raise InputError("export needs transformers: pip install 'attention-residuals[hf]'")
    from attention_residuals.hf.export import export

    step = export(options.run, options.out, step=options.checkpoint)
    print(f"Exported the weights after step {step:,}: {options.out}")


def _generate(options: argparse.Namespace) -> None:
    sampling = Sampling(options.temperature, options.top_k, options.top_p, options.seed)
    request = TextRequest(
        prompts=tuple(sys.stdin.read() if text == "-" else text for text in options.prompt),
        tokens=options.tokens,
        sampling=sampling,
        context_tokens=options.context,
        chunk_tokens=options.chunk,
        step=options.checkpoint,
        device=_device(options.device),
    )
    write_texts(options.run, request, lambda text: print(text, end="", flush=True))


def _report(options: argparse.Namespace) -> None:
    print(f"Report: {write_report(options.folder)}")


def _device(name: str | None) -> str:
    """The device asked for, or the accelerator if there is one.

    Raises:
        InputError: a device that is not there.
    """
    if name is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    require_device(name)
    return name


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="attnres", description="Attention Residuals: softmax attention over depth.")
    parser.set_defaults(stopped="stopped; what was trained so far is in the run folders")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_compare(commands)
    _add_train(commands)
    add_count(commands)
    add_depth(commands)
    _add_bench(commands)
    _add_generate(commands)
    _add_export(commands)
    add_convert(commands)
    add_reproduce(commands)
    add_evaluate(commands)
    add_retrofit(commands)
    add_tune(commands)
    add_inspect(commands)
    add_studies(commands)
    add_mixtures(commands)
    report = commands.add_parser("report", help="draw a report again, or that of a study that is not over")
    report.add_argument("folder", type=Path, help="the folder of a comparison or a study")
    report.set_defaults(command=_report)
    return parser


def _add_compare(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    defaults, optimizer = CompareConfig(out=Path()), AdamW()
    parser = commands.add_parser(
        "compare",
        help="train residual streams side by side on real text and write a report",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add(
        "--models",
        "--arms",
        nargs="+",
        default=list(defaults.models),
        metavar="NAME",
        help=f"{allowed()}; first: the reference",
    )
    add("--depth", type=int, default=defaults.layers, metavar="LAYERS", help="layers; every other size follows from it")
    add(
        "--seeds",
        type=int,
        nargs="+",
        default=list(defaults.seeds),
        metavar="SEED",
        help="a run of each model a seed",
    )
    add("--tokens", type=int, default=defaults.tokens, help="training tokens (bytes) a run")
    add("--batch", type=int, default=defaults.batch_sequences, help="sequences a step")
    add("--sequence", type=int, default=defaults.sequence_tokens, help="tokens a sequence")
    add(
        "--data",
        nargs="+",
        default=[],
        metavar="PATH",
        help="files, folders, tables of text, english, hf:NAME; empty: Python's own",
    )
    add("--validation-share", type=float, default=defaults.validation_share, help="share of the text held out")
    add("--lr", type=float, default=optimizer.learning_rate, help="peak learning rate")
    add("--depth-lr", type=float, default=optimizer.depth_learning_rate, help="peak rate of depth queries and norms")
    add("--device", default=None, help="cpu, cuda, ...; empty: an accelerator if there is one")
    add("--out", type=Path, default=None, help="folder to write, which must not exist; empty: one named by the time")
    parser.set_defaults(command=_compare)


def _add_train(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("train", help="train one model from a recipe, or go on with an earlier run")
    add = parser.add_argument
    add("recipe", nargs="?", help="name of a recipe; see --list")
    add("assignments", nargs="*", metavar="path=value", help="changes to it, for example steps=2000 optimizer=Muon")
    add("--list", action="store_true", help="list the recipes")
    add("--resume", type=Path, metavar="RUN", help="go on with the run in this folder, from its last checkpoint")
    add(
        "--continue",
        dest="go_on",
        action="store_true",
        help="go on with the run in --out if it is there: for schedulers that start the same command again",
    )
    add("--out", type=Path, default=None, help="folder to write, which must not exist; empty: one named by the time")
    parser.set_defaults(command=_train)


def _add_generate(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("generate", help="go on with a text, by the model of a run or of an exported folder")
    add = parser.add_argument
    add("run", type=Path, help="the folder of a run that has checkpoints, or one that attnres export wrote")
    add(
        "--prompt",
        action="append",
        required=True,
        metavar="TEXT",
        help="the text to go on from, - for standard input; may be given again",
    )
    add("--tokens", type=int, default=None, help="new tokens at most; empty: 200, or what the context has room for")
    add("--temperature", type=float, default=0.8, help="0: always the likeliest token; default 0.8")
    add("--top-k", type=int, default=None, metavar="K", help="draw from the K likeliest tokens alone")
    add("--top-p", type=float, default=1.0, metavar="P", help="draw from the fewest tokens that have P together")
    add("--seed", type=int, default=0, help="the same seed draws the same text")
    add("--context", type=int, default=None, metavar="TOKENS", help="prompt and new tokens at most; empty: as trained")
    add("--chunk", type=int, default=CHUNK_TOKENS, metavar="TOKENS", help="tokens of a prompt taken in at once")
    add("--checkpoint", type=int, default=None, metavar="STEP", help="empty: the latest that is whole")
    add("--device", default=None, help="cpu, cuda, ...; empty: an accelerator if there is one")
    parser.set_defaults(command=_generate, stopped="stopped")


def _add_export(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("export", help="write a run's model as a folder that transformers loads")
    parser.add_argument("run", type=Path, help="the folder of a run that has checkpoints")
    parser.add_argument("out", type=Path, help="folder to write, which must not exist")
    parser.add_argument(
        "--checkpoint", type=int, default=None, metavar="STEP", help="the step to take; empty: the latest that is whole"
    )
    parser.set_defaults(command=_export)


def _add_bench(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "bench",
        help="measure speed and memory, after checking results against the float64 oracle",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
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


if __name__ == "__main__":
    sys.exit(main())
