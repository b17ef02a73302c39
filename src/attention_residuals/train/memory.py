"""Whether a run can fit into the memory that there is, before hours go by or the machine goes down."""

import os

import torch

from attention_residuals.errors import InputError
from attention_residuals.models import BackboneConfig, count_parameters

BYTES_PER_PARAMETER = 12
"""Float32 weights, gradients and one moment, the least that any optimiser here keeps; activations come on top."""


def require_memory(model: BackboneConfig, device: str) -> None:
    """Refuse a model whose training state alone is more than one device has.

    Raises:
        InputError: it names both sizes.
    """
    parameters = count_parameters(model).parameters
    needed, there = parameters * BYTES_PER_PARAMETER, device_bytes(device)
    if there is not None and needed > there:
        raise InputError(
            f"the model has {parameters:,} parameters, {needed / 2**30:,.0f} GiB with gradients and optimiser, and "
            f"{device} has {there / 2**30:,.0f} GiB; spread it over more processes with parallel.shards, or take a "
            "smaller one"
        )


def device_bytes(device: str) -> int | None:
    """Memory of a device; None where torch cannot tell."""
    kind = torch.device(device).type
    if kind == "cpu" and hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if kind == "cuda" and torch.cuda.is_available():
        return torch.cuda.get_device_properties(device).total_memory
    return None
