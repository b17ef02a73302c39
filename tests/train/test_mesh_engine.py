"""Runs spread over processes: loss, gradient norm and weights of the run on one process, step by step."""

import dataclasses
from pathlib import Path

import pytest
import torch
from torch.distributed.tensor import DTensor

from attention_residuals.distributed.layout import Parallel, PipelineConfig, Schedule
from attention_residuals.distributed.mesh import open_mesh
from attention_residuals.distributed.ranks import run_on_ranks
from attention_residuals.models import DecoderConfig, build_decoder, kimi_linear
from attention_residuals.streams import Additive, AttnRes, Residual, Sublayers
from attention_residuals.train import (
    AdamW,
    Alarms,
    Constant,
    Engine,
    LocalEngine,
    Precision,
    Recompute,
    RunFolder,
    TextConfig,
    TrainConfig,
)
from attention_residuals.train.loop import Training, optimizer_step
from attention_residuals.train.mesh_engine import MeshEngine
from attention_residuals.train.optimizers import build_optimizers_of

from .support import DATA

STEPS = 20
RESIDUALS: dict[str, Residual] = {"standard": Additive(), "block": AttnRes(Sublayers(4)), "full": AttnRes()}
ONE_F_ONE_B, INTERLEAVED = PipelineConfig(2), PipelineConfig(2, Schedule.INTERLEAVED_1F1B)


def config_of(residual: Residual, parallel: Parallel, **changes: object) -> TrainConfig:
    config = TrainConfig(
        model=DecoderConfig(256, 3, 8, 4, 2, 4, 12, residual=residual),
        steps=STEPS,
        text=TextConfig(sequence_tokens=DATA.sequence_tokens),
        optimizer=AdamW(depth_learning_rate=0.05, clip_norm=0.5),
        schedule=Constant(),
        batch_sequences=8,
        parallel=parallel,
    )
    return dataclasses.replace(config, **changes)


def training_with(engine: Engine, config: TrainConfig) -> Training:
    optimizer = build_optimizers_of(engine.parts, config.optimizer)
    return Training(config, DATA, engine, optimizer, RunFolder(Path()), Alarms(256, 0))


def check(config: TrainConfig, steps: int = STEPS) -> tuple[LocalEngine, MeshEngine]:
    """The whole model beside its parts, in float64, over some optimiser steps."""
    mesh = open_mesh(config.parallel)
    plain = dataclasses.replace(config, compile_sublayers=False, recompute=Recompute.NONE)
    local = LocalEngine(build_decoder(config.model, seed=config.seed, dtype=torch.float64), plain)
    spread = MeshEngine(config, mesh, torch.float64)
    one, many = (training_with(engine, config) for engine in (local, spread))
    for step in range(steps):
        batch = DATA.batch(0, step, config.batch_sequences)
        expected, found = (optimizer_step(training, batch, step) for training in (one, many))
        assert found == pytest.approx(expected, rel=0, abs=1e-10)
        for engine in (local, spread):
            engine.balance(config.router_bias_rate)
    values = dict(local.model.named_parameters())
    for part in spread.parts:
        for name, parameter in part.named_parameters():
            whole = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
            torch.testing.assert_close(whole, values[name], rtol=0, atol=1e-10, msg=name)
    windows = DATA.validation_windows(11 * DATA.sequence_tokens)
    assert len(windows) % config.part_sequences
    torch.testing.assert_close(spread.losses(windows), local.losses(windows), rtol=0, atol=1e-10)
    return local, spread


