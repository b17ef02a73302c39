"""Figures: right numbers in the right panels, nothing drawn where there is nothing."""

import pytest
from matplotlib import pyplot

from attention_residuals.experiments.figures import depth_weights, loss_curves, smoothed
from attention_residuals.experiments.results import Comparison, Run


def run(name: str, weights: list[list[float]]) -> Run:
    steps = [{"step": n, "tokens": n, "seconds": n, "loss": 2.0, "validation_loss": 2.5} for n in (1, 2, 3)]
    probe = {"depth_weights": weights, "source_names": ["embedding", "block 1"]}
    return Run(name, 0, {"data": {"unigram_entropy": 3.0}}, steps, {"validation_loss": 2.5}, [], probe, "")


def test_heat_maps_part_attention_and_mlp_reads() -> None:
    figure = depth_weights(run("block", [[1.0], [0.3, 0.7], [0.4, 0.6], [0.2, 0.8], [0.5, 0.5]]))
    assert figure is not None
    attention, mlp, head = (figure.axes[n].images[0].get_array() for n in (0, 1, 2))
    assert attention is not None and mlp is not None and head is not None
    assert attention[0, 0] == 1.0 and attention[1].tolist() == [0.4, 0.6]
    assert mlp.tolist() == [[0.3, 0.7], [0.2, 0.8]]
    assert head.tolist() == [[0.5, 0.5]]
    pyplot.close(figure)


def test_a_run_without_depth_weights_gives_no_heat_map() -> None:
    assert depth_weights(run("standard", [])) is None


def test_loss_curves_show_every_model() -> None:
    comparison = Comparison(["a", "b"], [0], {("a", 0): run("a", []), ("b", 0): run("b", [])})
    figure = loss_curves(comparison)
    legend = figure.axes[0].get_legend()
    assert legend is not None
    labels = [text.get_text() for text in legend.get_texts()]
    assert labels == ["a", "b"]
    pyplot.close(figure)


def test_smoothing_is_a_trailing_mean() -> None:
    assert smoothed([1.0, 2.0, 6.0]) == pytest.approx([1.0, 1.5, 3.0])
    assert smoothed([0.0] * 25 + [25.0])[-1] == pytest.approx(1.0)
