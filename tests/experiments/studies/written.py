"""Study folders written by hand, so that reports are tested on numbers that are known."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attention_residuals import DecoderConfig
from attention_residuals.configs import to_plain
from attention_residuals.models import BackboneConfig

ENTROPY = 3.2


@dataclass(frozen=True)
class Written:
    """A run as it shall lie on the disk: finished with a loss, stopped, begun with some steps, or waiting.

    `peaks`: of the experts' loads, step by step; `expert_shares`: those of its probe; `curve`: validations by step.
    """

    name: str
    loss: float | None = None
    stopped: str | None = None
    steps: int = 0
    labels: dict[str, Any] = field(default_factory=dict)
    model: BackboneConfig = field(default_factory=lambda: DecoderConfig.from_depth(1))
    tokens: int = 1000
    parameters: int = 500
    seconds: Sequence[float] = (0.1,) * 8
    fingerprint: str = "text"
    split: str = "1 of 9 documents held out"
    sequence_tokens: int = 16
    peaks: Sequence[float] = ()
    expert_shares: Mapping[str, Sequence[float]] = field(default_factory=dict)
    curve: Mapping[int, float] = field(default_factory=dict)


def write_study(
    folder: Path, kind: str, settings: dict[str, Any], runs: Sequence[Written], seen_share: float = 0.01
) -> None:
    """All files that a report reads."""
    for name in ("plan", "runs"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "study.json").write_text(json.dumps({"kind": kind, "study": settings}))
    about = {**_about(runs[0]), "source": "a text", "training_bytes": 2000, "validation_bytes": 100}
    about |= {"training_tokens": 2000, "validation_tokens": 100}
    (folder / "text.json").write_text(json.dumps({"about": about, "seen_share": seen_share}))
    for number, run in enumerate(runs):
        _write_run(folder, number, run)


def _about(run: Written) -> dict[str, Any]:
    tokenizer = {"name": "bytes", "fingerprint": "bytes"}
    return {
        "fingerprint": run.fingerprint,
        "tokenizer": tokenizer,
        "split": run.split,
        "unigram_entropy": ENTROPY,
    }


def _write_run(folder: Path, number: int, run: Written) -> None:
    text = {"sequence_tokens": run.sequence_tokens}
    config = {"model": to_plain(run.model), "text": text, "steps": len(run.seconds)}
    planned = {"name": run.name, "labels": run.labels, "config": config, "analyses": []}
    plan = {"number": number, "run": planned, "cost": 1.0, "tokens": run.tokens}
    (folder / "plan" / f"{run.name}.json").write_text(json.dumps(plan))
    if run.loss is None and run.stopped is None and not run.steps:
        return
    path = folder / "runs" / run.name
    path.mkdir()
    facts = {"config": config, "parameters": run.parameters, "data": _about(run), "stream": f"stream of {run.name}"}
    (path / "config.json").write_text(json.dumps(facts))
    lines: list[dict[str, Any]] = []
    for step in range(1, 1 + (run.steps or len(run.seconds))):
        lines.append({"step": step, "tokens": 16 * step, "seconds": sum(run.seconds[:step]), "loss": 3.0})
        if run.peaks:
            lines[-1]["expert_peak"] = run.peaks[step - 1]
        if step in run.curve:
            lines[-1]["validation_loss"] = run.curve[step]
    if run.loss is not None:
        lines.append({"final": True, "validation_loss": run.loss})
        (path / "validation.json").write_text(json.dumps({"window_losses": [run.loss - 0.1, run.loss + 0.1]}))
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if run.expert_shares:
        (path / "probe.json").write_text(json.dumps({"expert_shares": run.expert_shares}))
    if run.stopped is not None:
        (path / "stopped.json").write_text(json.dumps({"reason": run.stopped}))
