"""Folders of models in, tuned folders out: what the command does."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from attention_residuals.errors import InputError
from attention_residuals.retrofit.adapters import load_depth
from attention_residuals.retrofit.convert import retrofit
from attention_residuals.retrofit.folders import is_retrofitted, load_plain, load_retrofitted, write_model
from attention_residuals.retrofit.tuning.config import TuneConfig
from attention_residuals.retrofit.tuning.lora import has_lora
from attention_residuals.retrofit.tuning.text import read_tuning_text
from attention_residuals.retrofit.tuning.tune import Tuned, tune
from attention_residuals.streams import BlockSize

MODEL = "model"
"""Folder of the tuned model, inside that of a tuning."""


@dataclass(frozen=True)
class TuneRequest:
    """What the command is asked for.

    Args:
        source: folder of a model, converted or not.
        out: folder of the tuning, see `tune`; the whole model goes to `model` in it, low-rank matrices merged.
        data: as of `read_tuning_text`.
        sequence_tokens: of a window.
        block: convert first; None for a converted folder.
        adapter: begin from what `save_depth` wrote; a plain model is converted as it says.
        dtype: of the weights.
        device: where to train.
        continued: go on in `out`.
        whole: write the whole model at the end.
    """

    source: Path
    out: Path
    data: tuple[str, ...] = ()
    sequence_tokens: int = 512
    block: BlockSize | None = None
    adapter: Path | None = None
    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    continued: bool = False
    whole: bool = True


def tune_folder(request: TuneRequest, config: TuneConfig, console: Console) -> Tuned:
    """Tune the model of a folder, and write it.

    Raises:
        InputError: see `load_for_tuning`, `read_tuning_text` and `tune`.
        TrainingStoppedError: see `tune`.
    """
    if request.out.exists() and not request.continued:
        raise InputError(f"{request.out} exists; name another folder, or go on with it by --continue")
    text = read_tuning_text(request.source, request.data, sequence_tokens=request.sequence_tokens)
    model = load_for_tuning(request.source, request.block, request.adapter, request.dtype, request.device)
    tuned = tune(model, text, config, out=request.out, continued=request.continued, console=console)
    if request.whole and not (request.out / MODEL).exists():
        merged = tuned.model.merge_and_unload() if has_lora(tuned.model) else tuned.model
        write_model(merged, request.source, request.out / MODEL)
    return tuned


def load_for_tuning(
    source: Path,
    block: BlockSize | None = None,
    adapter: Path | None = None,
    dtype: Any = torch.float32,
    device: str = "cpu",
) -> Any:
    """The model of a folder with its depth attention: that of the folder, of a block, or of an adapter.

    Raises:
        InputError: a block for a folder that was converted already, or what loading and converting find wrong.
    """
    if is_retrofitted(source):
        if block is not None:
            raise InputError(f"{source} was converted already; leave out --block, or name the original")
        model = load_retrofitted(source, dtype=dtype)
    else:
        model = load_plain(source, dtype=dtype)
        if block is not None:
            retrofit(model, block, gradients=False)
    model = model.to(device)
    if adapter is not None:
        load_depth(model, adapter)
    return model
