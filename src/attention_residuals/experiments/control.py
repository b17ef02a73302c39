"""The control: with queries frozen at zero and the exact scale, depth attention must train as the standard residual.

A zero query reads its sources with equal weights, and times their number (`ReadScale.SUM`) that is their sum: the
standard residual itself. In float64 nothing but the order of summation differs, so the losses must agree to rounding
through all of a training. The whole chain is tested: reads, backward, optimiser groups, clipping.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from attention_residuals.errors import InputError, require_positive
from attention_residuals.experiments.loading import load_data
from attention_residuals.experiments.printing import say
from attention_residuals.models import BYTE_VOCABULARY, DecoderConfig, Role, build_decoder, parameter_roles
from attention_residuals.streams import Additive, AttnRes, ReadScale, Residual, Sublayers
from attention_residuals.train import (
    Alarms,
    LocalEngine,
    Optimizer,
    RunFolder,
    TextConfig,
    TokenData,
    TrainConfig,
    Training,
    build_optimizers,
    training_steps,
)
from attention_residuals.train.optimizers import AdamW

LIMIT = 1e-9
"""Nats a token that losses may be apart."""

REFERENCE = "standard"


@dataclass(frozen=True)
class ControlConfig:
    """A small training in float64; blocks of `block` sublayers, and Full."""

    layers: int = 4
    block: int = 3
    steps: int = 200
    batch_sequences: int = 2
    sequence_tokens: int = 64
    seed: int = 0
    data: tuple[str, ...] = ()
    optimizer: Optimizer = field(default_factory=AdamW)

    def __post_init__(self) -> None:
        require_positive(self, "layers", "block", "steps", "batch_sequences", "sequence_tokens")

    @property
    def arms(self) -> dict[str, Residual]:
        """What is trained: the standard residual, then Full and Block in both orders of evaluation."""
        found: dict[str, Residual] = {REFERENCE: Additive()}
        for name, block in (("full", 1), (f"block{self.block}", self.block)):
            for order, two_phase in (("in two phases", True), ("read by read", False)):
                residual = AttnRes(Sublayers(block), scale=ReadScale.SUM, two_phase=two_phase)
                found[f"{name}, {order}"] = residual
        return found

    def run(self, name: str) -> TrainConfig:
        """The config of one arm."""
        model = DecoderConfig.from_depth(self.layers, vocab_size=BYTE_VOCABULARY, residual=self.arms[name])
        return TrainConfig(
            name=name,
            model=model,
            text=TextConfig(self.data, sequence_tokens=self.sequence_tokens),
            steps=self.steps,
            seed=self.seed,
            batch_sequences=self.batch_sequences,
            optimizer=self.optimizer,
            evaluate_every_steps=self.steps,
        )


def control(config: ControlConfig, out: Path, console: Console) -> dict[str, Any]:
    """Train every arm, compare losses step by step, write `control.json` into the new folder `out`; what was found.

    Raises:
        InputError: losses that are further apart than `LIMIT`, after the file is written.
    """
    data = load_data(config.run(REFERENCE).text, console)
    folder = RunFolder.create(out)
    losses: dict[str, list[float]] = {}
    for name in config.arms:
        with console.status(f"training {name}"):
            losses[name] = frozen_losses(
                config.run(name), data, RunFolder.create(out / name.replace(",", "").replace(" ", "-"))
            )
    found = {name: largest_difference(row, losses[REFERENCE]) for name, row in losses.items() if name != REFERENCE}
    folder.write_json("control.json", {"config": config, "limit": LIMIT, "steps": config.steps, "differences": found})
    for name, row in found.items():
        say(
            console,
            f"{name}: {config.steps} steps, losses at most {row['largest']:.1e} nats apart (step {row['step']})",
        )
    require_close(found)
    return found


def frozen_losses(config: TrainConfig, data: TokenData, folder: RunFolder) -> list[float]:
    """The loss of every step of a training in float64 with frozen depth queries."""
    model = build_decoder(config.model, seed=config.seed, device=config.device, dtype=torch.float64)
    for name, role in parameter_roles(model).items():
        if role is Role.DEPTH_QUERY:
            model.get_parameter(name).requires_grad_(False)
    alarms = Alarms(config.model.vocab_size, config.schedule.warmup_steps(config.steps))
    training = Training(
        config, data, LocalEngine(model, config), build_optimizers(model, config.optimizer), folder, alarms
    )
    return [record["loss"] for record in training_steps(training)]


def largest_difference(losses: list[float], reference: list[float]) -> dict[str, Any]:
    """The largest difference of two trainings, and the step (1-based) it is at."""
    apart = [abs(one - other) for one, other in zip(losses, reference, strict=True)]
    largest = max(apart)
    return {"largest": largest, "step": apart.index(largest) + 1}


def require_close(found: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse trainings that are further apart than rounding explains.

    Raises:
        InputError: it names the worst.
    """
    worst = max(found, key=lambda name: found[name]["largest"])
    if found[worst]["largest"] > LIMIT:
        raise InputError(
            f"{worst} is {found[worst]['largest']:.1e} nats from the standard residual, more than {LIMIT:g}: this "
            "build computes something else; run the tests"
        )
