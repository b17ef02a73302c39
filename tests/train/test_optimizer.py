"""Groups by role, never by shape, and the schedule."""

import pytest
import torch

from attention_residuals import AttnRes, DecoderConfig, InputError, build_decoder
from attention_residuals.train import OptimizerConfig, build_adamw, describe_groups
from attention_residuals.train.optimizer import set_rate

CONFIG = OptimizerConfig(learning_rate=1e-2, depth_learning_rate=3e-3, weight_decay=0.2)


def adamw() -> torch.optim.AdamW:
    return build_adamw(build_decoder(DecoderConfig.from_depth(2, residual=AttnRes()), seed=0), CONFIG)


def test_depth_parameters_have_their_own_rate_and_no_decay() -> None:
    depth = [group for group in adamw().param_groups if group["role"].startswith("depth")]
    assert {group["role"] for group in depth} == {"depth query", "depth norm"}
    for group in depth:
        assert group["lr"] == 3e-3 and group["weight_decay"] == 0
        assert all(name.startswith(("stream.queries.", "stream.key_norms.")) for name in group["names"])
        assert len(group["params"]) == 4  # sublayers 1 to 3 and the output read


def test_only_matrices_are_decayed() -> None:
    for group in adamw().param_groups:
        assert (group["weight_decay"] > 0) == (group["role"] in ("matrix", "output matrix"))


def test_every_parameter_is_in_one_group() -> None:
    model = build_decoder(DecoderConfig.from_depth(2, residual=AttnRes()), seed=0)
    names = [name for group in build_adamw(model, CONFIG).param_groups for name in group["names"]]
    assert sorted(names) == sorted(name for name, _ in model.named_parameters())


def test_the_description_counts_what_is_there() -> None:
    rows = describe_groups(adamw())
    assert sum(row["tensors"] for row in rows) == sum(len(group["params"]) for group in adamw().param_groups)
    assert [row["learning_rate"] for row in rows if row["role"] == "depth query"] == [3e-3]


def test_the_rate_warms_up_and_comes_down() -> None:
    factors = [CONFIG.factor(step, 100) for step in range(100)]
    assert factors[0] == pytest.approx(1 / 5) and max(factors) == factors[5] == 1
    assert factors[5:] == sorted(factors[5:], reverse=True)
    assert CONFIG.factor(100, 100) == pytest.approx(CONFIG.final_share)


def test_a_rate_scales_every_group() -> None:
    optimizer = adamw()
    set_rate(optimizer, 0.5)
    assert {group["role"]: group["lr"] for group in optimizer.param_groups}["depth query"] == 1.5e-3
    set_rate(optimizer, 1.0)
    assert all(group["lr"] == group["peak_lr"] for group in optimizer.param_groups)


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_a_rate_that_is_none_is_refused(value: float) -> None:
    with pytest.raises(InputError, match="depth_learning_rate is"):
        OptimizerConfig(depth_learning_rate=value)
