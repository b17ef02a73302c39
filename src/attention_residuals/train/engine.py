"""What a run computes with: losses and gradients of the whole model, on one process or on several."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.optim import Optimizer

from attention_residuals.models import Decoder, build_decoder
from attention_residuals.nn import load_peak, update_router_biases
from attention_residuals.train.checkpoints import load_checkpoint, save_checkpoint
from attention_residuals.train.config import TrainConfig
from attention_residuals.train.execution import autocast, prepare_execution
from attention_residuals.train.faults import first_bad_tensor
from attention_residuals.train.losses import token_losses
from attention_residuals.train.probes import Probe, probe


class Engine(ABC):
    """A model and the processes it runs on. Every process of a run calls the same methods in the same order.

    A batch is that of the whole run, `[B, T + 1]`, on every process; each takes what is its own.
    """

    leads: bool
    """Whether this process is the one that speaks and writes."""

    @property
    @abstractmethod
    def parts(self) -> Sequence[Decoder]:
        """What this process holds; parameters are named as in the whole model."""

    @property
    @abstractmethod
    def whole(self) -> Decoder:
        """The whole model, to be described; on the meta device where no process holds it."""

    @abstractmethod
    def backward(self, batch: Int[Tensor, "sequences time"]) -> Tensor:
        """Mean loss of a batch in nats a token, 0-d; its gradients are added to those of the parameters."""

    @abstractmethod
    def gradient_norm(self) -> Tensor:
        """Norm of the gradient of the whole model, 0-d."""

    @abstractmethod
    def clip_gradients(self, most: float, norm: Tensor) -> None:
        """Scale the gradients so that their norm, which is `norm`, is at most `most`."""

    @abstractmethod
    def balance(self, rate: float) -> dict[str, float]:
        """After the optimiser's step: move the biases of all routers towards equal loads.

        Returns, by router of this process, the largest load of the step over the mean; empty without experts.
        """

    @abstractmethod
    def losses(self, windows: Int[Tensor, "windows time"]) -> Float[Tensor, "windows"]:
        """Mean loss of each window in nats a token, in float64 on the CPU; computed as training computes."""

    @abstractmethod
    def first_bad(self, batch: Int[Tensor, "sequences time"]) -> str:
        """Name of the first tensor that is not finite."""

    @abstractmethod
    def probe(self, batch: Int[Tensor, "sequences time"]) -> Probe | None:
        """What happens along the depth on one batch; None where no process holds the whole model."""

    @abstractmethod
    def save(
        self,
        folder: Path,
        *,
        step: int,
        optimizers: Mapping[str, Optimizer],
        facts: Mapping[str, Any],
        after: Callable[[], object],
    ) -> None:
        """Save the state after `step` steps in `folder`, then do `after`; perhaps while training goes on.

        Raises:
            CheckpointError: it cannot be written, or the save before could not.
        """  # fmt: skip

    @abstractmethod
    def finish_saves(self) -> None:
        """Wait until every save is whole and on the disk.

        Raises:
            CheckpointError: one could not be written.
        """

    @abstractmethod
    def load(self, path: Path, optimizers: Mapping[str, Optimizer]) -> dict[str, Any]:
        """Put a checkpoint's state into the parts and their optimisers; its facts and its `step`.

        Raises:
            InputError: it is damaged, or of another model or other optimisers; nothing has changed then.
        """

    @abstractmethod
    def agree(self, wish: bool) -> bool:
        """Whether any process wishes it."""


class LocalEngine(Engine):
    """A whole model on one process."""

    leads = True

    def __init__(self, model: Decoder, config: TrainConfig):
        self.model, self.config = model, config
        prepare_execution(model, config)

    @classmethod
    def build(cls, config: TrainConfig) -> "LocalEngine":
        """With the initial weights of a run."""
        return cls(build_decoder(config.model, seed=config.seed, device=config.device), config)

    @property
    def parts(self) -> Sequence[Decoder]:
        return (self.model,)

    @property
    def whole(self) -> Decoder:
        return self.model

    def backward(self, batch: Int[Tensor, "sequences time"]) -> Tensor:
        loss = torch.zeros((), device=batch.device)
        for part in batch.split(self.config.part_sequences):
            with autocast(self.config):
                part_loss = token_losses(self.model, part).mean() / self.config.accumulate_parts
            part_loss.backward()
            loss = loss + part_loss.detach()
        return loss

    def gradient_norm(self) -> Tensor:
        gradients = [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]
        return torch.nn.utils.get_total_norm(gradients)

    def clip_gradients(self, most: float, norm: Tensor) -> None:
        torch.nn.utils.clip_grads_with_norm_(self.model.parameters(), most, norm)

    def balance(self, rate: float) -> dict[str, float]:
        return {name: load_peak(load) for name, load in update_router_biases(self.model, rate).items()}

    @torch.no_grad()
    def losses(self, windows: Int[Tensor, "windows time"]) -> Float[Tensor, "windows"]:
        found = []
        for part in windows.split(self.config.part_sequences):
            with autocast(self.config):
                losses = token_losses(self.model, part.to(self.config.device))
            found.append(losses.double().mean(-1).cpu())
        return torch.cat(found)

    def first_bad(self, batch: Int[Tensor, "sequences time"]) -> str:
        with autocast(self.config):
            return first_bad_tensor(self.model, batch.to(self.config.device).split(self.config.part_sequences))

    def probe(self, batch: Int[Tensor, "sequences time"]) -> Probe | None:
        return probe(self.model, batch[: self.config.part_sequences])

    def save(
        self, folder: Path, *, step: int, optimizers: Mapping[str, Optimizer], facts: Mapping[str, Any],
        after: Callable[[], object],
    ) -> None:  # fmt: skip
        save_checkpoint(folder, step=step, model=self.model, optimizers=optimizers, facts=facts)
        after()

    def finish_saves(self) -> None:
        pass

    def load(self, path: Path, optimizers: Mapping[str, Optimizer]) -> dict[str, Any]:
        return load_checkpoint(path, model=self.model, optimizers=optimizers)

    def agree(self, wish: bool) -> bool:
        return wish
