"""Short names for residual streams, for the command line: `standard`, `full`, `block`, `block6`, `full+sum`."""

import re

from attention_residuals.errors import InputError
from attention_residuals.streams import Additive, AttnRes, ReadScale, Residual, Sublayers

DEFAULT_BLOCK_SUBLAYERS = 4
ALLOWED = "standard, full, block or blockN (N sublayers a block); with +sum the read is times its sources"


def residual_of(name: str) -> Residual:
    """The residual stream that a name stands for.

    Raises:
        InputError: a name that stands for none.
    """
    if name == "standard":
        return Additive()
    match = re.fullmatch(r"(full|block)(\d+)?(\+sum)?", name)
    if match is None or (match[1] == "full" and match[2]):
        raise InputError(f"'{name}' is no model; choose {ALLOWED}")
    block = 1 if match[1] == "full" else int(match[2] or DEFAULT_BLOCK_SUBLAYERS)
    return AttnRes(Sublayers(block), scale=ReadScale.SUM if match[3] else ReadScale.MEAN)
