"""Shards: every bit of every tensor, whatever the layout at writing and at reading, each piece in one file once."""

import json
from collections import Counter
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor

from attention_residuals import InputError
from attention_residuals.distributed.checkpoints import ShardFolder, open_writers_group, write_shards
from attention_residuals.distributed.ranks import run_on_ranks

RANKS = 4
OVER_BOTH, OVER_ONE = (Shard(0), Shard(1)), (Replicate(), Shard(0))
PLACEMENTS: dict[str, tuple[Placement, ...]] = {
    "matrix": OVER_BOTH,
    "copied": OVER_ONE,
    "short": (Shard(0), Shard(0)),
    "everywhere": (Replicate(), Replicate()),
    "half": OVER_ONE,
}
"""On a mesh of 2 x 2; the other tensors are plain."""


def whole_tensors() -> dict[str, Tensor]:
    """Sizes that 2 and 4 do not divide, one with fewer rows than there are processes, scalars, three types."""
    generator = torch.Generator().manual_seed(0)
    return {
        "matrix": torch.randn(7, 5, generator=generator),
        "copied": torch.randn(5, 3, generator=generator, dtype=torch.float64),
        "short": torch.randn(2, 3, generator=generator),
        "everywhere": torch.randn(4, generator=generator),
        "half": torch.randn(9, 2, generator=generator).bfloat16(),
        "plain": torch.randn(3, 4, generator=generator).t(),
        "optimiser/plain/step": torch.tensor(3.0),
        "count": torch.tensor(2**40 + 1),
        "stage 0": torch.randn(3, 3, generator=generator),
        "stage 1": torch.randn(2, generator=generator),
    }


def shared(mesh: DeviceMesh, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """What this process holds: stages are two rows of the mesh, and their tensors lie on that row alone."""
    row = f"stage {mesh.get_local_rank(0)}"
    found = {name: distribute_tensor(tensors[name].clone(), mesh, where) for name, where in PLACEMENTS.items()}
    found |= {row: distribute_tensor(tensors[row].clone(), mesh["column"], [Shard(0)])}
    return found | {name: tensors[name].clone() for name in ("plain", "optimiser/plain/step", "count")}


def four_ranks(rank: int, folder: Path) -> None:
    group, tensors = open_writers_group(), whole_tensors()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("row", "column"))
    held = shared(mesh, tensors)

    def finish(notes: list[dict[str, int]]) -> None:
        (folder / "notes.json").write_text(json.dumps(notes))

    pending = write_shards(folder / "shards", held, group, note={"rank": rank}, finish=finish)
    for tensor in held.values():  # training goes on
        tensor.zero_()
    dist.all_reduce(torch.ones(1))
    pending.wait()
    assert pending.done() and (folder / "notes.json").exists()

    line = init_device_mesh("cpu", (RANKS,))
    for source in ("shards", "plain"):
        into = {
            name: distribute_tensor(torch.full_like(tensor, -1), line, [Shard(tensor.ndim - 1)])
            if tensor.ndim
            else torch.full_like(tensor, -1)
            for name, tensor in tensors.items()
        }
        ShardFolder(folder / source).read_into(into)
        for name, tensor in into.items():
            full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
            assert torch.equal(full, tensors[name]), name
    failures(rank, folder, group)


def failures(rank: int, folder: Path, group: dist.ProcessGroup) -> None:
    """What fails on one process fails on all, as itself."""

    def refuse(*notes: object) -> None:
        raise InputError(f"refused on {rank}")

    for place in ("prepare", "finish"):
        with pytest.raises(InputError, match="refused on 0"):
            write_shards(folder / "refused", {f"of {rank}": torch.ones(2)}, group, **{place: refuse}).wait()
    missing = folder / "missing"
    with pytest.raises(FileNotFoundError, match="missing/shard-00001"):
        write_shards(missing, {f"of {rank}": torch.ones(2)}, group, prepare=lambda: None).wait()
    assert not missing.exists()


@pytest.mark.dist
def test_shards_are_the_whole_to_the_last_bit(tmp_path: Path) -> None:
    tensors = whole_tensors()
    (tmp_path / "plain").mkdir()
    half = {name: tensor.contiguous() for name, tensor in list(tensors.items())[:4]}
    save_file(half, tmp_path / "plain" / "model.safetensors")
    rest = {name: tensor.contiguous() for name, tensor in tensors.items() if name not in half}
    save_file(rest, tmp_path / "plain" / "optimizer.safetensors")
    run_on_ranks(RANKS, tmp_path, four_ranks)

    assert json.loads((tmp_path / "notes.json").read_text()) == [{"rank": rank} for rank in range(RANKS)]
    files = sorted((tmp_path / "shards").iterdir())
    assert [file.name for file in files] == [f"shard-0000{r}-model-00001-of-00001.safetensors" for r in (1, 2, 3, 4)]
    found = ShardFolder(tmp_path / "shards").read_whole()
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor), name
    written: Counter[str] = Counter()
    for file in files:
        with safe_open(file, "pt") as content:
            written.update({name: content.get_tensor(name).numel() for name in content.keys()})  # noqa: SIM118
    assert written == {name: tensor.numel() for name, tensor in tensors.items()}
    assert ShardFolder(tmp_path / "shards").read_whole(["count"]).keys() == {"count"}
    files[3].unlink()
    with pytest.raises(InputError, match="shards lacks pieces of matrix; use another folder"):
        ShardFolder(tmp_path / "shards")


def test_tensors_that_do_not_fit_are_refused_and_nothing_is_read(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2), "b": torch.ones(2, 3)}, tmp_path / "x.safetensors")
    folder, first = ShardFolder(tmp_path), torch.zeros(2)
    with pytest.raises(InputError, match="has no tensor c"):
        folder.read_into({"a": first, "c": torch.zeros(2)})
    with pytest.raises(InputError, match=r"b is torch.float32 \[2, 3\] in .*, not torch.float64 \[2, 3\]"):
        folder.read_into({"a": first, "b": torch.zeros(2, 3, dtype=torch.float64)})
    with pytest.raises(InputError, match=r"not torch.float32 \[3, 2\]"):
        folder.read_into({"a": first, "b": torch.zeros(3, 2)})
    assert not first.any()
