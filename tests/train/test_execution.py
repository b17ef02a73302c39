"""Accumulation, recomputation, compilation and precision change how a step is computed and not what it is."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from attention_residuals import Additive, AttnRes, DecoderConfig, InputError, Residual, Sublayers
from attention_residuals.train import Precision, Recompute, TokenData, TrainConfig, start_training, training_steps

TEXT = b"the quick brown fox jumps over the lazy dog, and the dog does not mind at all. " * 40
DATA = TokenData.from_bytes(TEXT, TEXT[:1000], 32)
STREAMS = [Additive(), AttnRes(), AttnRes(Sublayers(2)), AttnRes(Sublayers(2), two_phase=False)]


def losses(path: Path, residual: Residual, **changes: Any) -> list[float]:
    config = TrainConfig(model=DecoderConfig.from_depth(2, residual=residual), steps=4)
    training = start_training(dataclasses.replace(config, **changes), DATA, path, about={})
    return [record["loss"] for record in training_steps(training)]


@pytest.mark.parametrize("residual", STREAMS)
@pytest.mark.parametrize("recompute", [Recompute.ALTERNATE, Recompute.FULL])
def test_recomputation_changes_no_bit(tmp_path: Path, residual: Residual, recompute: Recompute) -> None:
    assert losses(tmp_path / "a", residual, recompute=recompute) == losses(tmp_path / "b", residual)


def test_recomputation_runs_each_sublayer_again(tmp_path: Path) -> None:
    config = TrainConfig(model=DecoderConfig.from_depth(2), steps=1, recompute=Recompute.ALTERNATE)
    training = start_training(config, DATA, tmp_path / "run", about={})
    calls: list[int] = []
    for i, sublayer in enumerate(training.model.sublayers.values()):
        sublayer.register_forward_pre_hook(lambda *_, i=i: calls.append(i))
    training.model(torch.zeros(1, 4, dtype=torch.int64)).sum().backward()
    assert sorted(calls) == [0, 0, 1, 2, 2, 3]


@pytest.mark.parametrize("parts", [2, 4])
def test_accumulated_parts_are_the_same_batch(tmp_path: Path, parts: int) -> None:
    whole = losses(tmp_path / "whole", AttnRes())
    parted = losses(tmp_path / "parted", AttnRes(), accumulate_parts=parts)
    # Float32 sums in another order, through four optimiser steps whose size does not shrink with the gradient.
    assert parted == pytest.approx(whole, rel=1e-4)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning", "ignore:.*is deprecated:DeprecationWarning")
def test_compiled_sublayers_give_the_same_losses(tmp_path: Path) -> None:
    plain = losses(tmp_path / "plain", AttnRes(Sublayers(2)))
    compiled = losses(tmp_path / "compiled", AttnRes(Sublayers(2)), compile_sublayers=True)
    assert compiled == pytest.approx(plain, rel=1e-4)


@pytest.mark.parametrize("residual", STREAMS)
def test_bfloat16_is_near_and_not_equal(tmp_path: Path, residual: Residual) -> None:
    exact, rounded = losses(tmp_path / "a", residual), losses(tmp_path / "b", residual, precision=Precision.BFLOAT16)
    assert rounded == pytest.approx(exact, rel=0.02)
    assert rounded != exact


def test_parts_that_do_not_divide_the_batch_are_refused() -> None:
    with pytest.raises(InputError, match="accumulate_parts is 3, which does not divide batch_sequences 4"):
        TrainConfig(model=DecoderConfig.from_depth(1), steps=1, accumulate_parts=3)


def test_a_vocabulary_that_is_too_small_is_refused(tmp_path: Path) -> None:
    config = TrainConfig(model=DecoderConfig.from_depth(1, vocab_size=100), steps=1)
    with pytest.raises(InputError, match=r"vocabulary of 100, the tokenizer bytes one of 256; set model\.vocab_size"):
        start_training(config, DATA, tmp_path / "run", about={})
