"""Studies of tuning: rates, pairs, what is kept, and the command."""

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from attention_residuals import InputError, Sublayers
from attention_residuals.experiments.results import interval_half_width
from attention_residuals.experiments.tuning import report, runs
from attention_residuals.experiments.tuning.__main__ import main
from attention_residuals.experiments.tuning.arms import LORA_AS_QUERIES, SMALL_ARMS, Arm, ladder
from attention_residuals.experiments.tuning.findings import STUDY, at_an_end, read_results
from attention_residuals.experiments.tuning.report import sentences
from attention_residuals.experiments.tuning.study import SmallStudy, build_llama
from attention_residuals.hf import fast_tokenizer
from attention_residuals.retrofit import retrofit
from attention_residuals.retrofit.tuning.lora import lora_parameters
from attention_residuals.train import ByteTokenizer

QUERIES = Arm("queries", "queries", 1.0, lambda x, _: {"depth_rate": x})


def test_rates_around_a_start() -> None:
    assert ladder(3e-3, 3) == [1e-3, 3e-3, 9e-3] and ladder(4e-4, 1) == [4e-4] and ladder(1.0, 2) == [0.33, 1.0]


def test_the_best_rate_is_looked_for_beyond_the_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    def fake(shop: Any, arm: Arm, seed: int, rates: dict[str, float]) -> dict[str, Any]:
        asked.append(rates["depth_rate"])
        after = None if rates["depth_rate"] > 5 else 2 - rates["depth_rate"]
        return {"rates": rates, "before": 2.0, "after": after, "seconds": 0.0}

    monkeypatch.setattr(runs, "_tune", fake)
    nothing: Any = None
    shop = runs.Workshop(tmp_path, nothing, nothing, None, Sublayers(2), {}, Console(quiet=True))
    runs.run_arms(shop, [QUERIES], (0, 1), 3)
    assert asked == [0.33, 1.0, 3.0, 9.0, 3.0], "9 broke, so 3 is the best and no end; the second seed takes it"
    assert shop.best == {"queries": 3.0}
    runs.run_arms(shop, [QUERIES], (0, 1), 3)
    assert len(asked) == 5, "what is there is not done again"


def run(arm: str, seed: int, x: float, after: float | None) -> dict[str, Any]:
    windows = [] if after is None else [after - 0.1, after + 0.1]
    curve = [[0, 2.0], [10, after]]
    return {
        "arm": arm,
        "seed": seed,
        "x": x,
        "rates": {"rate": x},
        "before": 2.0,
        "after": after,
        "curve": curve,
        "window_losses": windows,
        "parameters": 7,
        "seconds": 1.0,
        "other": None,
    }


def write(folder: Path, found: list[dict[str, Any]], kind: str = "small") -> None:
    (folder / "runs").mkdir(parents=True)
    (folder / STUDY).write_text(json.dumps({"kind": kind, "steps": 10, "model": "m"}))
    for n, each in enumerate(found):
        (folder / f"runs/{n}.json").write_text(json.dumps(each))


def test_pairs_and_intervals(tmp_path: Path) -> None:
    found = [run("queries", 0, 1.0, 1.5), run("queries", 0, 3.0, 1.6), run("queries", 0, 9.0, None)]
    found += [run("queries", 1, 1.0, 1.7), run("queries", 2, 1.0, 1.6)]
    found += [run("norms", seed, 2.0, after) for seed, after in enumerate((1.4, 1.59, 1.51))]
    write(tmp_path / "a", found)
    results = read_results(tmp_path / "a")
    assert list(results.chosen) == ["queries", "norms"] and [each["x"] for each in results.chosen["queries"]] == [
        1,
        1,
        1,
    ]
    pairs = [-0.1, -0.11, -0.09]
    difference = results.difference("norms")
    assert difference.by_seed == pytest.approx(pairs) and difference.over == "seeds"
    assert difference.half_width == pytest.approx(interval_half_width(pairs))
    assert results.gain("queries").by_seed == pytest.approx([-0.5, -0.3, -0.4])
    assert at_an_end(results, "queries"), "1 is the least that was tried"
    assert "norms: better than queries alone, -0.1000 ± 0.0248." in list(sentences(results))
    write(tmp_path / "b", [run("queries", 0, 1.0, 1.5), run("norms", 0, 1.0, 1.5)], "large")
    assert read_results(tmp_path / "b").difference("norms").over == "windows"
    assert "norms: not told apart from queries alone" in " ".join(sentences(read_results(tmp_path / "b")))
    with pytest.raises(InputError, match="no study of tuning"):
        read_results(tmp_path)


def test_low_rank_matrices_are_as_many_as_queries() -> None:
    model = build_llama(SmallStudy(layers=3, width=64), 0)
    added = retrofit(model, Sublayers(4), gradients=False)
    queries = added.added_parameters // 2
    assert lora_parameters(model, LORA_AS_QUERIES["lora_rank"], LORA_AS_QUERIES["lora_targets"]) == queries
    assert {arm.train for arm in SMALL_ARMS} == {"queries", "norms", "lora", "queries+norms", "queries+lora", "all"}


@pytest.mark.filterwarnings("ignore")
def test_both_studies_and_their_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(30):
        (tmp_path / f"{n}.txt").write_text("".join(f"{k * n} is {k} times {n}.\n" for k in range(20)))
    data = ["--data", *(str(tmp_path / f"{n}.txt") for n in range(30)), "--steps", "2", "--rates", "1"]
    small, large = tmp_path / "small", tmp_path / "large"
    with monkeypatch.context() as patch:
        patch.setattr(report, "draw_all", draw_nothing)
        run_both(small, large, tmp_path / "model", data, capsys)
    page = tmp_path / "results.md"
    assert main(["page", str(small), str(large), "--to", str(page)]) == 0
    text = page.read_text()
    assert "## A small model" in text and "## model" in text and "![" in text
    figures = [line.split("](")[1].rstrip(")") for line in text.splitlines() if line.startswith("![")]
    assert len(figures) == 6 and all((tmp_path / name).exists() for name in figures)


def draw_nothing(results: Any, folder: Path) -> list[str]:
    """Figures are drawn once, for the page."""
    for name in ("curves.png", "rates.png"):
        (folder / name).write_bytes(bytes(30))
    return []


def run_both(small: Path, large: Path, model: Path, data: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    words = ["small", str(small), "--tiny", "--seeds", "0", "--base-steps", "2", *data]
    assert main(words) == 0
    before = {path: path.stat().st_mtime_ns for path in (small / "runs").glob("*.json")}
    assert len(before) == 7
    assert main(words) == 0 and before == {path: path.stat().st_mtime_ns for path in (small / "runs").iterdir()}
    build_llama(SmallStudy(layers=2, width=32), 0).save_pretrained(model)
    fast_tokenizer(ByteTokenizer(), 64).save_pretrained(model)
    sizes = ["--sequence", "16", "--evaluation-tokens", "64"]
    assert main(["large", str(large), "--model", str(model), *sizes, *data]) == 0
    capsys.readouterr()
    assert main([*words[:-1], "2"]) == 2
    assert "begun with rates 1, and now it is 2" in capsys.readouterr().err
