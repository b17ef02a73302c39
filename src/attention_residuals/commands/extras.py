"""What is not installed with the package, and has to be there before a command begins."""

import importlib.util

from attention_residuals.errors import InputError


def require_report_extras() -> None:
    """Refuse to begin what could not be drawn.

    Raises:
        InputError: matplotlib or scipy is not installed.
    """
    if not all(map(importlib.util.find_spec, ("matplotlib", "scipy"))):
        raise InputError("the report needs matplotlib and scipy: pip install 'attention-residuals[report]'")


def require_transformers(command: str) -> None:
    """Refuse a command that needs transformers, which is an extra.

    Raises:
        InputError: it is not installed.
    """
    if importlib.util.find_spec("transformers") is None:
        raise InputError(f"{command} needs transformers: pip install 'attention-residuals[hf]'")
