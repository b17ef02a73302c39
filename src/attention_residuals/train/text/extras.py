"""Libraries that only some texts need, imported where they are used."""

import importlib
from typing import Any

from attention_residuals.errors import InputError


def require(module: str, extra: str, purpose: str) -> Any:
    """Import a library of an optional extra.

    Raises:
        InputError: it is not installed; the sentence says what wants it and which extra brings it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise InputError(f"{purpose} needs {package}: pip install 'attention-residuals[{extra}]'") from error
