"""A console for progress that nobody sees."""

import io

from rich.console import Console

from attention_residuals.bench.progress import Work


def silent() -> Work:
    """Work that shows nothing."""
    return Work(Console(file=io.StringIO()))
