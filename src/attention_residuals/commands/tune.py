"""The command `attnres tune`."""

import argparse
from pathlib import Path

import torch
from rich.console import Console

from attention_residuals.allocator import keep_freed_memory
from attention_residuals.commands.devices import device_or_default
from attention_residuals.commands.extras import require_transformers
from attention_residuals.commands.retrofit import read_block

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the options of the command."""
    add = parser.add_argument
    add("model", type=Path, metavar="FOLDER", help="written by attnres retrofit, or any model with --block")
    add("out", type=Path, metavar="OUT", help="folder to write, which must not exist but with --continue")
    add("--train", default="queries", metavar="PARTS", help="queries, keys, norms, lora, all; several as queries+lora")
    add("--block", default=None, metavar="UNIT:N", help="convert first: full, sublayers:4, layers:3 or blocks:8")
    add("--adapter", type=Path, default=None, metavar="DIR", help="begin from the depth adapter in a folder")
    add(
        "--data",
        nargs="+",
        default=["english"],
        metavar="PATH",
        help="files, folders, tables of text, english, hf:NAME",
    )
    add("--steps", type=int, default=100, help="optimiser steps")
    add("--batch", type=int, default=1, help="sequences a step")
    add("--sequence", type=int, default=512, help="tokens a sequence")
    add("--depth-lr", type=float, default=None, help="peak rate of depth queries and keys; empty: 4e-4")
    add("--norm-lr", type=float, default=None, help="peak rate of norms; empty: 1e-3, with all 2e-5")
    add("--lr", type=float, default=None, help="peak rate of everything else; empty: lora 3e-4, all 2e-5")
    add("--weight-decay", type=float, default=0.01, help="of matrices alone")
    add("--clip", type=float, default=1.0, help="norm to clip gradients to")
    add("--lora-rank", type=int, default=8, help="rank of low-rank matrices")
    add(
        "--lora-layers", nargs="+", default=[], metavar="NAME", help="for example q_proj v_proj; empty: all in branches"
    )
    add("--evaluate-every", type=int, default=20, metavar="STEPS", help="steps between validations")
    add("--evaluation-tokens", type=int, default=8192, help="of each validation")
    add("--save-every", type=int, default=20, metavar="STEPS", help="steps between adapters and states; 0: at the end")
    add("--seed", type=int, default=0, help="of batches and low-rank matrices")
    add("--recompute", action="store_true", help="activation checkpoints, to save memory")
    add("--dtype", choices=list(DTYPES), default="float32", help="of the weights; queries are float32 in any case")
    add("--device", default=None, help="cpu, cuda, ...; empty: an accelerator if there is one")
    add("--continue", dest="continued", action="store_true", help="go on in OUT, from its last state")
    add("--adapter-only", action="store_true", help="do not write the whole model to OUT/model")
    parser.set_defaults(command=_tune, stopped="stopped; the same command with --continue goes on")


def _tune(options: argparse.Namespace) -> None:
    require_transformers("tune")
    from attention_residuals.retrofit.tuning.config import DEPTH_RATE, TuneConfig
    from attention_residuals.retrofit.tuning.folders import TuneRequest, tune_folder

    config = TuneConfig(
        train=options.train,
        steps=options.steps,
        batch_sequences=options.batch,
        depth_rate=DEPTH_RATE if options.depth_lr is None else options.depth_lr,
        norm_rate=options.norm_lr,
        rate=options.lr,
        weight_decay=options.weight_decay,
        clip_norm=options.clip,
        seed=options.seed,
        evaluate_every_steps=options.evaluate_every,
        evaluation_tokens=options.evaluation_tokens,
        save_every_steps=options.save_every,
        lora_rank=options.lora_rank,
        lora_targets=tuple(options.lora_layers),
        recompute=options.recompute,
    )
    request = TuneRequest(
        source=options.model,
        out=options.out,
        data=tuple(options.data),
        sequence_tokens=options.sequence,
        block=None if options.block is None else read_block(options.block),
        adapter=options.adapter,
        dtype=DTYPES[options.dtype],
        device=device_or_default(options.device),
        continued=options.continued,
        whole=not options.adapter_only,
    )
    keep_freed_memory()
    print(tune_folder(request, config, Console()))
    print(f"Tuned: {options.out}")
