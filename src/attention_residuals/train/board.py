"""Metrics as TensorBoard event files, for those who watch runs there."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from attention_residuals.errors import InputError

Watch: TypeAlias = Callable[[Mapping[str, Any]], None]
"""Told every record of `training_steps`."""


@contextmanager
def tensorboard(folder: Path) -> Iterator[Watch]:
    """Write each number of a record under its name while the body runs.

    Raises:
        InputError: TensorBoard is not installed.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise InputError("TensorBoard is not installed: pip install 'attention-residuals[tensorboard]'") from error
    with SummaryWriter(str(folder)) as writer:

        def watch(record: Mapping[str, Any]) -> None:
            for name, value in record.items():
                if isinstance(value, int | float) and name != "step":
                    writer.add_scalar(name, value, record["step"])

        yield watch
