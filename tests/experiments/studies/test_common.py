"""Shapes of studies, and what all runs share."""

import dataclasses

import pytest

from attention_residuals import InputError, Sublayers
from attention_residuals.configs import to_plain
from attention_residuals.experiments.compute import matrix_parameters, training_operations
from attention_residuals.experiments.studies.common import (
    Common,
    arm_name,
    block_sublayers,
    count_parameters,
    require_arms,
    thin_decoder,
    tune,
    with_arm,
)
from attention_residuals.models import Gated, GroupedQuery, HybridConfig
from attention_residuals.streams import AttnRes
from attention_residuals.train import AdamW


@pytest.mark.parametrize("layers", range(1, 65))
def test_every_depth_makes_a_decoder(layers: int) -> None:
    config = thin_decoder(layers)
    assert config.heads == 2 * config.kv_heads and config.heads * config.head_dim == config.width
    assert config.head_dim % 2 == 0
    assert count_parameters(config) > 0
    if layers >= 7:
        assert 2.9 < config.width / layers < 3.8, "deep and thin"
        assert 8 / 3 <= config.mlp_width / config.width < 3.4
        assert 9 <= config.head_dim <= 18


def test_the_default_sizes_span_what_is_promised() -> None:

    inner = [matrix_parameters(to_plain(thin_decoder(layers))) - 256 * thin_decoder(layers).width for layers in (7, 14)]
    assert inner[0] == pytest.approx(0.05e6, rel=0.15) and inner[1] == pytest.approx(0.36e6, rel=0.15)


@pytest.mark.parametrize("layers", [1, 4, 7, 8, 10, 12, 14, 27])
def test_block_makes_about_eight_blocks(layers: int) -> None:
    blocks = -(-2 * layers // block_sublayers(layers))
    assert blocks <= 8 and (blocks >= 6 or layers < 6)
    assert with_arm(thin_decoder(layers), "block").residual == AttnRes(Sublayers(block_sublayers(layers)))


def test_only_a_bare_block_gets_its_size_from_the_depth() -> None:
    names = {"block": "block4", "block+sum": "block4+sum", "block2": "block2", "full+sum": "full+sum", "mhc": "mhc"}
    assert {name: arm_name(name, 14) for name in names} == names


def test_arms_share_all_sizes() -> None:

    model = thin_decoder(4)
    assert dataclasses.replace(with_arm(model, "full"), residual=model.residual) == model


def test_layers_as_data_take_arms_as_others_do() -> None:
    model = HybridConfig(32, 8, (GroupedQuery(1, 1, 8),) * 8, (Gated(8),) * 8)
    assert with_arm(model, "block") == dataclasses.replace(model, residual=AttnRes(Sublayers(2)))


def test_a_tuning_may_have_a_length_and_a_label_of_its_own() -> None:
    trial = tune(Common(), "a", thin_decoder(2), {}, steps=7, labels={"kind": "dense"}).runs[0]
    assert trial.config.steps == 7
    assert trial.labels == {"part": "tune", "layers": 2, "width": 8, "learning_rate": 1e-2, "kind": "dense"}


def test_runs_are_as_long_as_asked() -> None:
    common, model = Common(tokens_per_parameter=20), thin_decoder(7)
    tokens = common.steps(model) * common.step_tokens
    assert tokens / count_parameters(model) == pytest.approx(20, rel=0.01)
    config = common.run("a", model, steps=100, seed=3, learning_rate=1e-3)
    assert config.checkpoint_every_steps == 13
    assert config.optimizer == AdamW(learning_rate=1e-3) and config.seed == 3


def test_steps_for_equal_compute() -> None:
    common = Common()
    small, large = thin_decoder(7), thin_decoder(14)
    operations = 1e12

    for model in (small, large):
        steps = common.steps_for(operations, model)
        found = training_operations(to_plain(model), 256, steps * common.step_tokens)
        assert found == pytest.approx(operations, rel=0.01)


@pytest.mark.parametrize(
    ("seeds", "message"),
    [((), "no seed named"), ((1, 1), "seed 1 is named twice"), ((0, 1), "seed 0 tunes the baseline")],
)
def test_seeds_that_cannot_be_compared_are_refused(seeds: tuple[int, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Common().require_seeds(seeds)


@pytest.mark.parametrize(
    ("arms", "message"),
    [((), "no arm named"), (("full", "full"), "arm full is named twice"), (("standard", "wide"), "'wide' is no model")],
)
def test_arms_that_cannot_be_compared_are_refused(arms: tuple[str, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        require_arms(arms, thin_decoder(2))


def test_tokens_a_parameter_must_be_positive() -> None:
    with pytest.raises(InputError, match="tokens a parameter are 0"):
        Common(tokens_per_parameter=0)
