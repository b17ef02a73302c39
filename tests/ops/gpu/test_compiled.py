"""What the kernels are compiled to for GPUs that need not be there."""

import os
from dataclasses import replace

import pytest
import torch

if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("the interpreter stands where the compiler would", allow_module_level=True)
pytest.importorskip("triton")

from attention_residuals.bench import compiled
from attention_residuals.bench.launches import Launch
from attention_residuals.ops.gpu import kernels
from attention_residuals.ops.gpu.tables import AT_ONCE

REGISTERS, REGISTERS_A_PROCESSOR, SHARED = 255, 65536, 99 * 1024
FEW_SPILLED = 64
"""Bytes a thread, that stay in the nearest cache."""


@pytest.mark.parametrize(
    ("target", "width", "dtype", "most_spilled"),
    [
        ("sm_80", 7168, "float32", 0),
        ("sm_90", 1024, "bfloat16", 0),
        ("sm_90", 4096, "bfloat16", 0),
        ("sm_90", 7168, "bfloat16", 0),
        ("sm_100", 7168, "bfloat16", 0),
        ("sm_100", 4096, "float32", FEW_SPILLED),
        ("gfx942", 7168, "bfloat16", 0),
    ],
)
def test_programs_fit(target: str, width: int, dtype: str, most_spilled: int) -> None:
    lanes = compiled.TARGETS[target].warp_size
    for variant in compiled.variants(compiled.launches(width, compiled.DTYPES[dtype]), target):
        made = compiled.compile_variant(variant, target)
        described = f"{variant.kernel}: {variant.words}: {made}"
        assert 0 < made.registers <= REGISTERS, described
        if target.startswith("sm_"):
            assert made.registers * variant.warps * lanes <= REGISTERS_A_PROCESSOR, described
        assert made.shared <= SHARED, described
        assert made.spilled <= most_spilled, described


def test_spills_are_seen() -> None:
    """A tile of 16 KB that one warp has to hold."""
    variants = compiled.variants(compiled.launches(4096, torch.bfloat16), "sm_90")
    variant = next(one for one in variants if one.kernel == "norm_backward_kernel")
    assert compiled.compile_variant(replace(variant, warps=1), "sm_90").spilled > 0


def test_every_kernel_is_among_them() -> None:
    names = {one.kernel for one in compiled.launches(4096, torch.bfloat16)}
    assert names == {name for name in vars(kernels) if name.endswith("_kernel")}


@pytest.mark.parametrize("target", compiled.TARGETS)
def test_the_number_of_sources_is_nothing_they_are_compiled_for(target: str) -> None:
    few, many = (
        compiled.variants(compiled.launches(1024, torch.bfloat16, sources=sources), target) for sources in (3, 12)
    )
    assert set(few) == set(many)


def test_what_is_in_a_table_is_nothing_they_are_compiled_for() -> None:
    """Numbers beyond 32 bits or not, 1 and multiples of 16 among them."""
    table = torch.empty(AT_ONCE, dtype=torch.int64)
    tables = [
        Launch("write_table_kernel", (1,), (table, *numbers), {"num_warps": 1})
        for numbers in ([0] * AT_ONCE, range(AT_ONCE), [2**40] * AT_ONCE, [-(2**62)] * AT_ONCE)
    ]
    assert len(compiled.variants(tables, "sm_90")) == 1


def test_the_command_prints_a_line_a_variant(capsys: pytest.CaptureFixture[str]) -> None:
    compiled.main(["--target", "sm_90", "--width", "64", "--dtype", "float32"])
    heading, rule, *rows = capsys.readouterr().out.splitlines()
    assert len(rows) == len(compiled.variants(compiled.launches(64, torch.float32), "sm_90"))
    assert len({line.count("|") for line in (heading, rule, *rows)}) == 1
