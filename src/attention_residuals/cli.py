"""The command line: which commands there are. What one takes and does stands in the file of its name in `commands/`."""

import argparse
import importlib
import sys
from collections.abc import Sequence

from attention_residuals.distributed.layout import leads_its_machine
from attention_residuals.errors import REFUSALS, InputError, OtherProcessError, TrainingStoppedError

COMMANDS = {
    "compare": "train residual streams side by side on real text and write a report",
    "train": "train one model from a recipe, or go on with an earlier run",
    "generate": "go on with a text, by the model of a run or of an exported folder",
    "evaluate": "ask trained models the questions of lm-eval, or of held-out text",
    "export": "write a run's model as a folder that transformers loads",
    "convert": "write a model under the names of another system, or under ours",
    "retrofit": "give a pretrained model depth attention, with the same logits",
    "tune": "train a model with depth attention, or parts of it, on text",
    "inspect": "where a converted model reads over its depth, and what sources are worth",
    "count": "show where the parameters of a recipe's model sit, without building it",
    "bench": "measure speed and memory, after checking results against the float64 oracle",
    "reproduce": "every claim of the paper: control, ladder, dynamics, depth, ablate, sweep, one after the other",
    "ladder": "a scaling law: loss against compute at several sizes, tuned and paired",
    "ablate": "variants, block sizes and rivals at one size, beside the paper's table",
    "sweep": "depth against width and heads at fixed compute",
    "dynamics": "train models and report loss, sizes and gradients along the depth (Figure 5)",
    "depth": "where models read over their depth, and what each source is worth (Figures 8 and 9)",
    "control": "check that zero queries with the exact scale train as the standard residual, in float64",
    "moe": "does depth attention help a mixture of experts more than a dense model of the same active size?",
    "report": "draw a report again, or that of a study that is not over",
}
"""What each is for. Its file is imported when it is asked for, since most of the library stands behind some of them."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Exit status: 0, 1 if training had to stop, 2 for wrong input, 130 for Ctrl-C."""
    options = _parse(sys.argv[1:] if arguments is None else arguments)
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


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The options; `path=value` may stand behind options too, where argparse no longer expects it."""
    parser = _parser(wanted=arguments[:1])
    options, rest = parser.parse_known_args(arguments)
    if rest and ("assignments" not in options or any(word.startswith("-") for word in rest)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        options.assignments = [*options.assignments, *rest]
    return options


def _parser(wanted: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="attnres", description="Attention Residuals: softmax attention over depth.")
    parser.set_defaults(stopped="stopped; what was trained so far is in the run folders")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary)
        if name in wanted:
            importlib.import_module(f"attention_residuals.commands.{name}").add_options(command)
    return parser


def _fail(message: object, status: int) -> int:
    # What is wrong for one process of a run is wrong for all on its machine: one of them says it.
    if leads_its_machine() and not isinstance(message, OtherProcessError):
        print(f"attnres: {message}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
