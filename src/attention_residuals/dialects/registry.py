"""The dialects there are, by name. A further one is a file with its names and its config, and a line here."""

from pathlib import Path
from typing import Final

from attention_residuals.dialects.block_keys import known_keys
from attention_residuals.dialects.depth import is_depth
from attention_residuals.dialects.dialect import Dialect, Plain
from attention_residuals.dialects.fla import FLA, FLA_DEPTH
from attention_residuals.dialects.kimi import KIMI, KIMI_DEPTH
from attention_residuals.dialects.llama_cpp import LLAMA_CPP
from attention_residuals.dialects.megatron import MEGATRON
from attention_residuals.dialects.ours import OURS, OURS_DEPTH
from attention_residuals.dialects.torchtitan import TORCHTITAN
from attention_residuals.errors import InputError

DIALECTS: Final = {dialect.name: dialect for dialect in (KIMI, FLA, OURS)}
"""Those for whole models."""

DEPTH_DIALECTS: Final = {
    dialect.name: dialect for dialect in (KIMI_DEPTH, FLA_DEPTH, OURS_DEPTH, TORCHTITAN, MEGATRON, LLAMA_CPP)
}
"""Those for depth attention alone; all but the last can be read back."""


def find_dialect(name: str) -> Dialect | None:
    """The dialect of that name for whole models; None for one that knows depth attention alone.

    Raises:
        InputError: there is neither.
    """
    if name not in DEPTH_DIALECTS:
        raise InputError(f"there is no dialect '{name}'; choose {', '.join(DEPTH_DIALECTS)}")
    return DIALECTS.get(name)


def dialect_of(plain: Plain) -> Dialect | None:
    """The dialect that a `config.json` is written in; None if it is none of these."""
    return next((dialect for dialect in DIALECTS.values() if dialect.owns(plain)), None)


def unknown(file: Path, plain: Plain) -> InputError:
    """What to say of a config that `dialect_of` does not know."""
    if is_depth(plain):
        return InputError(f"{file} is of depth tensors alone, which are no model; read them with load_depth")
    known = ", ".join(f"{one.name} ({one.summary})" for one in DIALECTS.values())
    return InputError(f"{file} is of no dialect that is known; there are {known}{known_keys(plain)}")
