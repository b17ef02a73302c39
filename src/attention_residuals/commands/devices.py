"""The device that a command was asked for."""

import torch

from attention_residuals.train import require_device


def device_or_default(name: str | None) -> str:
    """The device asked for, or the accelerator if there is one.

    Raises:
        InputError: a device that is not there.
    """
    if name is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    require_device(name)
    return name
