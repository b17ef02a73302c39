"""Two studies: a small model that is trained here and tuned on another text, and a pretrained model from a folder."""

import functools
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from attention_residuals.configs import first_difference, to_plain
from attention_residuals.errors import InputError, require_positive
from attention_residuals.experiments.printing import say
from attention_residuals.experiments.tuning.arms import LARGE_ARMS, LORA_AS_QUERIES, SMALL_ARMS
from attention_residuals.experiments.tuning.findings import BASE, STUDY
from attention_residuals.experiments.tuning.runs import Workshop, mean_loss, run_arms
from attention_residuals.retrofit import TuneConfig, TuningText, read_tuning_text, tune
from attention_residuals.retrofit.folders import load_plain
from attention_residuals.streams import BlockSize, Sublayers
from attention_residuals.train import RunFolder, TextConfig, TokenData, load_text


@dataclass(frozen=True)
class SmallStudy:
    """A Llama of about a million parameters, trained on bytes of one text, tuned on another.

    Args:
        layers, width: of the model; heads of 32.
        block: of the conversion.
        base_data, data: texts to train and to tune on, as of `TextConfig`.
        sequence_tokens: bytes of a window.
        base_steps, base_batch, base_rate: of the training, with a cosine schedule.
        steps, batch: of each tuning.
        seeds: each with a base model, an order of batches and low-rank matrices of its own.
        rates: how many are tried of each arm, on the first seed.
        evaluation_tokens: of each validation.
    """

    layers: int = 6
    width: int = 128
    block: BlockSize = field(default_factory=lambda: Sublayers(4))
    base_data: tuple[str, ...] = ("english",)
    data: tuple[str, ...] = ()
    sequence_tokens: int = 256
    base_steps: int = 1200
    base_batch: int = 16
    base_rate: float = 3e-3
    steps: int = 200
    batch: int = 8
    seeds: tuple[int, ...] = (0, 1, 2)
    rates: int = 3
    evaluation_tokens: int = 32_768
    kind: str = "small"

    def __post_init__(self) -> None:
        require_positive(self, "layers", "width", "sequence_tokens", "base_steps", "base_batch", "steps", "batch")
        require_positive(self, "rates", "evaluation_tokens")


@dataclass(frozen=True)
class LargeStudy:
    """A pretrained model from a folder, one seed; intervals are over windows of validation text.

    Args:
        model: the folder, unconverted.
        block, data, sequence_tokens, steps, batch, rates, evaluation_tokens: as of `SmallStudy`.
    """

    model: str
    block: BlockSize = field(default_factory=lambda: Sublayers(4))
    data: tuple[str, ...] = ("english",)
    sequence_tokens: int = 512
    steps: int = 100
    batch: int = 1
    rates: int = 1
    evaluation_tokens: int = 8192
    kind: str = "large"

    def __post_init__(self) -> None:
        require_positive(self, "sequence_tokens", "steps", "batch", "rates", "evaluation_tokens")


def run_small(study: SmallStudy, folder: Path, console: Console) -> None:
    """Train a base for each seed, then every arm; what is in the folder already is kept.

    Raises:
        InputError: the folder is of a study with other settings, or a text cannot be read.
    """
    open_study(study, folder)
    _be_quiet()
    base, text = (_bytes(paths, study.sequence_tokens) for paths in (study.base_data, study.data))
    for seed in study.seeds:
        train_base(study, folder, seed, base, text, console)
    config = {**_config(study, 5), **LORA_AS_QUERIES}
    load = functools.partial(_load, folder)
    shop = Workshop(folder, load, text, base, study.block, config, console)
    run_arms(shop, SMALL_ARMS, study.seeds, study.rates)


def run_large(study: LargeStudy, folder: Path, console: Console) -> None:
    """Every arm on one seed. Raises as `run_small`, and where the model cannot be loaded."""
    open_study(study, folder)
    _be_quiet()
    text = read_tuning_text(study.model, study.data, sequence_tokens=study.sequence_tokens)

    def load(seed: int) -> Any:
        return load_plain(study.model, dtype=torch.float32)

    shop = Workshop(folder, load, text, None, study.block, _config(study, 5), console)
    run_arms(shop, LARGE_ARMS, (0,), study.rates)


def open_study(study: SmallStudy | LargeStudy, folder: Path) -> None:
    """Begin a study, or find that the folder is of the same one.

    Raises:
        InputError: it is of another one.
    """
    asked, place = json.loads(json.dumps(to_plain(study))), folder / STUDY
    if not place.exists():
        RunFolder.create(folder).write_json(STUDY, asked)
        return
    found = first_difference(json.loads(place.read_bytes()), asked)
    if found is not None:
        path, then, now = found
        raise InputError(f"{folder} was begun with {path} {then!r}, and now it is {now!r}; name another folder")


def _be_quiet() -> None:
    """Each run loads a model anew, and a bar for each is too many."""
    from transformers.utils import logging

    logging.disable_progress_bar()


def train_base(
    study: SmallStudy, folder: Path, seed: int, base: TuningText, text: TuningText, console: Console
) -> None:
    """A plain model of a seed, in the folder `base-seedN`, unless it is there."""
    place = folder / f"base-seed{seed}"
    if (place / BASE).exists():
        return
    model = build_llama(study, seed)
    config = TuneConfig(
        train="all",
        steps=study.base_steps,
        batch_sequences=study.base_batch,
        rate=study.base_rate,
        weight_decay=0.1,
        seed=seed,
        evaluate_every_steps=max(1, study.base_steps // 5),
        evaluation_tokens=study.evaluation_tokens,
    )
    tuned = tune(model, base, config, console=console)
    model.save_pretrained(place)
    facts = {"own": tuned.after, "other": mean_loss(model, text, study.evaluation_tokens)}
    RunFolder(place).write_json(BASE, {**facts, "parameters": tuned.parameters, "seconds": tuned.seconds})
    say(console, f"base, seed {seed}: {facts['own']:.4f} on its text, {facts['other']:.4f} on the other")


def build_llama(study: SmallStudy, seed: int) -> Any:
    """A Llama over bytes with random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    heads = max(1, study.width // 32)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return LlamaForCausalLM(
            LlamaConfig(
                vocab_size=256,
                hidden_size=study.width,
                intermediate_size=16 * math.ceil(study.width / 6),
                num_hidden_layers=study.layers,
                num_attention_heads=heads,
                num_key_value_heads=heads,
                max_position_embeddings=study.sequence_tokens,
                tie_word_embeddings=False,
            )
        )


def _load(folder: Path, seed: int) -> Any:
    return load_plain(folder / f"base-seed{seed}", dtype=torch.float32)


def _bytes(paths: tuple[str, ...], sequence_tokens: int) -> TuningText:
    data: TokenData = load_text(TextConfig(paths, sequence_tokens=sequence_tokens))
    return TuningText(data, (), data.about)


def _config(study: SmallStudy | LargeStudy, validations: int) -> dict[str, Any]:
    return {
        "steps": study.steps,
        "batch_sequences": study.batch,
        "evaluate_every_steps": max(1, study.steps // validations),
        "evaluation_tokens": study.evaluation_tokens,
    }
