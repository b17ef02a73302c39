"""The command `attnres inspect`."""

import argparse
import time
from pathlib import Path

from rich.console import Console

from attention_residuals.commands.devices import device_or_default
from attention_residuals.commands.extras import require_report_extras, require_transformers


def add_options(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the options of the command."""
    add = parser.add_argument
    add("model", type=Path, metavar="FOLDER", help="written by attnres retrofit or tune, or any model with --adapter")
    add("--adapter", type=Path, default=None, metavar="DIR", help="the depth adapter of a tuning")
    add("--data", nargs="+", default=["english"], metavar="PATH", help="as of tune; its validation side is looked at")
    add("--sequence", type=int, default=256, help="tokens a sequence")
    add("--tokens", type=int, default=4096, help="tokens that weights are means of")
    add("--mask-tokens", type=int, default=512, help="tokens of each masked loss; 0: mask nothing")
    add(
        "--mask-reads", type=int, default=None, metavar="N", help="mask in N reads spread over the depth; empty: in all"
    )
    add("--device", default=None, help="cpu, cuda, ...; empty: an accelerator if there is one")
    add("--out", type=Path, default=None, help="folder to write, which must not exist; empty: one named by the time")
    parser.set_defaults(command=_inspect, stopped="stopped; nothing was written")


def _inspect(options: argparse.Namespace) -> None:
    require_report_extras()
    require_transformers("inspect")
    from attention_residuals.experiments.inspection.measure import InspectConfig
    from attention_residuals.experiments.inspection.run import InspectRequest, inspect_folder

    request = InspectRequest(
        source=options.model,
        out=options.out or Path("runs") / time.strftime("inspect-%Y%m%d-%H%M%S"),
        data=tuple(options.data),
        sequence_tokens=options.sequence,
        adapter=options.adapter,
        config=InspectConfig(options.tokens, options.mask_tokens, options.mask_reads),
        device=device_or_default(options.device),
    )
    print(f"Report: {inspect_folder(request, Console())}")