def check_bfloat16(layout: Parallel) -> None:
    """Sublayers in bfloat16 on several processes are as far from float32 as on one, and as near to each other."""
    half = config_of(RESIDUALS["block"], layout, precision=Precision.BFLOAT16)
    plain = dataclasses.replace(half, precision=Precision.FLOAT32)
    batch, mesh = DATA.batch(0, 0, half.batch_sequences), open_mesh(layout)
    exact, one, many = LocalEngine.build(plain), LocalEngine.build(half), MeshEngine(half, mesh)
    losses = [float(engine.backward(batch)) for engine in (exact, one, many)]
    norms = [float(engine.gradient_norm()) for engine in (exact, one, many)]
    for numbers in (losses, norms):
        assert numbers[1] != numbers[0] and numbers[2] != numbers[0]
        assert numbers[2] == pytest.approx(numbers[1], rel=torch.finfo(torch.bfloat16).eps)


def two_ranks(rank: int, folder: Path) -> None:
    for residual in RESIDUALS.values():
        for layout in (Parallel(stages=2, pipeline=ONE_F_ONE_B), Parallel(shards=2), Parallel(tensor=2)):
            check(
                config_of(residual, layout, accumulate_parts=2),
                STEPS if layout.stages > 1 and residual is RESIDUALS["block"] else 4,
            )
    block = RESIDUALS["block"]
    check(config_of(block, Parallel(replicas=2), accumulate_parts=2, recompute=Recompute.FULL), 4)
    layout = Parallel(stages=2, chunks_per_stage=2, cuts=(0, 1, 3, 5), pipeline=INTERLEAVED)
    check(config_of(block, layout, recompute=Recompute.ALTERNATE), 4)
    for layout in (Parallel(stages=2, pipeline=ONE_F_ONE_B), Parallel(shards=2), Parallel(tensor=2)):
        check_bfloat16(layout)
    for layout in (Parallel(stages=2, pipeline=ONE_F_ONE_B), Parallel(shards=2)):
        check_hybrid(layout)
    (folder / f"done-{rank}").touch()


def check_hybrid(layout: Parallel) -> None:
    """Linear and latent attention and experts, whose routers move their biases by the loads of all processes."""
    config = config_of(RESIDUALS["block"], layout, accumulate_parts=2, router_bias_rate=0.1)
    config = dataclasses.replace(config, model=kimi_linear(4, residual=RESIDUALS["block"]))
    local, spread = check(config, 3)
    routers = {name: tensor for name, tensor in local.model.named_buffers() if name.endswith("router.bias")}
    held = {name: tensor for part in spread.parts for name, tensor in part.named_buffers()}
    assert any(tensor.abs().sum() > 0 for tensor in routers.values()) and held
    for name, tensor in held.items():
        torch.testing.assert_close(tensor, routers[name], rtol=0, atol=0, msg=name)


def compiled(rank: int, folder: Path) -> None:
    for residual in RESIDUALS.values():
        check(config_of(residual, Parallel(stages=2, pipeline=ONE_F_ONE_B), compile_sublayers=True), steps=2)
    check(config_of(RESIDUALS["block"], Parallel(shards=2), compile_sublayers=True), steps=2)
    (folder / f"done-{rank}").touch()


def four_ranks(rank: int, folder: Path) -> None:
    interleaved = Parallel(stages=2, chunks_per_stage=2, pipeline=INTERLEAVED)
    for name, number in (("shards", 2), ("replicas", 2), ("tensor", 2)):
        check(config_of(RESIDUALS["block"], dataclasses.replace(interleaved, **{name: number})), steps=4)
    check(config_of(RESIDUALS["full"], Parallel(tensor=2, shards=2), accumulate_parts=2), steps=4)
    check(config_of(RESIDUALS["full"], Parallel(replicas=2, shards=2), accumulate_parts=2), steps=4)
    (folder / f"done-{rank}").touch()


@pytest.mark.dist
@pytest.mark.parametrize(("ranks", "body"), [(2, two_ranks), (2, compiled), (4, four_ranks)])
def test_a_run_over_processes_is_the_run_on_one(ranks: int, body, tmp_path: Path) -> None:
    run_on_ranks(ranks, tmp_path, body)
    assert len(list(tmp_path.glob("done-*"))) == ranks
