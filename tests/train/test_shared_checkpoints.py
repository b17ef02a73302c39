"""Checkpoints of several processes: to the last bit in every layout, refused when damaged, never half there.

A run on one process is the oracle: all processes keep it whole beside their shares, and compare with it.
"""

import itertools
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.multiprocessing.spawn import ProcessExitedException
from torch.optim import Optimizer

from attention_residuals import AttnRes, DecoderConfig, InputError, Sublayers, build_decoder
from attention_residuals.distributed.checkpoints import ShardFolder, open_writers_group
from attention_residuals.distributed.cuts import Transport
from attention_residuals.distributed.layout import Parallel, PipelineConfig, Schedule
from attention_residuals.distributed.mesh import open_mesh
from attention_residuals.distributed.pipeline import build_chunks
from attention_residuals.distributed.ranks import run_on_ranks
from attention_residuals.distributed.sharding import shard_parameters
from attention_residuals.distributed.tensor import shard_matrices
from attention_residuals.hf.export import export
from attention_residuals.train import (
    MATRICES_AND_QUERIES,
    AdamW,
    Muon,
    TrainConfig,
    build_optimizers,
    load_trained,
    resume_training,
    start_training,
    training_steps,
)
from attention_residuals.train.checkpoint_files import damage
from attention_residuals.train.checkpoint_state import moments_of, weights_of
from attention_residuals.train.checkpoints import (
    CheckpointError,
    latest_checkpoint,
    load_checkpoint,
    prune,
    read_facts,
    save_checkpoint,
)
from attention_residuals.train.shared_checkpoints import begin_save, load_shares
from tests.train.support import DATA, adamw, saved, small_model, train

MODEL = DecoderConfig(256, 3, 8, 4, 2, 2, 6, residual=AttnRes(Sublayers(4)), qk_norm=True)
"""Norms of 2 weights, of which 2 of 4 shares are empty; 6 hidden units, 3 on each of 2 processes, cut once more."""
CONFIG = TrainConfig(MODEL, steps=4, optimizer=AdamW(), checkpoint_every_steps=2, keep_checkpoints=5)
CONTROL = Muon(roles=MATRICES_AND_QUERIES)
RANKS = 4
LAYOUTS = {
    "mesh": Parallel(shards=2, tensor=2),
    "stages": Parallel(stages=2, chunks_per_stage=2, shards=2, pipeline=PipelineConfig(2, Schedule.INTERLEAVED_1F1B)),
    "shards": Parallel(shards=4),
    "copies": Parallel(replicas=2, shards=2),
}
Optimizers = Mapping[str, Optimizer]


def plain_adamw(parts: Sequence[nn.Module]) -> dict[str, Optimizer]:
    return {"adamw": torch.optim.AdamW([p for part in parts for p in part.parameters()], lr=1e-2, fused=True)}


def whole_model(path: Path, control: bool = False) -> tuple[list[nn.Module], Optimizers]:
    """The model of a checkpoint on this process alone."""
    model = build_decoder(MODEL, seed=1)
    optimizers = build_optimizers(model, CONTROL).by_name if control else plain_adamw([model])
    load_checkpoint(path, model=model, optimizers=optimizers)
    return [model], optimizers


def parts_of(parallel: Parallel) -> list[nn.Module]:
    """This process's parts, of other values than any checkpoint has."""
    mesh = open_mesh(parallel)
    if parallel.stages > 1:
        stage, cuts = mesh["stage"].get_local_rank(), parallel.cut(MODEL.sublayers)
        chunks = build_chunks(MODEL, cuts, stage, Transport.CACHED, seed=2)
        models = [chunk.part for chunk in chunks.values()]
    else:
        models = [build_decoder(MODEL, seed=2)]
    for model in models:
        if parallel.tensor > 1:
            shard_matrices(model, mesh["tensor"])
        names = ("replica", "shard") if parallel.replicas > 1 else ("shard",)
        shard_parameters(model, model.sublayers, mesh[names], torch.float32)
    return [*models]


def step(optimizers: Optimizers) -> None:
    """A step whose gradient is made of the weights, so that it needs no pass through the model."""
    for optimizer in optimizers.values():
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = parameter.detach().sin()
        optimizer.step()


def full(parts: Sequence[nn.Module], optimizers: Optimizers) -> dict[str, Tensor]:
    """Whole copies of everything that this process has a piece of."""
    tensors = {**weights_of(parts), **moments_of(parts, optimizers)}
    return {
        name: tensor.full_tensor().clone() if isinstance(tensor, DTensor) else tensor.clone()
        for name, tensor in tensors.items()
    }


def require_close(found: Mapping[str, Tensor], expected: Mapping[str, Tensor], tolerance: float) -> None:
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, expected[name], rtol=0, atol=tolerance, msg=name)


