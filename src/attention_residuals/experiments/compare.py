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
from rich.table import Table

from attention_residuals.errors import InputError, require_positive
from attention_residuals.experiments.arms import residual_of
from attention_residuals.experiments.memory import measure_peak_bytes
from attention_residuals.experiments.results import run_folder_name
from attention_residuals.inference import sample
from attention_residuals.models import BYTE_VOCABULARY, Decoder, DecoderConfig
from attention_residuals.train import (
    ByteData,
    OptimizerConfig,
    RunFolder,
    TrainConfig,
    Training,
    bits,
    build_adamw,
    conclude,
    describe_groups,
    fingerprint,
    load_documents,
    require_absent,
    split_documents,
    start_training,
    training_steps,
    unigram_entropy,
)
from attention_residuals.train.progress import training_progress

SAMPLE_PROMPT_BYTES = 48
EVALUATIONS = 12


@dataclass(frozen=True)
class CompareConfig:
    """What to compare. The defaults are the fair run of the README: ten to twelve minutes on two cores."""

    out: Path
    models: tuple[str, ...] = ("standard", "block", "full")
    layers: int = 12
    seeds: tuple[int, ...] = (0,)
    tokens: int = 900_000
    batch_sequences: int = 4
    sequence_tokens: int = 256
    data: tuple[Path, ...] = ()
    validation_share: float = 0.05
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    sample_bytes: int = 300
    device: str = "cpu"

    @property
    def steps(self) -> int:
        """Optimiser steps a run."""
        return self.tokens // (self.batch_sequences * self.sequence_tokens)


@dataclass(frozen=True)
class Prepared:
    """Everything checked and loaded, before the first folder is made."""

    data: ByteData
    about: dict[str, Any]
    runs: list[TrainConfig]


def compare(config: CompareConfig, console: Console) -> Path:
    """Train every model for every seed, then write the report; returns the report's path.

    Runs of one seed take turns step by step, so that what else the machine does slows all of them alike.

    Raises:
        InputError: anything wrong with what was asked, before any training.
        TrainingStoppedError: a loss that is no longer finite; what was trained so far stays on disk.
    """
    prepared = prepare(config)
    _announce(config, prepared, console)
    RunFolder.create(config.out).write_json("compare.json", config)
    with console.status("measuring the memory of each model"):
        peaks = {model: _peak_bytes(config, model) for model in config.models}
    for seed in config.seeds:
        trainings = [_start(config, prepared, run, peaks[run.name]) for run in prepared.runs if run.seed == seed]
        _train_in_turns(trainings, config.sample_bytes, console)
    from attention_residuals.experiments.report import write_report

    return write_report(config.out)


def prepare(config: CompareConfig) -> Prepared:
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
    data, about = _load_text(config)
    return Prepared(data, {"data": about, "sequence_tokens": config.sequence_tokens}, runs)


def _load_text(config: CompareConfig) -> tuple[ByteData, dict[str, Any]]:
    """The tokens, and what there is to say about them."""
    documents = load_documents(config.data)
    split = split_documents(documents, config.validation_share)
    data = ByteData.from_split(split, config.sequence_tokens)
    about = {
        "source": ", ".join(map(str, config.data)) or "the Python standard library",
        "documents": len(documents),
        "fingerprint": fingerprint(documents),
        "split": split.rule,
        "training_bytes": len(split.train),
        "validation_bytes": len(split.validation),
        "unigram_entropy": unigram_entropy(data.train),
    }
    return data, about


def _require_distinct(kind: str, values: Sequence[object]) -> None:
    if not values:
        raise InputError(f"no {kind} named; name at least one")
    if len(set(values)) < len(values):
        raise InputError(f"a {kind} is named twice in {', '.join(map(str, values))}; name each once")


def _train_config(config: CompareConfig, name: str, seed: int) -> TrainConfig:
    model = DecoderConfig.from_depth(config.layers, vocab_size=BYTE_VOCABULARY, residual=residual_of(name))
    return TrainConfig(
        name=name,
        model=model,
        steps=config.steps,
        seed=seed,
        batch_sequences=config.batch_sequences,
        optimizer=config.optimizer,
        evaluate_every_steps=math.ceil(config.steps / EVALUATIONS),
        device=config.device,
    )


def _announce(config: CompareConfig, prepared: Prepared, console: Console) -> None:
    """What is about to happen: text, models, parameter groups, and warnings as sentences."""
    about = prepared.about["data"]
    _say(
        console,
        f"Text: {about['source']}, {about['documents']:,} documents, {about['training_bytes']:,} bytes to train on, "
        f"{about['validation_bytes']:,} to validate ({about['split']}). "
        f"Bytes as tokens; unigram entropy {about['unigram_entropy']:.3f} nats.",
    )
    _say(
        console,
        f"Each run: {config.steps:,} steps of {config.batch_sequences} x {config.sequence_tokens} tokens, "
        f"seeds {', '.join(map(str, config.seeds))}, on {config.device} ({torch.get_num_threads()} threads).",
    )
    for run in prepared.runs[: len(config.models)]:
        with warnings.catch_warnings(record=True) as caught, torch.device("meta"):
            warnings.simplefilter("always")
            model = Decoder(run.model)
        parameters = sum(parameter.numel() for parameter in model.parameters())
        _say(console, f"{run.name}: {model.stream.describe()}; {parameters:,} parameters")
        for warning in caught:
            _say(console, f"  note: {warning.message}")
    console.print(_group_table(prepared.runs[len(config.models) - 1]))


def _say(console: Console, text: str) -> None:
    """Print plain text as it is: no markup, no wrapping at a log file's imagined width."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def _group_table(run: TrainConfig) -> Table:
    """The parameter groups of one model, as they will be trained."""
    with warnings.catch_warnings(), torch.device("meta"):
        warnings.simplefilter("ignore")
        model = Decoder(run.model)
    table = Table(title=f"AdamW groups of {run.name}", title_justify="left")
    for column in ("role", "tensors", "parameters", "peak rate", "weight decay"):
        table.add_column(column, justify="left" if column == "role" else "right")
    for row in describe_groups(build_adamw(model, run.optimizer)):
        table.add_row(
            row["role"],
            f"{row['tensors']:,}",
            f"{row['parameters']:,}",
            f"{row['learning_rate']:g}",
            f"{row['weight_decay']:g}",
        )
    return table


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
        _say(
            console,
            f"{training.config.name}, seed {training.config.seed}: validation loss {loss:.4f} nats, "
            f"{bits(loss):.4f} bits per byte",
        )


def _sample_text(training: Training, count: int) -> str:
    """The start of the validation text and what the model makes of it, undecodable bytes shown as such."""
    prompt = training.data.validation[:SAMPLE_PROMPT_BYTES]
    drawn = sample(
        training.model,
        prompt,
        tokens=count,
        context_tokens=training.data.sequence_tokens,
        seed=training.config.seed,
    )
    return bytes([*prompt.tolist(), *drawn.tolist()]).decode("utf-8", errors="replace")
