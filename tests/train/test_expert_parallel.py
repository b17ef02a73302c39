"""Runs whose experts are spread: loss, norm, weights and biases of the run on one process, and its checkpoints."""

import dataclasses
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed.tensor import DTensor

from attention_residuals.distributed.layout import Parallel
from attention_residuals.distributed.mesh import open_mesh
from attention_residuals.distributed.ranks import run_on_ranks
from attention_residuals.hf.export import export
from attention_residuals.models import Experts, Gated, GroupedQuery, HybridConfig, build_decoder
from attention_residuals.streams import AttnRes, Sublayers
from attention_residuals.train import (
    AdamW,
    Constant,
    LocalEngine,
    Muon,
    Precision,
    Recompute,
    TextConfig,
    TrainConfig,
    load_trained,
    resume_training,
    start_training,
    training_steps,
)
from attention_residuals.train.checkpoint_state import moments_of, weights_of
from attention_residuals.train.loop import optimizer_step
from attention_residuals.train.mesh_engine import MeshEngine
from tests.train.support import DATA
from tests.train.test_mesh_engine import check, training_with

MODEL = HybridConfig(
    256,
    8,
    (GroupedQuery(2, 1, 4),) * 3,
    (Gated(12), Experts(8, experts=8, top_k=2), Experts(8, experts=4, top_k=2, shared=0)),
    residual=AttnRes(Sublayers(4)),
)
STEPS = 10


def config_of(parallel: Parallel, **changes: object) -> TrainConfig:
    config = TrainConfig(
        model=MODEL,
        steps=STEPS,
        text=TextConfig(sequence_tokens=DATA.sequence_tokens),
        optimizer=AdamW(clip_norm=0.5),
        schedule=Constant(),
        router_bias_rate=0.1,
        batch_sequences=8,
        parallel=parallel,
    )
    return dataclasses.replace(config, **changes)


def check_run(config: TrainConfig) -> None:
    """Steps, and the biases that the loads of all processes move."""
    local, spread = check(config, config.steps)
    routers, (part,) = dict(local.model.named_buffers()), spread.parts
    assert any(bias.any() for bias in routers.values())
    for name, bias in part.named_buffers():
        assert torch.equal(bias, routers[name]), name


def check_muon(layout: Parallel) -> None:
    """Ten steps: bfloat16 shows the order of summation, and losses part by no more than with other layouts."""
    config, losses = config_of(layout, optimizer=Muon()), []
    mesh = open_mesh(layout)
    local = LocalEngine(build_decoder(MODEL, seed=0, dtype=torch.float64), config)
    for engine in (local, MeshEngine(config, mesh, torch.float64)):
        training = training_with(engine, config)
        for step in range(STEPS):
            loss, _ = optimizer_step(training, DATA.batch(0, step, config.batch_sequences), step)
            peaks = engine.balance(config.router_bias_rate)
            assert len(peaks) == 2 and all(1 <= peak <= 4 for peak in peaks.values())
            losses.append(loss)
    assert losses[STEPS:] == pytest.approx(losses[:STEPS], rel=0, abs=1e-4)


def check_bfloat16(layout: Parallel) -> None:
    half = config_of(layout, precision=Precision.BFLOAT16)
    batch = DATA.batch(0, 0, half.batch_sequences)
    one, many = LocalEngine.build(half), MeshEngine(half, open_mesh(layout))
    losses = [float(engine.backward(batch)) for engine in (one, many)]
    norms = [float(engine.gradient_norm()) for engine in (one, many)]
    for numbers in (losses, norms):
        assert numbers[1] == pytest.approx(numbers[0], rel=torch.finfo(torch.bfloat16).eps)


def two_ranks(rank: int, folder: Path) -> None:
    replicas, shards = Parallel(replicas=2, experts=2), Parallel(shards=2, experts=2)
    check_run(config_of(replicas))
    check_run(config_of(shards, accumulate_parts=2, recompute=Recompute.FULL))
    for layout in (replicas, shards):
        check_muon(layout)
        check_bfloat16(layout)
    (folder / f"done-{rank}").touch()


