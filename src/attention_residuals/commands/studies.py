"""The commands that train many runs to answer one question; each goes on where it was stopped when given again."""

import argparse
import json
from pathlib import Path

from rich.console import Console

from attention_residuals.commands.extras import require_report_extras
from attention_residuals.errors import InputError
from attention_residuals.experiments.leakage import seen_share
from attention_residuals.experiments.loading import load_data
from attention_residuals.experiments.printing import say
from attention_residuals.experiments.studies.common import Common
from attention_residuals.experiments.studies.engine import Workers, open_study, run_study
from attention_residuals.experiments.studies.plan import Study
from attention_residuals.experiments.studies.reports import write_report
from attention_residuals.experiments.studies.state import TEXT
from attention_residuals.train import RunFolder, TextConfig, TokenData, require_device


def run_command(study: Study, common: Common, options: argparse.Namespace) -> None:
    """As `run_reported`, in the folder `options.out`, with the options `processes` and `threads`."""
    run_reported(study, common, options.out, options)


def run_reported(study: Study, common: Common, out: Path, options: argparse.Namespace) -> None:
    """Say what will happen, train what is missing in the folder `out`, and write the report.

    Raises:
        InputError: anything wrong with what was asked, before any training.
        KeyboardInterrupt: it was stopped; the same command goes on.
    """
    require_report_extras()
    require_device(common.device)
    workers, console = _workers(options), Console()
    data = load_data(common.text, console)
    for sentence in study.describe():
        say(console, sentence)
    open_study(study, out)
    _tell_of_text(out, data, console)
    threads = "a thread" if workers.threads == 1 else f"{workers.threads} threads"
    say(console, f"Runs at a time: {workers.processes}, with {threads} each; writing to {out}.")
    if not run_study(study, out, workers, console):
        raise KeyboardInterrupt
    print(f"Report: {write_report(out)}")


def _tell_of_text(folder: Path, data: TokenData, console: Console) -> None:
    """Write down what there is to say about the text, or make sure that it is the text of the runs before.

    Raises:
        InputError: it has changed.
    """
    file = folder / TEXT
    if file.exists():
        then, now = json.loads(file.read_text())["about"]["fingerprint"], data.fingerprint
        if then != now:
            raise InputError(
                f"{folder} was started on another text (fingerprint {then}, now {now}); "
                "bring that text back, or choose another folder with --out"
            )
        return
    with console.status("looking for validation text in the training text"):
        seen = seen_share(data)
    RunFolder(folder).write_json(TEXT, {"about": data.about, "seen_share": seen})


def add_study_options(parser: argparse.ArgumentParser, name: str) -> None:
    """The options that ladder, ablation and sweep share; `name` is that of the command and of its folder."""
    parser.formatter_class = argparse.ArgumentDefaultsHelpFormatter
    defaults = Common()
    add = parser.add_argument
    add("--seeds", type=int, nargs="+", default=[1, 2, 3], metavar="SEED", help="a run of everything compared for each")
    add("--tokens-per-parameter", type=float, default=defaults.tokens_per_parameter, metavar="N", help="of training")
    add("--data", nargs="+", default=[], metavar="PATH", help="text as in compare; empty: Python's own")
    add("--batch", type=int, default=defaults.batch_sequences, help="sequences a step")
    add("--sequence", type=int, default=defaults.text.sequence_tokens, help="tokens a sequence")
    add("--depth-lr", type=float, default=defaults.depth_learning_rate, help="peak rate of depth queries and norms")
    add("--tuning-seed", type=int, default=defaults.tuning_seed, help="seed of the runs that find the learning rate")
    add("--device", default=defaults.device, help="where to train")
    add("--processes", type=int, default=None, help="runs at a time; empty: one a core")
    add("--threads", type=int, default=1, help="threads of each")
    add("--out", type=Path, default=Path("runs") / name, help="folder; the same command goes on with what is there")
    parser.set_defaults(stopped="stopped; the same command goes on from here")


def common_of(options: argparse.Namespace) -> Common:
    """What all runs of a study share, as asked."""
    return Common(
        text=TextConfig(tuple(options.data), sequence_tokens=options.sequence),
        batch_sequences=options.batch,
        tokens_per_parameter=options.tokens_per_parameter,
        depth_learning_rate=options.depth_lr,
        tuning_seed=options.tuning_seed,
        device=options.device,
    )


def _workers(options: argparse.Namespace) -> Workers:
    if options.processes is None:
        return Workers(threads=options.threads)
    return Workers(options.processes, options.threads)
