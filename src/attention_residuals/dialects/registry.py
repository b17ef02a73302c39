"""The dialects there are, by name. A further one is a file with its names and its config, and a line here."""

from typing import Final

from attention_residuals.dialects.dialect import Dialect, Plain
from attention_residuals.dialects.kimi import KIMI
from attention_residuals.dialects.ours import OURS
from attention_residuals.errors import InputError

DIALECTS: Final = {dialect.name: dialect for dialect in (KIMI, OURS)}


def find_dialect(name: str) -> Dialect:
    """The dialect of that name.

    Raises:
        InputError: there is none.
    """
    if name not in DIALECTS:
        raise InputError(f"there is no dialect '{name}'; choose {', '.join(DIALECTS)}")
    return DIALECTS[name]


def dialect_of(plain: Plain) -> Dialect | None:
    """The dialect that a `config.json` is written in; None if it is none of these."""
    return next((dialect for dialect in DIALECTS.values() if dialect.owns(plain)), None)
