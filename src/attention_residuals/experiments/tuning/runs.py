"""Runs of a tuning study, one JSON file each; what is there already is not done again."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from attention_residuals.experiments.printing import say
from attention_residuals.experiments.tuning.arms import STEP, Arm, Rates, ladder
from attention_residuals.retrofit import TuneConfig, TuningText, retrofit, tune
from attention_residuals.retrofit.tuning.losses import validation_losses
from attention_residuals.streams import BlockSize
from attention_residuals.train import RunFolder, TrainingStoppedError

RUNS = "runs"
MOST_WIDER = 3
"""How often the rates of an arm are widened when the best is the first or the last of them."""


@dataclass(frozen=True, eq=False)
class Workshop:
    """What all runs of a study share.

    Args:
        folder: of the study.
        load: the model of a seed, unconverted, anew each time.
        text: to tune on.
        other: text of the model's own training, to see what is forgotten; None for none.
        block: of the conversion.
        config: of every run but for parts, rates and seed.
        console: for a line a run.
    """

    folder: Path
    load: Callable[[int], Any]
    text: TuningText
    other: TuningText | None
    block: BlockSize
    config: dict[str, Any]
    console: Console
    best: dict[str, float] = field(default_factory=dict)


def run_arms(shop: Workshop, arms: Sequence[Arm], seeds: Sequence[int], rates: int) -> None:
    """Every arm: rates on the first seed, the best of them on all others; `rates` of 1 tries the start alone."""
    for arm in arms:
        shop.best[arm.name] = search(shop, arm, seeds[0], ladder(arm.start, rates))
        for seed in seeds[1:]:
            run_once(shop, arm, seed, shop.best[arm.name])


def search(shop: Workshop, arm: Arm, seed: int, tried: list[float]) -> float:
    """The best of some rates by the loss at the end, and of more beside them while the best is at an end."""
    losses = {x: run_once(shop, arm, seed, x) for x in tried}
    for _ in range(MOST_WIDER if len(tried) > 1 else 0):
        best, ordered = min(losses, key=lambda x: losses[x]), sorted(losses)
        if best not in (ordered[0], ordered[-1]):
            break
        wider = float(f"{best / STEP if best == ordered[0] else best * STEP:.2g}")
        losses[wider] = run_once(shop, arm, seed, wider)
    return min(losses, key=lambda x: losses[x])


def run_once(shop: Workshop, arm: Arm, seed: int, x: float) -> float:
    """One tuning, or what its file says of it; the loss at the end, infinite for one that broke."""
    place = shop.folder / RUNS / f"{arm.name.replace(', ', '-').replace(' ', '-')}-{x:g}-seed{seed}.json"
    if not place.exists():
        found = _tune(shop, arm, seed, arm.rates(x, shop.best))
        place.parent.mkdir(parents=True, exist_ok=True)
        RunFolder(place.parent).write_json(place.name, {"arm": arm.name, "seed": seed, "x": x, **found})
        told = "broke" if found["after"] is None else f"{found['before']:.4f} -> {found['after']:.4f}"
        say(shop.console, f"{arm.name}, seed {seed}, {_told(found['rates'])}: {told} ({found['seconds']:.0f} s)")
    after = json.loads(place.read_bytes())["after"]
    return math.inf if after is None else after


def _tune(shop: Workshop, arm: Arm, seed: int, rates: Rates) -> dict[str, Any]:
    model = shop.load(seed)
    if arm.depth:
        retrofit(model, shop.block, gradients=False)
    config = TuneConfig(**{**shop.config, "train": arm.train, "seed": seed, **rates})
    try:
        tuned = tune(model, shop.text, config)
    except TrainingStoppedError as error:
        return {"rates": rates, "fault": str(error), "before": None, "after": None, "seconds": 0.0}
    return {
        "rates": rates,
        "before": tuned.before,
        "after": tuned.after,
        "parameters": tuned.parameters,
        "curve": tuned.curve,
        "seconds": tuned.seconds,
        "window_losses": tuned.window_losses,
        "other": None if shop.other is None else mean_loss(tuned.model, shop.other, config.evaluation_tokens),
    }


def mean_loss(model: Any, text: TuningText, tokens: int) -> float:
    """Validation loss in nats a token."""
    return validation_losses(model, text.windows.validation_windows(tokens), text.prefix).mean().item()


def _told(rates: Rates) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in rates.items())
