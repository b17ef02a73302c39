"""The processes of a mesh as a team."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from attention_residuals.distributed.layout import leads, leads_its_machine
from attention_residuals.distributed.processes import joined, leader_first
from attention_residuals.train.config import TrainConfig
from attention_residuals.train.engine import Engine
from attention_residuals.train.mesh_engine import MeshEngine
from attention_residuals.train.runs import RunFolder, SilentFolder
from attention_residuals.train.team import Result, Team


class MeshTeam(Team):
    """The processes of a mesh; every one calls the same methods in the same order."""

    def __init__(self, mesh: DeviceMesh):
        self.mesh, self.leads = mesh, leads()

    def engine(self, config: TrainConfig) -> Engine:
        return MeshEngine(config, self.mesh)

    def folder(self, path: Path) -> RunFolder:
        return RunFolder(path) if self.leads else SilentFolder(path)

    def in_turn(self, act: Callable[[], Result]) -> Result:
        return leader_first(act, leader=self.leads)

    def in_turn_by_machine(self, act: Callable[[], Result]) -> Result:
        return leader_first(act, leader=leads_its_machine())

    def leaders(self, number: int) -> int:
        told = torch.tensor(number)
        dist.broadcast(told, src=0)
        return int(told)


@contextmanager
def mesh_team(config: TrainConfig) -> Iterator[MeshTeam]:
    """All processes that were started, joined while the body runs."""
    with joined(config.parallel, config.device) as mesh:
        yield MeshTeam(mesh)
