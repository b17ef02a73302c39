"""The main job: residual streams side by side on the same text, from the same weights, on the same batches."""

import importlib.util
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from attention_residuals.errors import InputError, require_positive
from attention_residuals.experiments.arms import residual_of
from attention_residuals.experiments.loading import load_data
from attention_residuals.experiments.memory import measure_peak_bytes
from attention_residuals.experiments.printing import group_table, say
from attention_residuals.experiments.results import run_folder_name
from attention_residuals.inference import Sampling, generate
from attention_residuals.models import BYTE_VOCABULARY, Decoder, DecoderConfig
from attention_residuals.models.meta import without_values
from attention_residuals.train import (
    AdamW,
    Cosine,
    Optimizer,
    RunFolder,
    Schedule,
    TextConfig,
    TokenData,
    TrainConfig,
    Training,
    bits,
    build_optimizers,
    conclude,
    require_absent,
    start_training,
    training_steps,
)
from attention_residuals.train.progress import training_progress

SAMPLE_PROMPT_TOKENS = 48
EVALUATIONS = 12


@dataclass(frozen=True)
class CompareConfig:
    """What to compare. The defaults are the fair run of the README: about ten minutes on two cores."""

    out: Path
    models: tuple[str, ...] = ("standard", "block", "full")
    layers: int = 12
    seeds: tuple[int, ...] = (0,)
    tokens: int = 900_000
    batch_sequences: int = 4
    sequence_tokens: int = 256
    data: tuple[str, ...] = ()
    validation_share: float = 0.05
    optimizer: Optimizer = field(default_factory=AdamW)
    schedule: Schedule = field(default_factory=Cosine)
    sample_bytes: int = 208
    device: str = "cpu"

    @property
    def steps(self) -> int:
        """Optimiser steps a run."""
        return self.tokens // (self.batch_sequences * self.sequence_tokens)


@dataclass(frozen=True)
class Prepared:
    """Everything checked and loaded, before the first folder is made."""

    data: TokenData
    about: dict[str, Any]
    runs: list[TrainConfig]


def compare(config: CompareConfig, console: Console) -> Path:
    """Train every model for every seed, then write the report; returns the report's path.

    Runs of one seed take turns step by step, so that what else the machine does slows all of them alike.

    Raises:
        InputError: anything wrong with what was asked, before any training.
        TrainingStoppedError: a loss that is no longer finite; what was trained so far stays on disk.
    """
    prepared = prepare(config, console)
    _announce(config, prepared, console)
    RunFolder.create(config.out).write_json("compare.json", config)
    with console.status("measuring the memory of each model"):
        peaks = {model: _peak_bytes(config, model) for model in config.models}
    for seed in config.seeds:
        trainings = [_start(config, prepared, run, peaks[run.name]) for run in prepared.runs if run.seed == seed]
        _train_in_turns(trainings, config.sample_bytes, console)
    from attention_residuals.experiments.report import write_report

    return write_report(config.out)


def prepare(config: CompareConfig, console: Console) -> Prepared:
    """Check all of `config`, load the text, and lay out the runs."""
    require_absent(config.out)
    if not all(map(importlib.util.find_spec, ("matplotlib", "scipy"))):
        raise InputError("the report needs matplotlib and scipy: pip install 'attention-residuals[report]'")
    _require_distinct("model", config.models)
    _require_distinct("seed", config.seeds)
    require_positive(config, "batch_sequences", "sequence_tokens")
    if config.steps < 1:
        step_tokens = config.batch_sequences * config.sequence_tokens
        raise InputError(f"{config.tokens} tokens are less than one step of {step_tokens}; ask for more --tokens")
    runs = [_train_config(config, name, seed) for seed in config.seeds for name in config.models]
    data = load_data(_text_config(config), console)
    return Prepared(data, {"data": data.about, "sequence_tokens": config.sequence_tokens}, runs)


def _require_distinct(kind: str, values: Sequence[object]) -> None:
    if not values:
        raise InputError(f"no {kind} named; name at least one")
    if len(set(values)) < len(values):
        raise InputError(f"a {kind} is named twice in {', '.join(map(str, values))}; name each once")


