"""What the configs of several schemes check."""

import math

from attention_residuals.errors import InputError
from attention_residuals.streams.blocks import BlockSize


def require_block(block: object) -> None:
    """Refuse a block size without a unit.

    Raises:
        InputError: it shows how to write one.
    """
    if not isinstance(block, BlockSize):
        raise InputError(f"block is {block!r}, a number without a unit; write Sublayers(n), Layers(n) or Blocks(n)")


def require_eps(config: object, *names: str) -> None:
    """Refuse an eps that makes a root undefined.

    Raises:
        InputError: it names the field and its value.
    """
    for name in names:
        value = getattr(config, name)
        if not (math.isfinite(value) and value >= 0):
            raise InputError(f"{name} is {value}; it must be a number of at least 0, for example 1e-6")


def require_factor(config: object, *names: str) -> None:
    """Refuse a factor that makes nothing or infinities of what it multiplies.

    Raises:
        InputError: it names the field and its value.
    """
    for name in names:
        value = getattr(config, name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value > 0):
            raise InputError(f"{name} is {value!r}; it must be a positive number, and 1 leaves things as they are")
