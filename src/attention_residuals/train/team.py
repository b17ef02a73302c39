"""Who takes part in a run: this process alone, or all that `torchrun` started."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from attention_residuals.distributed.layout import started_processes
from attention_residuals.errors import InputError
from attention_residuals.train.config import TrainConfig
from attention_residuals.train.engine import Engine, LocalEngine
from attention_residuals.train.memory import require_memory
from attention_residuals.train.runs import RunFolder

Result = TypeVar("Result")


class Team:
    """This process alone."""

    leads = True
    """Whether this process is the one that speaks and writes."""

    def engine(self, config: TrainConfig) -> Engine:
        """What the run computes with, at its initial weights."""
        return LocalEngine.build(config)

    def folder(self, path: Path) -> RunFolder:
        """The run's folder, which is there, for this process."""
        return RunFolder(path)

    def in_turn(self, act: Callable[[], Result]) -> Result:
        """`act` on the leader, then on the others; what is wrong there is wrong for all.

        Raises:
            InputError: the leader's, and on the others one that says no more.
        """
        return act()

    def in_turn_by_machine(self, act: Callable[[], Result]) -> Result:
        """The same with a leader on each machine: for what is prepared on its disk."""
        return act()

    def leaders(self, number: int) -> int:
        """The leader's number."""
        return number


ALONE = Team()


def require_fit(config: TrainConfig) -> None:
    """Refuse a run that cannot be spread as it asks, on every process alike and before any waits for another.

    Raises:
        InputError: other processes than were started; heads, layers, sequences or tokens that do not divide; probes; on
            one process, a model that is larger than its memory.
    """
    processes = started_processes()
    if config.parallel.processes == 1:
        require_memory(config.model, config.device)
    config.parallel.require_fit(config.model, config.part_sequences, config.text.sequence_tokens, processes)
    if config.probe_every_steps and processes > 1:
        raise InputError(
            f"probe_every_steps is {config.probe_every_steps}, and a probe takes the whole model on one process; set "
            "probe_every_steps=0, and probe checkpoints afterwards"
        )


@contextmanager
def assembled(config: TrainConfig) -> Iterator[Team]:
    """The team that `config.parallel` asks for, while the body runs.

    Raises:
        InputError: as in `require_fit`.
    """
    require_fit(config)
    if config.parallel.processes == 1:
        yield ALONE
        return
    from attention_residuals.train.mesh_team import mesh_team  # torch.distributed takes a second to import

    with mesh_team(config) as team:
        yield team
