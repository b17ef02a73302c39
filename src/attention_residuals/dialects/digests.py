"""A digest of each tensor in the header of its file, so that numbers that were changed on the way are named."""

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor

PREFIX = "sha256:"
"""In front of a tensor's name, in the header's text. Other readers of safetensors pass over it."""


def digest(tensor: Tensor) -> str:
    """SHA-256 of the bytes of a tensor on the CPU, in the order in which safetensors keeps them."""
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.sha256(flat.numpy().data).hexdigest()


def header(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """The text of a file's header: the format as transformers wants it, and all digests."""
    return {"format": "pt", **{PREFIX + name: digest(tensor) for name, tensor in tensors.items()}}
