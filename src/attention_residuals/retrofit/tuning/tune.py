"""`tune`: a converted model learns to use its depth."""

import json
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from attention_residuals.configs import first_difference, to_plain
from attention_residuals.errors import InputError
from attention_residuals.retrofit.fingerprints import fingerprint, unwrapped
from attention_residuals.retrofit.settings import NAME
from attention_residuals.retrofit.tuning.config import TuneConfig
from attention_residuals.retrofit.tuning.loop import Tuning, describe, go_on, save_tuning, start_tuning, tuning_steps
from attention_residuals.retrofit.tuning.state import STATE
from attention_residuals.retrofit.tuning.text import TuningText
from attention_residuals.train.interrupt import stop_on_interrupt
from attention_residuals.train.progress import TrainingProgress, training_progress
from attention_residuals.train.runs import METRICS, RunFolder, require_absent

TUNE = "tune.json"


@dataclass(frozen=True, eq=False)
class Tuned:
    """What a tuning came to.

    Args:
        model: tuned in place; with low-rank matrices the `PeftModel` around it.
        before, after: validation loss in nats a token.
        parameters: how many were trained.
        curve: `(step, validation loss)`, the first at step 0, all on the same windows.
        seconds: of training steps.
        window_losses: of each validation window at the end, whose mean is `after`; empty if nothing was left to do.
    """

    model: Any
    before: float
    after: float
    parameters: int
    curve: tuple[tuple[int, float], ...]
    seconds: float
    window_losses: tuple[float, ...]

    def __str__(self) -> str:
        return (
            f"validation loss {self.before:.4f} before, {self.after:.4f} after ({self.after - self.before:+.4f} nats a "
            f"token), {self.parameters:,} parameters trained"
        )


def tune(
    model: Any,
    text: TuningText,
    config: TuneConfig | None = None,
    *,
    out: Path | None = None,
    continued: bool = False,
    console: Console | None = None,
    watch: Callable[[Mapping[str, Any]], None] | None = None,
) -> Tuned:
    """Train parts of a model on text, in place, with validation before, at intervals, and after.

    Args:
        model: converted by `retrofit` (or plain, if no depth is trained), in float32 where more than its depth is.
        text: of `read_tuning_text`, or `TuningText(TokenWindows(...))`.
        config: what to train, for how long, at which rates.
        out: folder to write, which must not exist: `tune.json`, `metrics.jsonl`, the state, and the adapters `depth`
            and `lora` where they tell all that was trained. None: nothing is written.
        continued: `out` exists, and its state is where to go on; at its end there is nothing more to do.
        console: for a progress bar and the groups of parameters; None: silence.
        watch: told every record of `tuning_steps`.

    Raises:
        InputError: whatever is wrong with model, text or folder, before the first step.
        TrainingStoppedError: NaN, with advice on the rate.
        KeyboardInterrupt: after Ctrl-C, when the state was written.
    """
    config = config or TuneConfig()
    inner = unwrapped(model)
    asked = {
        "config": to_plain(config),
        "text": text.about,
        "conversion": getattr(getattr(inner, "config", None), NAME, None),
        "fingerprint": fingerprint(inner),
    }
    if out is not None and continued:
        _require_same(out, asked)
    elif out is not None:
        require_absent(out)
    tuning, curve = start_tuning(model, text, config), []
    if out is not None and continued:
        tuning, curve = _reopened(tuning, out)
    elif out is not None:
        tuning = _opened(tuning, out, asked)
    quiet = console or Console(quiet=True)
    for line in describe(tuning):
        quiet.print(line, highlight=False)
    with training_progress(quiet, [config.train], config.steps) as bar, _interrupts(tuning.folder) as interrupt:
        bar.start_at(config.train, tuning.progress.step)
        for record in tuning_steps(tuning):
            _show(quiet, bar, config.train, record)
            if watch is not None:
                watch(record)
            if "validation_loss" in record:
                curve.append((record["step"], record["validation_loss"]))
            if interrupt is not None and interrupt.wanted:
                save_tuning(tuning)
                raise KeyboardInterrupt
    tuning.model.eval()
    progress = tuning.progress
    return Tuned(
        tuning.model,
        progress.before,
        curve[-1][1],
        tuning.parameters,
        ((0, progress.before), *curve),
        progress.seconds,
        progress.window_losses,
    )


def _interrupts(folder: RunFolder | None) -> Any:
    """Ctrl-C waits for a state to be written, where there is a folder for it."""
    return nullcontext(None) if folder is None else stop_on_interrupt()


def _show(console: Console, bar: TrainingProgress, name: str, record: Mapping[str, Any]) -> None:
    bar.advance({name: record})
    for warning in record.get("alarms", ()):
        console.print(f"warning: {warning}", highlight=False)


def _opened(tuning: Tuning, out: Path, asked: Mapping[str, Any]) -> Tuning:
    folder = RunFolder.create(out)
    folder.write_json(TUNE, asked)
    return replace(tuning, folder=folder)


def _reopened(tuning: Tuning, out: Path) -> tuple[Tuning, list[tuple[int, float]]]:
    """A tuning as its state left it, and its validations up to there."""
    go_on(tuning, out)
    tuning = replace(tuning, folder=RunFolder.reopen(out, tuning.progress.step))
    metrics = out / METRICS
    records = [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else []
    return tuning, [(each["step"], each["validation_loss"]) for each in records if "validation_loss" in each]


def _require_same(out: Path, asked: Mapping[str, Any]) -> None:
    if not (out / STATE).exists():
        raise InputError(f"{out} has no {STATE} to go on from; start anew in another folder")
    try:
        found = first_difference(json.loads((out / TUNE).read_bytes()), json.loads(json.dumps(asked)))
    except (OSError, ValueError) as error:
        raise InputError(f"{out / TUNE} cannot be read ({error}); start anew in another folder") from error
    if found is not None:
        path, then, now = found
        raise InputError(f"{out} was begun with {path} {then!r}, and now it is {now!r}; give what it was begun with")
