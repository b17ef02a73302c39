"""Functions that a compiler leaves out of its graphs."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

import torch

Given = ParamSpec("Given")
Result = TypeVar("Result")


def uncompiled(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """`torch.compiler.disable`, that keeps the types."""
    return cast("Callable[Given, Result]", torch.compiler.disable(function))
