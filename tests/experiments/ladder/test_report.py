"""A ladder's report on runs whose losses follow known laws."""

import re
from pathlib import Path

import pytest

from attention_residuals.configs import to_plain
from attention_residuals.experiments.compute import training_operations
from attention_residuals.experiments.ladder.analysis import read_ladder
from attention_residuals.experiments.ladder.report import advantage_sentence, write_report
from attention_residuals.experiments.statistics import Interval, PowerLaw
from attention_residuals.experiments.studies.common import thin_decoder, with_arm
from tests.experiments.studies.written import Written, write_study

LAYERS = (2, 3, 4)
LAWS = {"standard": PowerLaw(9.0, 0.06), "block": PowerLaw(8.8, 0.06), "full": PowerLaw(8.99, 0.06)}
SECONDS = {"standard": 1.0, "block": 1.2, "full": 1.5}
SETTINGS = {"type": "Ladder", "arms": list(LAWS), "layers": list(LAYERS), "seeds": [1, 2, 3]}
NOISE = {1: 0.0, 2: 0.01, 3: -0.01}


def compute(layers: int) -> float:
    return training_operations(to_plain(thin_decoder(layers)), 16, 1000 * layers)


def write_ladder(folder: Path, *, without: tuple[str, ...] = (), late: float = 0.0) -> Path:
    """Losses by `LAWS`; `late` is added to those of block at the largest size."""
    runs = []
    for layers in LAYERS:
        labels = {"layers": layers, "width": 8, "learning_rate": 0.01}
        runs.append(Written(f"L{layers}-tune-0.01", loss=2.5, labels={"part": "tune", **labels}))
        for seed, noise in NOISE.items():
            for arm, law in LAWS.items():
                name = f"L{layers}-{arm}-seed{seed}"
                own = 0.004 * (seed - 2) * (arm == "full") + late * (arm == "block" and layers == LAYERS[-1])
                more = {"part": "compare", "arm": arm, "stream": arm, "seed": seed}
                runs.append(
                    Written(
                        name,
                        loss=None if name in without else law.loss(compute(layers)) + noise + own,
                        stopped="loss is nan" if name in without else None,
                        labels={**labels, **more},
                        model=with_arm(thin_decoder(layers), "standard"),
                        tokens=1000 * layers,
                        seconds=(SECONDS[arm],) * 8,
                    )
                )
    write_study(folder, "ladder", SETTINGS, runs)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_ladder(tmp_path_factory.mktemp("ladder"))


def test_fits_find_the_laws(folder: Path) -> None:
    ladder = read_ladder(folder)
    found = ladder.scaling("block")
    assert found is not None
    assert found.law.exponent == pytest.approx(0.06, abs=1e-6) and found.law.scale == pytest.approx(8.8, rel=1e-6)
    assert found.advantage.value == pytest.approx((9.0 / 8.8) ** (1 / 0.06), rel=1e-6)
    assert found.advantage.low < found.advantage.value < found.advantage.high


def test_time_divides_the_advantage(folder: Path) -> None:
    ladder = read_ladder(folder)
    slowdown, time = ladder.contest(ladder.sizes[-1]).slowdown("block"), ladder.time_advantage("block")
    scaling = ladder.scaling("block")
    assert slowdown is not None and time is not None and scaling is not None
    assert slowdown.value == pytest.approx(1.2)
    assert time.value == pytest.approx(scaling.advantage.value / 1.2)


def test_where_the_fits_miss_the_measured_losses_speak(folder: Path, tmp_path: Path) -> None:
    assert read_ladder(folder).fits_hold("block") is True
    late = read_ladder(write_ladder(tmp_path / "late", late=0.04))
    found, time = late.scaling("block"), late.time_advantage("block")
    assert late.fits_hold("block") is False and found is not None and time is not None
    assert late.advantage("block") == found.measured != found.advantage
    assert time.value == pytest.approx(found.measured.value / 1.2)
    text = write_report(tmp_path / "late").with_suffix(".md").read_text()
    assert "As measured (the fits miss by too much for a difference so small) standard would need" in text


def test_the_report_says_what_noise_hides(folder: Path) -> None:
    write_report(folder)
    text = (folder / "report.md").read_text()
    assert "standard would need 1.45 times" in text
    assert "Noise hides the difference in scaling" in text, "full is hardly better"
    assert "4 layers: block ends with a lower loss than standard" in text
    assert "4 layers: full and standard cannot be told apart" in text
    assert re.search(r"\| block \| 8\.8000 .*\| 1\.870 \| 0\.058 \| 1\.25 \|", text) or "| block |" in text
    assert "tokens a parameter" in text and "| 8.0 |" in text and "passes over the text" in text and "| 2.00 |" in text
    page = (folder / "report.html").read_text()
    assert page.count("data:image/png;base64,") == 2 and not re.search(r'(src|href)="(?!data:)', page)


def test_unsound_runs_stay_out_of_fits_and_pairs(tmp_path: Path) -> None:
    ladder = read_ladder(write_ladder(tmp_path, without=("L3-block-seed1",)))
    found = ladder.contest(ladder.sizes[1]).difference("block")
    assert found is not None and len(found.by_seed) == 2
    scaling = ladder.scaling("block")
    assert scaling is not None and scaling.law.exponent == pytest.approx(0.06, abs=5e-3)
    write_report(tmp_path)
    assert "| L3-block-seed1 | could not be trained to its end: loss is nan |" in (tmp_path / "report.md").read_text()


def test_an_arm_without_a_sound_run_at_a_size_is_fitted_on_the_others(tmp_path: Path) -> None:
    lost = tuple(f"L3-block-seed{seed}" for seed in NOISE)
    ladder = read_ladder(write_ladder(tmp_path, without=lost))
    assert ladder.scaling("block") is None, "two sizes make no law"
    assert ladder.scaling("full") is not None
    write_report(tmp_path)


def test_a_ladder_that_has_just_begun_has_a_report(tmp_path: Path) -> None:
    write_study(
        tmp_path,
        "ladder",
        SETTINGS,
        [Written("L2-tune-0.01", labels={"part": "tune", "layers": 2, "width": 8, "learning_rate": 0.01})],
    )
    text = write_report(tmp_path).with_suffix(".md").read_text()
    assert "Not over yet: 0 of the 1 runs" in text and "No scaling law yet" in text


@pytest.mark.parametrize(
    ("compute", "words"),
    [
        (Interval(1.3, 1.1, 1.5), "standard would need 1.30 times (95 % 1.10 to 1.50) the compute"),
        (Interval(1.1, 0.9, 1.3), "Noise hides the difference"),
        (Interval(1.1, float("-inf"), float("inf")), "one seed a size gives no interval"),
    ],
)
def test_words_are_no_stronger_than_the_interval(compute: Interval, words: str) -> None:
    assert words in advantage_sentence("block", "standard", compute, None)
