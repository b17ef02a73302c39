"""An ablation's report on losses made by hand, beside the paper's."""

from pathlib import Path

import pytest

from attention_residuals.experiments.ablation import paper
from attention_residuals.experiments.ablation.report import agreement, contest_of, write_report
from attention_residuals.experiments.studies.reading import read_study
from tests.experiments.studies.written import Written, write_study

LOSSES = {
    "standard": [2.00, 2.05, 1.95],
    "full": [1.90, 1.96, 1.84],
    "block2": [1.93, 1.98, 1.88],
    "block": [1.94, 2.00, 1.89],
    "block6": [1.99, 2.10, 1.96],
    "full+sigmoid": [2.10, 2.14, 2.06],
    "denseformer": [1.80, 2.30, 1.90],
    "highway": [1.0, None, 3.4],
}
SETTINGS = {"type": "Ablation", "arms": list(LOSSES), "layers": 3, "seeds": [1, 2, 3], "common": {"device": "cpu"}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = [Written("L3-tune-0.01", loss=2.4, labels={"part": "tune", "layers": 3, "width": 12, "learning_rate": 0.01})]
    for arm, losses in LOSSES.items():
        for seed, loss in enumerate(losses, 1):
            labels = {"part": "compare", "arm": arm, "seed": seed, "layers": 3, "learning_rate": 0.01}
            labels["stream"] = "block4" if arm == "block" else arm
            runs.append(Written(f"{arm}-seed{seed}", loss=loss, stopped=None if loss else "nan", labels=labels))
    folder = tmp_path_factory.mktemp("ablation")
    write_study(folder, "ablate", SETTINGS, runs)
    write_report(folder)
    return folder


def test_the_table_has_ours_and_theirs(folder: Path) -> None:
    text = (folder / "report.md").read_text()
    assert "| full | 1 | 1.9000 | -0.1000 ± 0.0248 | 1.737 | -0.029 | agrees | 3 of 3 |" in text
    assert "| block (block4) | 3 | 1.9433 |" in text and "| 1.746 | -0.020 |" in text
    assert "| full+sigmoid | 7 | 2.1000 | +0.1000 ± 0.0248 | 1.741 | -0.025 | disagrees |" in text
    assert "| 1.767 | +0.001 | hidden by noise |" in text


def test_unsound_runs_are_named_and_do_not_rank(folder: Path) -> None:
    text = (folder / "report.md").read_text()
    assert "| highway-seed2 | could not be trained to its end: nan |" in text
    assert "| highway-seed3 | its loss of 3.4000 nats is not below the unigram entropy" in text
    assert "| highway | - | 1.0000 |" in text and "| 1 of 3 |" in text


def test_the_verdict_sorts_arms_by_their_intervals(folder: Path) -> None:
    text = (folder / "report.md").read_text()
    assert "better than standard: full, block2, block; worse than standard: full+sigmoid; not to be told" in text


def test_both_figures_are_drawn(folder: Path) -> None:
    assert {path.name for path in (folder / "figures").iterdir()} == {"variants.png", "block-size.png"}


def test_tokens_and_passes_stand_in_the_report(folder: Path) -> None:
    text = (folder / "report.md").read_text()
    assert "1,000 tokens a run, 2 a parameter, 0.5 passes over the text; learning rate 0.01." in text


@pytest.mark.parametrize(
    ("stream", "loss"),
    [
        ("full", 1.737),
        ("block2", 1.746),
        ("block16", 1.753),
        ("block20", 1.757),
        ("block32", 1.757),
        ("block3", None),
        ("block4+heads4", 1.752),
        ("block4+nonorm", 1.750),
        ("highway", None),
        ("full+sum", None),
    ],
)
def test_the_papers_losses_by_name(stream: str, loss: float | None) -> None:
    assert paper.loss(stream, 20) == loss


def test_agreement_needs_a_figure_of_theirs(folder: Path) -> None:
    contest = contest_of(read_study(folder))
    assert agreement(contest, "full", None) == "-" and agreement(contest, "standard", 1.766) == "-"