def compiled(rank: int, folder: Path) -> None:
    check_run(config_of(Parallel(shards=2, experts=2), compile_sublayers=True, steps=2))
    (folder / f"done-{rank}").touch()


@pytest.mark.dist
@pytest.mark.parametrize("body", [two_ranks, pytest.param(compiled, marks=pytest.mark.slow)])
def test_a_run_with_spread_experts_is_the_run_on_one_process(body, tmp_path: Path) -> None:
    run_on_ranks(2, tmp_path, body)
    assert len(list(tmp_path.glob("done-*"))) == 2


LAYOUTS = (
    Parallel(shards=4, experts=2),
    Parallel(shards=4),
    Parallel(replicas=4, experts=2),
    Parallel(replicas=2, shards=2, experts=4),
    Parallel(shards=4, experts=2),
)


class Resumed:
    """This process's share of a run, at a checkpoint."""

    def __init__(self, layout: Parallel, path: Path):
        config = config_of(layout, optimizer=Muon())
        self.engine = MeshEngine(config, open_mesh(layout))
        self.training = training_with(self.engine, config)
        self.facts = self.engine.load(path, self.optimizers)
        self.step = self.facts.pop("step")

    @property
    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        return self.training.optimizer.by_name

    def train(self) -> None:
        optimizer_step(self.training, DATA.batch(0, self.step, 8), self.step)
        self.engine.balance(0.1)
        self.step += 1

    def save(self, folder: Path) -> Path:
        self.engine.save(folder, step=self.step, optimizers=self.optimizers, facts=self.facts, after=lambda: None)
        self.engine.finish_saves()
        return folder / f"step-{self.step:08d}"

    def everything(self) -> dict[str, Tensor]:
        tensors = {**weights_of(self.engine.parts), **moments_of(self.engine.parts, self.optimizers)}
        return {
            name: tensor.full_tensor() if isinstance(tensor, DTensor) else tensor.clone()
            for name, tensor in tensors.items()
        }


def four_ranks(rank: int, folder: Path) -> None:
    for layout in (LAYOUTS[0], LAYOUTS[3]):
        check_run(config_of(layout, steps=3))
    path = folder / "run" / "checkpoints" / "step-00000002"
    first = Resumed(LAYOUTS[0], path)
    first.train()
    expected = first.everything()
    path = first.save(path.parent)
    for number, layout in enumerate(LAYOUTS[1:]):
        resumed = Resumed(layout, path)
        found = resumed.everything()
        assert found.keys() == expected.keys()
        for name, tensor in found.items():
            assert torch.equal(tensor, expected[name]), f"{layout}: {name}"
        path = resumed.save(folder / str(number))
    if rank == 0:
        save_file(expected, folder / "expected.safetensors")
    (folder / f"done-{rank}").touch()


@pytest.mark.dist
def test_checkpoints_of_spread_experts_are_read_by_every_layout(tmp_path: Path) -> None:
    config = config_of(Parallel(), optimizer=Muon(), steps=4, checkpoint_every_steps=2, keep_checkpoints=5)
    training = start_training(config, DATA, tmp_path / "run", about={})
    for _ in zip(range(2), training_steps(training), strict=False):
        pass
    run_on_ranks(4, tmp_path, four_ranks)
    assert len(list(tmp_path.glob("done-*"))) == 4

    run = shutil.copytree(tmp_path / "run", tmp_path / "copy")
    trained, expected = load_trained(run), load_file(tmp_path / "expected.safetensors")
    assert trained.step == 3
    for name, tensor in trained.model.state_dict().items():
        assert torch.equal(tensor, expected[name]), name
    assert export(run, tmp_path / "out") == 3
    training = resume_training(run, config, DATA, print)
    assert [record["step"] for record in training_steps(training)] == [4]