def every_layout(rank: int, folder: Path) -> None:
    group = open_writers_group()
    single = folder / "run" / "checkpoints" / "step-00000002"
    for name, parallel in LAYOUTS.items():
        parts, (whole, whole_optimizers) = parts_of(parallel), whole_model(single)
        optimizers = plain_adamw(parts)
        facts = load_shares(single, parts=parts, optimizers=optimizers)
        assert facts.pop("step") == 2
        require_close(full(parts, optimizers), full(whole, whole_optimizers), 0)
        for one in (optimizers, whole_optimizers):
            step(one)
        before = full(parts, optimizers)
        require_close(before, full(whole, whole_optimizers), 1e-6)

        place = folder / "run" / "checkpoints" if name == "mesh" else folder / name
        pending = begin_save(place, step=3, parts=parts, optimizers=optimizers, facts=facts, group=group)
        step(optimizers)  # training goes on
        path = pending.wait()
        assert path.name == "step-00000003" and damage(path) is None
        require_close(before, ShardFolder(path).read_whole(before), 0)
        step(whole_optimizers)
        require_close(full(parts, optimizers), full(whole, whole_optimizers), 1e-6)

    places = {name: folder / name / "step-00000003" for name in LAYOUTS}
    places["mesh"] = folder / "run" / "checkpoints" / "step-00000003"
    for source, target in itertools.pairwise((*LAYOUTS, "mesh")):
        parts, (whole, whole_optimizers) = parts_of(LAYOUTS[target]), whole_model(places[source])
        optimizers = plain_adamw(parts)
        step(optimizers)  # what was there before must not shine through
        load_shares(places[source], parts=parts, optimizers=optimizers, group=group)
        require_close(full(parts, optimizers), full(whole, whole_optimizers), 0)
        for one in (optimizers, whole_optimizers):
            step(one)
        require_close(full(parts, optimizers), full(whole, whole_optimizers), 1e-6)
    refusals(rank, folder, group)
    (folder / f"done-{rank}").touch()


def refusals(rank: int, folder: Path, group: dist.ProcessGroup) -> None:
    """All processes refuse alike, and no trace is left."""
    import resource

    place, parts = folder / "shards", parts_of(LAYOUTS["shards"])
    optimizers = plain_adamw(parts)
    state = {"parts": parts, "optimizers": optimizers}
    last = place / "step-00000003"
    with pytest.raises(InputError, match="optimisers 'adamw' and this run has none"):
        load_shares(last, parts=parts, optimizers={})
    with pytest.raises(InputError, match="is of another model: it has unexpected"):
        load_shares(last, parts=[], optimizers={})
    with pytest.raises(CheckpointError, match="step-00000003, later than step 1"):
        begin_save(place, step=1, **state, facts={}, group=group).wait()
    with pytest.raises(CheckpointError, match="step-00000003 holds another state of the same step"):
        begin_save(place, step=3, **state, facts={}, group=group).wait()
    load_shares(last, **state)
    written = (last / "state.json").stat()
    begin_save(place, step=3, **state, facts={}, group=group).wait()
    assert (last / "state.json").stat() == written, "the same state again changes nothing"

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    if rank == 1:  # a full disk
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    pending = begin_save(place, step=4, **state, facts={}, group=group)
    with pytest.raises(CheckpointError, match=r"cannot write step-00000004 in .*File too large.* are free there; ear"):
        pending.wait()
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    dist.barrier()
    assert list(place.iterdir()) == [last]

    dist.barrier()
    begin_save(place, step=4, **state, facts={}, group=group, after=lambda: prune(place, 1)).wait()
    assert [path.name for path in place.iterdir()] == ["step-00000004"]


def with_muon(rank: int, folder: Path, group: dist.ProcessGroup) -> None:
    """Momenta of matrices and, as rows, of vectors: from one process to shares, and from these to others."""
    source = folder / "control" / "step-00000001"
    for number, name in enumerate(("shards", "mesh"), 2):
        parts, (whole, whole_optimizers) = parts_of(LAYOUTS[name]), whole_model(source, control=True)
        optimizers = build_optimizers(parts[0], CONTROL).by_name
        load_shares(source, parts=parts, optimizers=optimizers)
        found = full(parts, optimizers)
        assert found.keys() == full(whole, whole_optimizers).keys()
        require_close(found, full(whole, whole_optimizers), 0)
        source = begin_save(
            folder / "control", step=number, parts=parts, optimizers=optimizers, facts={}, group=group
        ).wait()


