"""The main job end to end on a small text: folders, figures, report, and the numbers in it."""

import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from attention_residuals import InputError
from attention_residuals.experiments.compare import CompareConfig, compare, prepare
from attention_residuals.experiments.results import read_comparison

MODELS = ("standard", "block3", "full+sum")


def write_corpus(folder: Path) -> Path:
    path = folder / "corpus.txt"
    path.write_text("".join(f"line {n} of a text that is long enough to learn from\n" for n in range(400)))
    return path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compare")
    config = CompareConfig(
        out=folder / "out",
        models=MODELS,
        layers=3,
        seeds=(0, 1),
        tokens=2048,
        batch_sequences=4,
        sequence_tokens=32,
        data=(str(write_corpus(folder)),),
        sample_bytes=20,
    )
    with (folder / "log").open("w") as log:
        assert compare(config, Console(file=log, width=200)) == folder / "out" / "report.html"
    return folder


@pytest.mark.slow
def test_every_run_leaves_its_files(finished: Path) -> None:
    for model in MODELS:
        for seed in (0, 1):
            files = {path.name for path in (finished / "out" / f"{model}-seed{seed}").iterdir()}
            assert files == {"config.json", "metrics.jsonl", "probe.json", "sample.txt", "validation.json"}
    figures = {path.name for path in (finished / "out" / "figures").iterdir()}
    assert figures == {"loss.png", "difference.png", "dynamics.png", "depth-block3.png", "depth-full+sum.png"}


@pytest.mark.slow
def test_the_numbers_of_the_report_are_those_of_the_metrics(finished: Path) -> None:
    report = (finished / "out" / "report.html").read_text()
    comparison = read_comparison(finished / "out")
    for model in MODELS:
        finals = []
        for seed in (0, 1):
            lines = (finished / "out" / f"{model}-seed{seed}" / "metrics.jsonl").read_text().splitlines()
            finals.append(json.loads(lines[-1])["validation_loss"])
        row = re.search(rf"<tr><td>{re.escape(model)}</td>.*?</tr>", report)
        assert row and f"<td>{sum(finals) / 2:.4f}</td>" in row[0]
        if model != "standard":
            assert f"{comparison.difference(model).mean:+.4f} ±" in row[0]


@pytest.mark.slow
def test_the_report_stands_alone(finished: Path) -> None:
    report = (finished / "out" / "report.html").read_text()
    assert not re.search(r'(src|href)="(?!data:)', report)
    assert report.count("data:image/png;base64,") == 5


@pytest.mark.slow
def test_the_log_tells_corpus_models_groups_and_results(finished: Path) -> None:
    log = (finished / "log").read_text()
    for expected in (
        "1 documents",
        "block3: AttnRes Block: 6 sublayers in 2 blocks of 3, 3 sources at the output, read scale mean",
        "depth query",
        "2,048 tokens, validation loss: standard",
        "full+sum, seed 1: validation loss",
    ):
        assert expected in log


def test_models_of_one_seed_differ_in_their_residual_alone(tmp_path: Path) -> None:
    runs = prepare(
        CompareConfig(out=tmp_path / "out", data=(str(write_corpus(tmp_path)),), sequence_tokens=64),
        Console(quiet=True),
    ).runs
    assert [run.name for run in runs] == ["standard", "block", "full"]
    assert len({(run.seed, run.steps, run.batch_sequences, run.optimizer) for run in runs}) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"models": ("standard", "wide")}, "'wide' is no model"),
        ({"models": ("full", "full")}, "a model is named twice"),
        ({"models": ()}, "no model named"),
        ({"seeds": (1, 1)}, "a seed is named twice"),
        ({"layers": 0}, "depth is 0"),
        ({"tokens": 100}, "100 tokens are less than one step of 2048"),
        ({"batch_sequences": 0}, "batch_sequences is 0"),
        ({"validation_share": 1.5}, "validation share is 1.5"),
        ({"sequence_tokens": 100_000}, "too short for one sequence of 100000"),
        ({"data": ("nowhere.txt",)}, "nowhere.txt does not exist"),
    ],
)
def test_wrong_wishes_are_refused_before_anything_is_written(tmp_path: Path, changes: dict, message: str) -> None:
    wishes = {"out": tmp_path / "out", "data": (str(write_corpus(tmp_path)),), "tokens": 10**6, **changes}
    if "batch_sequences" not in changes and changes.get("tokens") == 100:
        wishes["batch_sequences"], wishes["sequence_tokens"] = 8, 256
    with pytest.raises(InputError, match=message):
        prepare(CompareConfig(**wishes), Console(quiet=True))
    assert not (tmp_path / "out").exists()


def test_a_folder_that_exists_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="exists; choose another folder"):
        prepare(CompareConfig(out=tmp_path), Console(quiet=True))
