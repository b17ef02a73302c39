"""An inspection from a folder of a model to a report."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress

from attention_residuals.experiments.inspection.measure import InspectConfig, inspect, passes
from attention_residuals.experiments.inspection.report import ANSWER, write_report
from attention_residuals.retrofit import read_tuning_text
from attention_residuals.retrofit.tuning.folders import load_for_tuning
from attention_residuals.train import RunFolder, require_absent


@dataclass(frozen=True)
class InspectRequest:
    """What the command is asked for.

    Args:
        source: folder of a model that was converted, or of the original with `adapter`.
        out: folder to write, which must not exist.
        data: as of `read_tuning_text`; its validation side is used.
        sequence_tokens: of a window.
        adapter: what `save_depth` wrote.
        config: how much to look at.
        device: where to run.
    """

    source: Path
    out: Path
    data: tuple[str, ...] = ()
    sequence_tokens: int = 256
    adapter: Path | None = None
    config: InspectConfig = field(default_factory=InspectConfig)
    device: str = "cpu"


def inspect_folder(request: InspectRequest, console: Console) -> Path:
    """Write `inspection.json` and a report; the path of its page.

    Raises:
        InputError: `out` exists, or what loading, text and `inspect` find wrong.
    """
    require_absent(request.out)
    text = read_tuning_text(request.source, request.data, sequence_tokens=request.sequence_tokens)
    model: Any = load_for_tuning(
        request.source, adapter=request.adapter, dtype=torch.float32, device=request.device
    ).eval()
    with Progress(console=console) as bar:
        task = bar.add_task("looking", total=passes(model, request.config))
        found = inspect(model, text, request.config, lambda: bar.advance(task))
    RunFolder.create(request.out).write_json(ANSWER, found)
    return write_report(request.out)