def all_of_it(rank: int, folder: Path) -> None:
    every_layout(rank, folder)
    with_muon(rank, folder, open_writers_group())


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints in every layout; that of the mesh is the latest of a run."""
    folder = tmp_path_factory.mktemp("shared")
    training = start_training(CONFIG, DATA, folder / "run", about={})
    for _ in zip(range(2), training_steps(training), strict=False):
        pass
    model = build_decoder(MODEL, seed=0)
    optimizers = build_optimizers(model, CONTROL).by_name
    train(model, optimizers, range(2))
    save_checkpoint(folder / "control", step=1, model=model, optimizers=optimizers, facts={})
    run_on_ranks(RANKS, folder, all_of_it)
    return folder


@pytest.mark.dist
def test_every_layout_reads_what_every_other_wrote(shared: Path) -> None:
    assert len(list(shared.glob("done-*"))) == RANKS
    model = build_decoder(MODEL, seed=1)
    optimizers = build_optimizers(model, CONTROL).by_name
    load_checkpoint(shared / "control" / "step-00000003", model=model, optimizers=optimizers)
    again, again_optimizers = whole_model(shared / "control" / "step-00000001", control=True)
    require_close(full([model], optimizers), full(again, again_optimizers), 0)


@pytest.mark.dist
def test_a_shared_run_is_used_exported_and_resumed_by_one_process(shared: Path, tmp_path: Path) -> None:
    run = shutil.copytree(shared / "run", tmp_path / "run")
    path = run / "checkpoints" / "step-00000003"
    assert latest_checkpoint(run / "checkpoints") == path
    assert read_facts(path) == read_facts(path.with_name("step-00000002"))
    (model,), _ = whole_model(path)
    tokens, trained = DATA.batch(0, 0, 2), load_trained(run)
    assert trained.step == 3 and torch.equal(trained.model(tokens), model(tokens))
    assert export(run, tmp_path / "out") == 3
    assert [file.name for file in (tmp_path / "out").glob("*.safetensors")] == ["model.safetensors"]

    training = resume_training(run, CONFIG, DATA, print)
    assert [record["step"] for record in training_steps(training)] == [4]
    prune(run / "checkpoints", keep_last=1)
    assert [found.name for found in (run / "checkpoints").iterdir()] == ["step-00000004"]


@pytest.mark.dist
def test_a_damaged_shard_is_named(shared: Path, tmp_path: Path) -> None:
    def copy() -> tuple[Path, list[Path]]:
        folder = shutil.copytree(shared / "copies", tmp_path / str(len(list(tmp_path.iterdir()))))
        path = folder / "step-00000003"
        return path, sorted(path.glob("shard-*"))

    path, (first, second, *_) = copy()
    os.truncate(second, second.stat().st_size - 1)
    assert f"damaged: {second.name} has {second.stat().st_size} bytes and was" in str(damage(path))

    path, (first, second, *_) = copy()
    for old, new in ((first, path / "kept"), (second, first), (path / "kept", second)):
        old.rename(new)
    assert f"damaged: {first.name} has" in str(damage(path))

    path, (first, second, *_) = copy()
    second.unlink()
    assert f"damaged: {second.name} cannot be read (No such file" in str(damage(path))

    path, (first, *_) = copy()
    shutil.copy(first, path / "shard-00009-model-00001-of-00001.safetensors")
    assert "damaged: shard-00009-model-00001-of-00001.safetensors is not in manifest.json" in str(damage(path))
    (model,), optimizers = whole_model(shared / "copies" / "step-00000003")
    with pytest.raises(CheckpointError, match="shard-00009"):
        load_shares(path, parts=[model], optimizers=optimizers)
    with pytest.raises(CheckpointError, match="shard-00009"):
        load_checkpoint(path, model=model, optimizers=optimizers)


def killed_in_mid_save(rank: int, folder: Path) -> None:
    group, model = open_writers_group(), small_model()
    optimizers = adamw(model)
    train(model, optimizers, range(1))
    begin_save(folder / "saves", step=1, parts=[model], optimizers=optimizers, facts={}, group=group).wait()
    train(model, optimizers, range(1, 2))
    if rank == 1:
        os.fsync = lambda descriptor: os.kill(os.getpid(), 9)  # its file is written and not yet on the disk
    begin_save(folder / "saves", step=2, parts=[model], optimizers=optimizers, facts={}, group=group).wait()


@pytest.mark.dist
def test_a_kill_in_mid_save_leaves_the_save_before(tmp_path: Path) -> None:
    with pytest.raises(ProcessExitedException):
        run_on_ranks(2, tmp_path, killed_in_mid_save)
    folder = tmp_path / "saves"
    assert not (folder / "step-00000002").exists()
    path = latest_checkpoint(folder)
    assert path is not None and path.name == "step-00000001"
    model = small_model()
    optimizers = adamw(model)
    assert load_checkpoint(path, model=model, optimizers=optimizers)["step"] == 1
    expected = small_model()
    train(expected, adamw(expected), range(1))
    assert all(map(torch.equal, model.state_dict().values(), expected.state_dict().values()))
    (folder / ".tmp-step-00000002").mkdir(exist_ok=True)  # unless the first process has mended it
    saved(folder, 2)
    assert sorted(found.name for found in folder.iterdir()) == ["step-00000001", "step-00000002"]
