"""The study's report on losses, loads and times made by hand."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from attention_residuals.experiments.moe.analysis import chance_peak, ends, loads, peaks, read_mixtures
from attention_residuals.experiments.moe.report import ONE_SEED, answer, write_report
from attention_residuals.experiments.moe.shapes import Networks
from tests.experiments.studies.written import Written, write_study

SETTINGS = {
    "type": "MixtureStudy",
    "arms": ["standard", "block"],
    "layers": 2,
    "experts": 4,
    "top_k": 2,
    "shared": 1,
    "common": {"batch_sequences": 2, "text": {"sequence_tokens": 16}},
}
LOSSES = {
    ("dense", "standard"): [2.00, 2.10, 2.20],
    ("dense", "block"): [1.95, 2.04, 2.16],  # -0.05, -0.06, -0.04
    ("mixture", "standard"): [1.90, 2.00, 2.10],
    ("mixture", "block"): [1.80, 1.895, 2.005],  # -0.10, -0.105, -0.095
}
SHARES = {"sublayers.1.router": [0.25, 0.25, 0.25, 0.25], "sublayers.3.router": [0.40, 0.30, 0.20, 0.10]}


def run(kind: str, arm: str, seed: int, loss: float | None) -> Written:
    networks = Networks(2, 4, 2, 1)
    labels = {"part": "compare", "kind": kind, "arm": arm, "seed": seed, "stream": "block1" if arm == "block" else arm}
    labels |= {"layers": 2, "width": 8, "learning_rate": 0.01 if kind == "dense" else 0.005, "active": 1234}
    mixed = kind == "mixture"
    slow = 0.2 if arm == "block" else 0.1
    return Written(
        f"{kind}-{arm}-seed{seed}",
        loss=loss,
        stopped=None if loss else "nan",
        labels={**labels, "router": 64 * mixed},
        model=getattr(networks, kind),
        seconds=(slow,) * 8,
        peaks=[2.0, 1.8, 1.6, 1.5, 1.4, 1.3, 1.2, 1.1] if mixed else (),
        curve={2: 2.8, 4: 2.6, 8: loss or 9.0},
        expert_shares=SHARES if mixed else {},
    )


def write(folder: Path, losses: Mapping[tuple[str, str], Sequence[float | None]]) -> Path:
    runs = [run(kind, arm, seed, loss) for (kind, arm), values in losses.items() for seed, loss in enumerate(values, 1)]
    trial = {"part": "tune", "kind": "mixture", "layers": 2, "width": 8, "learning_rate": 0.005}
    write_study(folder, "moe", SETTINGS, [*runs, Written("mixture-tune-0.005", loss=2.5, labels=trial)])
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write(tmp_path_factory.mktemp("moe"), LOSSES)
    write_report(folder)
    return folder


def test_the_answer_is_the_difference_of_differences(folder: Path) -> None:
    results = read_mixtures(folder)
    found = results.interaction
    assert found is not None and found.over == "seeds"
    assert found.by_seed == pytest.approx([-0.05, -0.045, -0.055])
    assert found.half_width == pytest.approx(4.302653 * 0.005 / math.sqrt(3), rel=1e-5)  # Student's t, two degrees
    assert answer(results) == (
        "block helps the mixture of experts more than the dense model of the same active size: it changes the loss of "
        "the mixture by -0.1000 ± 0.0124 and of the dense model by -0.0500 ± 0.0248, a difference of "
        "-0.0500 ± 0.0124 nats a byte."
    )


def test_tables_have_losses_differences_and_parameters(folder: Path) -> None:
    text = (folder / "report.md").read_text()
    assert text.splitlines()[2].startswith("**block helps the mixture of experts more")
    assert "| mixture, block | 1.9000 | 3 of 3 | 0.005 | 1.8000, 1.8950, 2.0050 |" in text
    assert "| dense: block - standard | -0.0500 ± 0.0248 | -0.0500, -0.0600, -0.0400 |" in text
    assert "| mixture's block - standard, minus the dense model's | -0.0500 ± 0.0124 |" in text
    assert "| standard: mixture - dense | -0.1000 ± 0.0000 |" in text
    assert "| mixture, block (block1) | 500 | 1,234 | 64 |" in text and "| 2 of 4 x 11, and 1 shared |" in text
    assert "| mixture, 2 layers, width 8 | 0.005 | 2.5000 |" in text
    assert (folder / "report.html").read_text().count("data:image/png;base64,") == 3


def test_loads_during_and_after_training_are_told(folder: Path) -> None:
    results = read_mixtures(folder)
    first = results.mixtures[0]
    assert first.name == "mixture-standard-seed1" and len(results.mixtures) == 6
    assert peaks(first)[:2] == [2.0, 1.8] and ends(peaks(first)) == (2.0, 1.1)
    assert loads(first) == {1: [1.0] * 4, 2: pytest.approx([1.6, 1.2, 0.8, 0.4])}
    text = (folder / "report.md").read_text()
    assert "| mixture-standard-seed1 | 2.00 | 1.10 | 1.60 | 1.30 |" in text
    assert "| mixture-block-seed3, layer 2 | 1.60 | 1.20 | 0.80 | 0.40 |" in text


def test_at_equal_time_the_slower_arm_is_where_it_was(folder: Path) -> None:
    """Block takes twice the time: its loss after half the steps, 2.6, against the last of standard."""
    found = read_mixtures(folder).at_equal_time("dense")
    assert found is not None and found.by_seed == pytest.approx([0.6, 0.5, 0.4])
    assert "| dense | 100.0 | 200.0 | 2.000 (2.000 to 2.000) | +0.5000 ± 0.2484 |" in (folder / "report.md").read_text()


def test_noise_is_called_noise(tmp_path: Path) -> None:
    losses = {**LOSSES, ("mixture", "block"): [1.95, 1.85, 2.05]}
    text = answer(read_mixtures(write(tmp_path, losses)))
    assert text.startswith("Noise hides whether block helps the mixture of experts more than the dense model: ")


def test_a_run_that_diverged_takes_its_seed_out_of_what_it_is_part_of(tmp_path: Path) -> None:
    folder = write(tmp_path, {**LOSSES, ("mixture", "block"): [1.80, None, 2.005]})
    results = read_mixtures(folder)
    found, dense = results.interaction, results.gain("dense")
    assert found is not None and found.by_seed == pytest.approx([-0.05, -0.055])
    assert dense is not None and len(dense.by_seed) == 3
    text = write_report(folder).with_suffix(".md").read_text()
    assert "| mixture-block-seed2 | could not be trained to its end: nan |" in text
    assert "| mixture, block | 1.9025 | 2 of 3 |" in text


def test_one_seed_tells_nothing_of_seeds(tmp_path: Path) -> None:
    folder = write(tmp_path, {cell: losses[:1] for cell, losses in LOSSES.items()})
    assert answer(read_mixtures(folder)) == ONE_SEED
    assert "over windows of validation text" in write_report(folder).with_suffix(".md").read_text()


def test_a_study_that_has_just_begun_has_a_report(tmp_path: Path) -> None:
    text = write_report(write(tmp_path, {})).with_suffix(".md").read_text()
    assert "No answer yet" in text and "figures/" not in text


def test_chance_is_what_random_choices_do() -> None:
    tokens, experts, top_k, layers = 512, 8, 2, 3
    random = np.random.default_rng(0).random((60, layers, tokens, experts))
    chosen = random.argpartition(top_k, axis=-1)[..., :top_k].reshape(60, layers, -1)
    counts = (chosen[..., None] == np.arange(experts)).sum(2)
    largest = counts.max((1, 2)) / (tokens * top_k / experts)
    assert chance_peak(tokens, experts, top_k, layers) == pytest.approx(np.median(largest), abs=0.02)
