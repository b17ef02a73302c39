"""A sweep's report on losses with a known lowest cell."""

from pathlib import Path

import pytest

from attention_residuals.experiments.sweep import paper
from attention_residuals.experiments.sweep.analysis import optimum, read_sweep
from attention_residuals.experiments.sweep.report import write_report
from tests.experiments.studies.written import Written, write_study

WIDTHS, HEADS = [2.0, 4.0, 8.0], [0.3, 0.5, 0.7]
SETTINGS = {"type": "Sweep", "arms": ["standard", "full"], "width_ratios": WIDTHS, "head_ratios": HEADS}


def loss(arm: str, width: float, heads: float, seed: int) -> float:
    """Lowest at 8, 0.3 for the baseline, at 4, 0.5 for the arm; worse than the baseline at 8, 0.7 alone."""
    best = (8.0, 0.3) if arm == "standard" else (4.0, 0.5)
    low = 2.0 if arm == "standard" else 1.8
    penalty = 0.3 * (arm == "full" and (width, heads) == (8.0, 0.7))
    return low + 0.01 * abs(width - best[0]) + 0.1 * abs(heads - best[1]) + 0.001 * seed + penalty


def write_sweep(folder: Path, seeds: tuple[int, ...] = (1, 2)) -> Path:
    runs = [
        Written(
            f"d{width:g}-h{heads:g}-{arm}-seed{seed}",
            loss=loss(arm, width, heads, seed),
            labels={
                "part": "compare",
                "arm": arm,
                "seed": seed,
                "width_ratio": width,
                "head_ratio": heads,
                "layers": 3,
                "width": 6,
                "heads": 1,
                "learning_rate": 0.01,
            },
        )
        for width in WIDTHS
        for heads in HEADS
        for arm in ("standard", "full")
        for seed in seeds
    ]
    write_study(folder, "sweep", SETTINGS, runs)
    return folder


def test_the_lowest_cells_are_found(tmp_path: Path) -> None:
    sweep = read_sweep(write_sweep(tmp_path))
    base, arm = (optimum(sweep.losses(name), WIDTHS, HEADS) for name in sweep.arms)
    assert base is not None and (base.width_ratio, base.head_ratio, base.inside) == (8.0, 0.3, False)
    assert arm is not None and (arm.width_ratio, arm.head_ratio, arm.inside) == (4.0, 0.5, True)
    assert arm.loss == pytest.approx(1.8015)
    assert sweep.tally() == (8, 8, 1, 9)


def test_over_all_shapes_a_seed_counts_once(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path)
    of_cells = [loss("full", w, h, 1) - loss("standard", w, h, 1) for w in WIDTHS for h in HEADS]
    found = read_sweep(folder).over_shapes()
    assert found is not None and found.mean == pytest.approx(sum(of_cells) / 9) and len(found.by_seed) == 2
    assert found.half_width == pytest.approx(0, abs=1e-9), "the two seeds differ alike in every shape"
    (folder / "runs" / "d2-h0.3-full-seed2" / "stopped.json").write_text('{"reason": "loss is nan at step 3"}')
    assert read_sweep(folder).over_shapes() is None, "one seed is not sound in every shape"


def test_the_papers_lowest_cells_are_the_papers() -> None:
    grids = (paper.BASELINE, paper.ATTENTION_RESIDUALS)
    found = [optimum(grid, paper.WIDTH_RATIOS, paper.HEAD_RATIOS) for grid in grids]
    assert [(best.width_ratio, best.head_ratio, best.loss) for best in found if best] == [
        (60.0, 0.3, 1.847),
        (45.0, 0.3, 1.802),
    ]
    gains = [b - a for one, other in zip(*grids, strict=True) for a, b in zip(one, other, strict=True)]
    assert max(gains) == pytest.approx(-0.019) and min(gains) == pytest.approx(-0.063)


def test_the_report_says_where_the_optima_lie(tmp_path: Path) -> None:
    page = write_report(write_sweep(tmp_path))
    text = page.with_suffix(".md").read_text()
    assert "full has the lower mean loss in 8 of 9 shapes; in the paper it has in all of 25." in text
    assert "Beyond the noise of seeds it is better in 8 and worse in 1." in text
    assert "**Over all shapes together, full ends with a lower loss than standard (-0.1867 ± 0.0000 nats" in text
    assert "| standard | 8 | 0.3 | 2.0015 | at the grid's edge" in text
    assert "| full | 4 | 0.5 | 1.8015 | inside the grid |" in text
    assert "| paper: Attention Residuals | 45 | 0.3 | 1.8020 |" in text
    assert page.read_text().count("data:image/png;base64,") == 2


def test_a_sweep_that_has_just_begun_has_a_report(tmp_path: Path) -> None:
    labels = {"part": "tune", "layers": 3, "width": 6, "learning_rate": 0.01}
    write_study(tmp_path, "sweep", SETTINGS, [Written("d4-h0.5-tune-0.01", labels=labels)])
    assert "Nothing to compare yet." in write_report(tmp_path).with_suffix(".md").read_text()
    assert optimum([[None]], [1.0], [1.0]) is None


def test_one_seed_tells_nothing_of_seeds(tmp_path: Path) -> None:
    text = write_report(write_sweep(tmp_path, seeds=(1,))).with_suffix(".md").read_text()
    assert "One seed each: nothing can be told" in text and "Beyond the noise" not in text
