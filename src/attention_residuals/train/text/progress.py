"""What a caller can show while text is prepared."""

from collections.abc import Callable
from typing import TypeAlias

Progress: TypeAlias = Callable[[str, int, int | None], None]
"""Called with the stage (a phrase such as "tokenising"), bytes done and bytes in all, None where that is not known."""


def silent(stage: str, done: int, total: int | None) -> None:
    """Show nothing."""
