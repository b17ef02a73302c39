"""What is said to `torch.compile` without importing it, and that it is not imported."""

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attention_residuals.ops.compiler import constant_when_compiled, uncompiled


def test_the_package_does_not_import_the_compiler() -> None:
    script = "import sys, attention_residuals, attention_residuals.nn; print('torch._dynamo' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_what_is_left_out_runs_as_it_stands() -> None:
    traced, graphs = list[bool](), list[torch.fx.GraphModule]()

    def keep(graph: torch.fx.GraphModule, _: list[Tensor]) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    @uncompiled
    def double(x: Tensor) -> Tensor:
        traced.append(torch.compiler.is_compiling())
        return 2 * x

    def whole(x: Tensor) -> Tensor:
        return double(x + 1) + 1

    x = torch.arange(3.0)
    assert torch.equal(torch.compile(whole, backend=keep)(x), whole(x)) and traced == [False, False]
    assert len(graphs) == 2, "one before, one after"


def test_what_is_constant_runs_once_and_stays_out_of_the_graph() -> None:
    calls: list[int] = []

    @constant_when_compiled
    def number() -> int:
        calls.append(os.getpid())  # neither of which could be traced
        return 3

    compiled = torch.compile(lambda x: x * number(), backend="eager", fullgraph=True)
    x = torch.arange(3.0)
    for _ in range(2):
        assert torch.equal(compiled(x), 3 * x)
    assert calls == [os.getpid()]
