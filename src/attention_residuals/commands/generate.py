"""The command `attnres generate`."""

import argparse
import sys
from pathlib import Path

from attention_residuals.commands.devices import device_or_default
from attention_residuals.experiments.writing import TextRequest, write_texts
from attention_residuals.inference import CHUNK_TOKENS, Sampling


def add_options(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the options of the command."""
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


def _generate(options: argparse.Namespace) -> None:
    sampling = Sampling(options.temperature, options.top_k, options.top_p, options.seed)
    request = TextRequest(
        prompts=tuple(sys.stdin.read() if text == "-" else text for text in options.prompt),
        tokens=options.tokens,
        sampling=sampling,
        context_tokens=options.context,
        chunk_tokens=options.chunk,
        step=options.checkpoint,
        device=device_or_default(options.device),
    )
    write_texts(options.run, request, lambda text: print(text, end="", flush=True))
