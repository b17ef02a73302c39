"""The command `attnres evaluate`."""

import argparse
import sys
import time
from pathlib import Path

from rich.console import Console

from attention_residuals.commands.devices import device_or_default
from attention_residuals.experiments.evaluation.evaluate import BATCH_SEQUENCES, EvaluationRequest, evaluate
from attention_residuals.experiments.evaluation.harness import LOCAL_TASKS


def add_options(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the options of the command."""
    add = parser.add_argument
    add("runs", type=Path, nargs="+", metavar="RUN", help="a run with checkpoints, an exported model, or a study")
    add(
        "--tasks",
        nargs="+",
        default=[],
        metavar="NAME",
        help=f"names of lm-eval, YAML files, or {', '.join(LOCAL_TASKS)}; empty: these, from held-out text",
    )
    add("--limit", type=int, default=None, metavar="N", help="questions of each task at most")
    add("--checkpoint", type=int, default=None, metavar="STEP", help="empty: the latest that is whole")
    add("--text-of", type=Path, default=None, metavar="RUN", help="whose held-out text exported models are asked about")
    add("--batch", type=int, default=BATCH_SEQUENCES, metavar="N", help="sequences at once; scores do not depend on it")
    add("--device", default=None, help="cpu, cuda, ...; empty: an accelerator if there is one")
    add("--out", type=Path, default=None, help="folder of the report, which must not exist; empty: one by the time")
    parser.set_defaults(command=_evaluate, stopped="stopped; scores of the models that were done are in their folders")


def _evaluate(options: argparse.Namespace) -> None:
    request = EvaluationRequest(
        paths=tuple(options.runs),
        tasks=tuple(options.tasks),
        limit=options.limit,
        step=options.checkpoint,
        text_of=options.text_of,
        device=device_or_default(options.device),
        batch_sequences=options.batch,
    )
    out = options.out or Path("runs") / time.strftime("evaluate-%Y%m%d-%H%M%S")
    console = Console(file=sys.stdout)  # lm-eval is muted, and this stream is not
    print(f"Report: {evaluate(request, out, console)}")
