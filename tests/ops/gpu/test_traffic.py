"""The bytes that are counted in the interpreter are those that the kernels cannot do without, as far as they are."""

import os

import pytest
import torch

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("traffic is counted in the interpreter: TRITON_INTERPRET=1", allow_module_level=True)

from attention_residuals.bench import traffic
from attention_residuals.bench.floors import block_units
from attention_residuals.bench.launches import block_pass, read_pass

WIDTH, TOKENS = 64, 64
PROGRAMS = 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("sources", [1, 8])
def test_a_read_moves_its_tensors_once(sources: int, dtype: torch.dtype) -> None:
    unit = TOKENS * WIDTH * dtype.itemsize
    forward, backward = (one.total for one in traffic.count(read_pass(sources, TOKENS, WIDTH, dtype), TOKENS * WIDTH))
    assert forward.rows == (sources + 1) * unit
    shared = 4 * WIDTH + 8 * (sources + 1)  # the query, and a table of addresses
    assert forward.small == shared + 2 * 4 * TOKENS
    assert forward.again == (PROGRAMS - 1) * shared
    assert backward.rows == (2 * sources + 1) * unit
    assert backward.asked > backward.rows + backward.small


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_tensors_of_a_block_are_those_of_its_floor(dtype: torch.dtype) -> None:
    counts = traffic.count(block_pass(2, 3, TOKENS, WIDTH, dtype, normed=False), TOKENS * WIDTH)
    assert [one.total.rows for one in counts] == [
        units * TOKENS * WIDTH * dtype.itemsize for units in block_units(2, 3)
    ]


def test_torch_operations_count_with_what_they_read_and_write() -> None:
    a, b = torch.ones(8, 8), torch.ones(8, 8)
    counted = traffic.Count(numbers=a.numel())
    with counted.counted():
        c = a + b
        c.view(64)[1:].unsqueeze(0)
        torch.empty_like(c)
    assert counted.total.memory == counted.total.torch == 3 * a.nbytes


def test_the_command_prints_a_line_a_pass(capsys: pytest.CaptureFixture[str]) -> None:
    traffic.main(["--tokens", "32", "--width", "64", "--dtype", "float32"])
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert len(rows) == 2 + 2 * len(traffic.cases())
    assert len({line.count("|") for line in rows}) == 1