def _text_config(config: CompareConfig) -> TextConfig:
    return TextConfig(config.data, sequence_tokens=config.sequence_tokens, validation_share=config.validation_share)


def _train_config(config: CompareConfig, name: str, seed: int) -> TrainConfig:
    model = DecoderConfig.from_depth(config.layers, vocab_size=BYTE_VOCABULARY, residual=residual_of(name))
    return TrainConfig(
        name=name,
        model=model,
        text=_text_config(config),
        steps=config.steps,
        seed=seed,
        batch_sequences=config.batch_sequences,
        optimizer=config.optimizer,
        schedule=config.schedule,
        evaluate_every_steps=math.ceil(config.steps / EVALUATIONS),
        device=config.device,
    )


def _announce(config: CompareConfig, prepared: Prepared, console: Console) -> None:
    """What is about to happen: text, models, parameter groups, and warnings as sentences."""
    about = prepared.about["data"]
    say(
        console,
        f"Text: {about['source']}, {about['documents']:,} documents, {about['training_bytes']:,} bytes to train on, "
        f"{about['validation_bytes']:,} to validate ({about['split']}). "
        f"Bytes as tokens; unigram entropy {about['unigram_entropy']:.3f} nats.",
    )
    say(
        console,
        f"Each run: {config.steps:,} steps of {config.batch_sequences} x {config.sequence_tokens} tokens, "
        f"seeds {', '.join(map(str, config.seeds))}, on {config.device} ({torch.get_num_threads()} threads).",
    )
    for run in prepared.runs[: len(config.models)]:
        with warnings.catch_warnings(record=True) as caught, without_values():
            warnings.simplefilter("always")
            model = Decoder(run.model)
        parameters = sum(parameter.numel() for parameter in model.parameters())
        say(console, f"{run.name}: {model.stream.describe()}; {parameters:,} parameters")
        for warning in caught:
            say(console, f"  note: {warning.message}")
        if run.name == config.models[-1]:
            console.print(group_table(build_optimizers(model, run.optimizer).describe(), run.name))


def _peak_bytes(config: CompareConfig, model: str) -> int | None:
    return measure_peak_bytes(
        model,
        config.layers,
        batch_sequences=config.batch_sequences,
        sequence_tokens=config.sequence_tokens,
        device=config.device,
    )


def _start(config: CompareConfig, prepared: Prepared, run: TrainConfig, peak_bytes: int | None) -> Training:
    machine = {"threads": torch.get_num_threads(), "torch": torch.__version__, "peak_training_bytes": peak_bytes}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # told once, in the announcement
        path = config.out / run_folder_name(run.name, run.seed)
        return start_training(run, prepared.data, path, about={**prepared.about, **machine})


def _train_in_turns(trainings: Sequence[Training], sample_bytes: int, console: Console) -> None:
    """Train the models of one seed step by step in turns, then take their final numbers."""
    names = [training.config.name for training in trainings]
    with training_progress(console, names, trainings[0].config.steps) as progress:
        for records in zip(*map(training_steps, trainings), strict=True):
            progress.advance(dict(zip(names, records, strict=True)))
    for training in trainings:
        with console.status(f"validating {training.config.name}"):
            loss = conclude(training)["validation_loss"]
            training.folder.write_text("sample.txt", _sample_text(training, sample_bytes))
        say(
            console,
            f"{training.config.name}, seed {training.config.seed}: validation loss {loss:.4f} nats, "
            f"{bits(loss):.4f} bits per byte",
        )


def _sample_text(training: Training, count: int) -> str:
    """The start of the validation text and what the model makes of it within its context; bad bytes shown as such."""
    context = training.data.sequence_tokens
    prompt = training.data.prompt(min(SAMPLE_PROMPT_TOKENS, context // 2))
    drawn = generate(
        training.model,
        [prompt],
        tokens=min(count, context - len(prompt)),
        sampling=Sampling(temperature=0.8, seed=training.config.seed),
    )
    return training.data.tokenizer.decode([*prompt.tolist(), *drawn[0].tolist()])
