"""Words to `torch.compile`, said without importing it.

Their public forms, `torch.compiler.disable` and `torch.compiler.assume_constant_result`, import the compiler where
they decorate, which would double the time that `import attention_residuals` takes.
"""

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

import torch

Given = ParamSpec("Given")
Result = TypeVar("Result")
Function = TypeVar("Function", bound=Callable[..., Any])


def uncompiled(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """Have a compiler leave `function`, and all that it calls, out of its graphs."""
    return cast("Callable[Given, Result]", torch._disable_dynamo(function))  # pyright: ignore[reportPrivateImportUsage]


def constant_when_compiled(function: Function) -> Function:
    """Have a compiler run `function` while it traces, instead of tracing it, and keep what it returns."""
    function._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]
    return function
