"""`python -m attention_residuals.experiments.tuning small|large|report|page`: the studies behind docs/retrofit.md."""

import argparse
import sys
from pathlib import Path

from rich.console import Console

from attention_residuals.allocator import keep_freed_memory
from attention_residuals.errors import InputError


def main(arguments: list[str] | None = None) -> int:
    """Run one. Exit status: 0, 2 for wrong input, 130 for Ctrl-C; the same command goes on where it stopped."""
    options = _parser().parse_args(arguments)
    try:
        options.command(options)
    except InputError as error:
        print(f"attnres: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("attnres: stopped; the same command goes on", file=sys.stderr)
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m attention_residuals.experiments.tuning", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    small = commands.add_parser("small", help="a small model, trained here and tuned on another text")
    small.add_argument("--tiny", action="store_true", help="sizes that take seconds, to see that all of it works")
    small.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    small.add_argument("--base-steps", type=int, default=None, help="steps of the training of each base")
    small.set_defaults(command=_small)
    large = commands.add_parser("large", help="a pretrained model")
    large.add_argument("--model", required=True, metavar="FOLDER", help="of the original")
    large.add_argument("--sequence", type=int, default=512)
    large.set_defaults(command=_large)
    for one in (small, large):
        one.add_argument("out", type=Path, help="folder to write, or to go on in")
        one.add_argument("--data", nargs="+", default=None, metavar="PATH", help="text to tune on")
        one.add_argument("--steps", type=int, default=None)
        one.add_argument("--rates", type=int, default=None, help="how many are tried of each arm")
        one.add_argument("--evaluation-tokens", type=int, default=None, help="of each validation")
    report = commands.add_parser("report", help="draw the report of a study again")
    report.add_argument("out", type=Path)
    report.set_defaults(command=_report)
    page = commands.add_parser("page", help="write the results of studies as one Markdown page")
    page.add_argument("studies", nargs="+", type=Path)
    page.add_argument("--to", type=Path, required=True, metavar="FILE", help="for example docs/results/retrofit.md")
    page.set_defaults(command=_page)
    return parser


def _small(options: argparse.Namespace) -> None:
    from attention_residuals.experiments.tuning.study import SmallStudy, run_small

    given = _given(options, seeds=tuple(options.seeds), base_steps=options.base_steps)
    if options.tiny:
        sizes = {"layers": 2, "width": 32, "sequence_tokens": 32, "base_steps": 20, "base_batch": 4, "steps": 10}
        sizes |= {"batch": 2, "evaluation_tokens": 512}
        given = {**sizes, **given}
    keep_freed_memory()
    run_small(SmallStudy(**given), options.out, Console())
    _report(options)


def _large(options: argparse.Namespace) -> None:
    from attention_residuals.experiments.tuning.study import LargeStudy, run_large

    keep_freed_memory()
    given = _given(options, model=str(options.model), sequence_tokens=options.sequence)
    run_large(LargeStudy(**given), options.out, Console())
    _report(options)


def _given(options: argparse.Namespace, **others: object) -> dict:
    named = {
        "data": None if options.data is None else tuple(options.data),
        "steps": options.steps,
        "rates": options.rates,
        "evaluation_tokens": options.evaluation_tokens,
        **others,
    }
    return {name: value for name, value in named.items() if value is not None}


def _report(options: argparse.Namespace) -> None:
    from attention_residuals.experiments.tuning.report import write_report

    print(f"Report: {write_report(options.out)}")


def _page(options: argparse.Namespace) -> None:
    from attention_residuals.experiments.tuning.report import write_page

    print(f"Page: {write_page(options.studies, options.to)}")


if __name__ == "__main__":
    sys.exit(main())
