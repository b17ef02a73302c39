"""A model spread over the processes of a mesh, behind the same methods as a whole one."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from attention_residuals.distributed.checkpoints import open_writers_group
from attention_residuals.distributed.gradients import clip_gradients, gradient_norm, local_gradients
from attention_residuals.distributed.layout import leads
from attention_residuals.distributed.mesh import open_expert_mesh
from attention_residuals.distributed.runners import build_runner
from attention_residuals.distributed.tensor import reduce_whole, whole_parameters
from attention_residuals.models import Decoder
from attention_residuals.models.meta import without_values
from attention_residuals.nn import load_peak, update_router_biases
from attention_residuals.train.config import Precision, TrainConfig
from attention_residuals.train.engine import Engine
from attention_residuals.train.execution import autocast, prepare_execution
from attention_residuals.train.losses import losses_of_logits
from attention_residuals.train.probes import Probe
from attention_residuals.train.shared_checkpoints import PendingSave, begin_save, load_shares


class MeshEngine(Engine):
    """One process's place in a run over several.

    Args:
        mesh: of `open_mesh`, that of `config.parallel`.
    """

    def __init__(self, config: TrainConfig, mesh: DeviceMesh, dtype: torch.dtype = torch.float32):
        layout = config.parallel
        self.config, self.mesh, self.layout, self.leads = config, mesh, layout, leads()
        self._expert_mesh = open_expert_mesh(layout, mesh.device_type)
        self._rows = config.part_sequences // layout.data_ranks
        self._place = mesh["replica"].get_local_rank() * layout.shards + mesh["shard"].get_local_rank()
        self._writers: dist.ProcessGroup = open_writers_group()
        self._pending: PendingSave | None = None
        with without_values():
            self._whole = Decoder(config.model)
        self._runner = build_runner(
            config.model,
            layout,
            mesh,
            seed=config.seed,
            device=config.device,
            dtype=dtype,
            compute=torch.bfloat16 if config.precision is Precision.BFLOAT16 else dtype,
            rows=self._rows,
            tokens=config.text.sequence_tokens,
            loss=losses_of_logits,
            precision=lambda: autocast(config),
            prepare=lambda part: prepare_execution(part, config),
            expert_mesh=self._expert_mesh,
        )

    @property
    def parts(self) -> Sequence[Decoder]:
        return self._runner.parts

    @property
    def whole(self) -> Decoder:
        return self._whole

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Those of all parts."""
        return [parameter for part in self.parts for parameter in part.parameters()]

    def backward(self, batch: Int[Tensor, "sequences time"]) -> Tensor:
        parts, loss = batch.split(self.config.part_sequences), torch.zeros((), device=batch.device)
        for number, part in enumerate(parts):
            last = number == len(parts) - 1
            loss = loss + self._runner.backward(self._own(part), weight=1 / len(parts), last=last)
        if self.layout.tensor > 1:
            for part in self.parts:
                reduce_whole(whole_parameters(part, self.mesh["tensor"]), self.mesh["tensor"])
        return self._summed(loss)

    def gradient_norm(self) -> Tensor:
        return gradient_norm(self.parameters, self.mesh, self._expert_mesh)

    def clip_gradients(self, most: float, norm: Tensor) -> None:
        clip_gradients(self.parameters, most, norm)

    def balance(self, rate: float) -> dict[str, float]:
        found = {}
        for part in self.parts:
            loads = update_router_biases(part, rate, self._over_data_ranks)
            found |= {name: load_peak(load) for name, load in loads.items()}
        return found

    @torch.no_grad()
    def losses(self, windows: Int[Tensor, "windows time"]) -> Float[Tensor, "windows"]:
        size = self.config.part_sequences
        missing = -len(windows) % size  # all processes take as many turns, and a pipeline knows one shape
        windows = torch.cat((windows, windows[-1:].expand(missing, -1)))
        found = torch.zeros(len(windows), dtype=torch.float64, device=self.config.device)
        for begin in range(0, len(windows), size):
            rows = self._own(windows[begin : begin + size].to(self.config.device))
            mine = begin + self._place * self._rows
            found[mine : mine + self._rows] = self._runner.losses(rows).double()
        dist.all_reduce(found)
        return found[: len(found) - missing].cpu()

    def first_bad(self, batch: Int[Tensor, "sequences time"]) -> str:
        names = [name for name, _ in self.whole.named_parameters()]
        known = [*names, *(f"the gradient of {name}" for name in names)]
        held = {name: parameter for part in self.parts for name, parameter in part.named_parameters()}
        found = len(known)
        for place, name in enumerate(names):
            if name in held and not _local(held[name]).isfinite().all():
                found = min(found, place)
            if name in held and not all(grad.isfinite().all() for grad in local_gradients([held[name]])):
                found = min(found, len(names) + place)
        first = torch.tensor(found, device=self.config.device)
        dist.all_reduce(first, dist.ReduceOp.MIN)
        return [*known, "no parameter or gradient (the loss alone)"][int(first)]

    def probe(self, batch: Int[Tensor, "sequences time"]) -> Probe | None:
        return None

    def save(
        self, folder: Path, *, step: int, optimizers: Mapping[str, Optimizer], facts: Mapping[str, Any],
        after: Callable[[], object],
    ) -> None:  # fmt: skip
        self.finish_saves()
        self._pending = begin_save(
            folder, step=step, parts=self.parts, optimizers=optimizers, facts=facts, group=self._writers, after=after
        )

    def finish_saves(self) -> None:
        if self._pending is not None:
            pending, self._pending = self._pending, None
            pending.wait()

    def load(self, path: Path, optimizers: Mapping[str, Optimizer]) -> dict[str, Any]:
        return load_shares(path, parts=self.parts, optimizers=optimizers)

    def agree(self, wish: bool) -> bool:
        flag = torch.tensor(int(wish), dtype=torch.int32, device=self.config.device)
        dist.all_reduce(flag, dist.ReduceOp.MAX)
        return bool(flag)

    def _own(self, batch: Tensor) -> Tensor:
        """The sequences of this process."""
        return batch[self._place * self._rows : (self._place + 1) * self._rows]

    def _over_data_ranks(self, loads: Tensor) -> Tensor:
        for name in ("replica", "shard"):
            dist.all_reduce(loads, group=self.mesh[name].get_group())
        return loads

    def _summed(self, share: Tensor) -> Tensor:
        """A mean over the whole run from the shares of all processes."""
        total = share.double()
        dist.all_reduce(total)
        return total / self.layout.data_ranks


def _local(parameter: Tensor) -> Tensor:
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter
