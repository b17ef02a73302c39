"""`step` and `depth`: whole training steps, those of several models taking turns."""

import random
from collections.abc import Sequence
from pathlib import Path

from attention_residuals.bench.contest import Contest, Entry
from attention_residuals.bench.networks import MODELS, decoder_config, judge_decoder, residual_of, vary_depth_weights
from attention_residuals.bench.progress import Work
from attention_residuals.bench.request import Request, Shape
from attention_residuals.bench.results import Column, Table, Value
from attention_residuals.bench.timing import Quartiles, Task, time_in_turns
from attention_residuals.models import SUBLAYERS_PER_LAYER
from attention_residuals.train import RunFolder, TokenData, TrainConfig, Training
from attention_residuals.train.loop import build_training, optimizer_step

DEPTH_BLOCKS = 8
"""Blocks of Block at every depth, as in the paper: sources a read stay the same while layers grow."""

REFERENCE = "standard"

SCHEDULED_STEPS = 100_000
"""Far more than are measured, so that every step is one of the warm-up and no model goes anywhere."""


def run_step(request: Request, work: Work) -> list[Table]:
    """Forward, loss, backward, clipping and optimiser, as `training_steps` does them."""
    tables = []
    for width, layers, batch, sequence, block in request.shapes:
        names = [name for name in MODELS if request.wants(name)]
        entries = [_entry(start_training(name, width, layers, batch, sequence, block)) for name in names]
        title = (
            f"step: width {width}, {layers} layers, {batch} x {sequence} tokens, Block of {block} sublayers, float32"
        )
        tables += Contest(title, entries, REFERENCE).run(request.budget, work)
    return tables


def run_depth(request: Request, work: Work) -> list[Table]:
    """What a layer costs more than with the standard residual, at several depths."""
    rows = []
    for shape in request.shapes:
        rows += _overheads(request, shape, work)
    columns = [
        Column("model", "model"),
        Column("layers", "layers", "d"),
        Column("tokens", "tokens", ",d"),
        Column("width", "width", "d"),
        Column("seconds", "step, ms", ",.1f", factor=1e3),
        Column("layer_seconds", "more a layer, ms", ".3f", factor=1e3),
        Column("layer_seconds_low", "quartiles, ms", ".3f", factor=1e3, until="layer_seconds_high"),
        Column("ratio", f"x {REFERENCE}", ".3f"),
        Column("status", "status"),
    ]
    return [Table(f"depth: a layer's overhead in a training step, Block in {DEPTH_BLOCKS} blocks", columns, rows)]


def block_of(layers: int) -> int:
    """Sublayers a block for `DEPTH_BLOCKS` blocks."""
    return -(-SUBLAYERS_PER_LAYER * layers // DEPTH_BLOCKS)


def start_training(name: str, width: int, layers: int, batch: int, sequence: int, block: int) -> Training:
    """A run on random bytes that writes nothing, its depth queries away from zero."""
    config = TrainConfig(
        name=name,
        model=decoder_config(width, layers, residual_of(name, block)),
        steps=SCHEDULED_STEPS,
        batch_sequences=batch,
    )
    text = random.Random(0).randbytes(8 * (sequence + 1))
    training = build_training(config, TokenData.from_bytes(text, text, sequence), RunFolder(Path()))
    vary_depth_weights(training.model)
    return training


def _entry(training: Training) -> Entry:
    return Entry(training.config.name, {"step": _step(training)}, lambda: judge_decoder(training.model), ours=True)


def _step(training: Training) -> Task:
    """One optimiser step; as in training, the batch is at hand before the clock starts."""
    config = training.config
    batch = training.data.batch(config.seed, 0, config.batch_sequences)
    training.optimizer.set_rate(config.schedule.factor(0, config.steps))
    return lambda: optimizer_step(training, batch, 0)


def _overheads(request: Request, shape: Shape, work: Work) -> list[dict[str, Value]]:
    layers, tokens, width = shape
    work.title(f"depth: {layers} layers")
    names = [name for name in MODELS if name == REFERENCE or request.wants(name)]
    trainings = {name: start_training(name, width, layers, 1, tokens, block_of(layers)) for name in names}
    with work.stage("checking against the oracle", len(names)):
        verdicts = {}
        for name, training in trainings.items():
            verdicts[name] = judge_decoder(training.model)
            work.advance()
    tasks = {name: _step(training) for name, training in trainings.items() if verdicts[name].right}
    seconds = time_in_turns(tasks, request.budget, work)
    rows = []
    for name in names:
        row: dict[str, Value] = {"model": name, "layers": layers, "tokens": tokens, "width": width}
        row["status"] = verdicts[name].words
        if name in seconds:
            row["seconds"] = Quartiles.of(seconds[name]).median
        if name in seconds and REFERENCE in seconds and name != REFERENCE:
            row |= _against(seconds[name], seconds[REFERENCE], layers)
        rows.append(row)
    return rows


def _against(own: Sequence[float], other: Sequence[float], layers: int) -> dict[str, Value]:
    """Seconds a layer more than the reference, and the ratio, from pairs of one round."""
    more = Quartiles.of([(a - b) / layers for a, b in zip(own, other, strict=True)])
    ratio = Quartiles.of([a / b for a, b in zip(own, other, strict=True)])
    return {
        "layer_seconds_low": more.low,
        "layer_seconds": more.median,
        "layer_seconds_high": more.high,
        "ratio_low": ratio.low,
        "ratio": ratio.median,
        "ratio_high": ratio.high,
    }
