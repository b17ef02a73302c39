"""Kernels with a defect planted in their text: the checks must catch each one."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

from .checks import every_check
from .support import INTERPRETED, kernels, triton_operators

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="defects may write outside a GPU's memory")


class Defect(NamedTuple):
    """Every occurrence of a text within a function, and what stands there instead."""

    function: str
    text: str
    planted: str


EVERY_SOURCE, BUT_THE_LAST = "for n in range(count):", "for n in range(count - 1):"

# ruff: noqa: E501
DEFECTS = {
    "the last token is left out": Defect("_tile", "t < tokens", "t < tokens - 1"),
    "one token too many is written": Defect("_tile", "t < tokens", "t <= tokens"),
    "rows are found by the stride of their numbers": Defect("_rows", "tl.load(entry + 3),", "tl.load(entry + 4),"),
    "outer rows are forgotten": Defect("_rows", "(t // inner) * outer + ", ""),
    "mix drops the last source": Defect("mix_kernel", EVERY_SOURCE, BUT_THE_LAST),
    "mix forgets to rescale its values": Defect("mix_kernel", "values * kept[:, :, None] + ", "values + "),
    "mix forgets to rescale its total": Defect("mix_kernel", "weight * kept + ", "weight + "),
    "mix takes the padded width for D": Defect("mix_kernel", "1) / width", "1) / tile_width"),
    "mix masks one number too many": Defect("mix_kernel", "(d < width)[None, :]", "(d < width - 1)[None, :]"),
    "mix reads with the first queries only": Defect("mix_kernel", "r[:, None] * width", "(r % 4)[:, None] * width"),
    "mix forgets the gain": Defect("mix_kernel", "(gain / weight)", "(1.0 / weight)"),
    "mix leaves out queries beyond the first four": Defect("mix_kernel", "range(0, queries,", "range(0, 4,"),
    "extend drops the last source": Defect("extend_kernel", EVERY_SOURCE, BUT_THE_LAST),
    "extend forgets to rescale the part": Defect("extend_kernel", "values * share[:, None] + ", "values + "),
    "extend takes the part's total for 1": Defect("extend_kernel", "begun = weight\n", "begun = weight * 0 + 1\n"),
    "extend forgets the gain": Defect("extend_kernel", "values = values * gain", "values = values * 1.0"),
    "extend forgets to store what is not the part": Defect("extend_kernel", "if has_mixed:", "if has_norm:"),
    "a rest is forgotten": Defect("_kept", "values += tl.load(rest", "values += 0 * tl.load(rest"),
    "a rest is taken for one of large numbers": Defect("_kept", " * power", ""),
    "a rest is cut off": Defect("_keep_in_two", "steps + 0.5", "steps"),
    "a rest takes the exponent of a neighbour": Defect("_keep_in_two", "(254 << 23)", "(255 << 23)"),
    "rests of tiny numbers overflow": Defect("_exponents", "113 << 23", "100 << 23"),
    "rests of bfloat16 are those of float16": Defect("_steps", "2**11", "2**8"),
    "mix stores all rests in the first": Defect("mix_kernel", "outputs + queries + first + q", "outputs + queries"),
    "mix forgets the last mixture in two": Defect("mix_kernel", "first + q < queries", "first + q < queries - 1"),
    "slices store all rests in the first": Defect("slice_mix_kernel", "outputs + queries + r", "outputs + queries"),
    "an offset takes the first rest": Defect("_deltas_of_mixtures", "mixtures + queries + r", "mixtures + queries"),
    "the norm forgets its weight": Defect("extend_kernel", " * scale[None, :]", ""),
    "the norm forgets its eps": Defect("extend_kernel", " + norm_eps", " + 0.5 * norm_eps"),
    "backward drops the last source": Defect("mix_backward_kernel", EVERY_SOURCE, BUT_THE_LAST),
    "backward forgets the running gradient": Defect("mix_backward_kernel", "!= 0", "== 1"),
    "backward forgets the offset": Defect("mix_backward_kernel", " - _numbers(deltas, r, t, row, 0.0)", ""),
    "backward forgets what goes along the source": Defect("mix_backward_kernel", "v * along_source", "0 * along_source"),
    "backward forgets the gain": Defect("mix_backward_kernel", "weight *= tl.load(gains + r)", "weight *= 1.0 + 0 * tl.load(gains + r)"),
    "backward starts its sums anew at each tile": Defect("_add_to_sums", "(start > 0)", "(start < 0)"),
    "backward divides by no total": Defect("_read_gradient", " / _numbers(totals, r, t, row, 1.0)", ""),
    "an offset made of a mixture keeps its gain": Defect("_deltas_of_mixtures", " / gain", ""),
    "an offset leaves out the last source": Defect("_deltas_of_sources", EVERY_SOURCE, BUT_THE_LAST),
    "the gradient of a norm keeps its radial part": Defect("norm_backward_kernel", "incoming - h *", "incoming - 0 *"),
    "the weight's gradient is that of unnormed rows": Defect("norm_backward_kernel", "tl.sum(incoming * h, 0)", "tl.sum(incoming * h / rstd[:, None], 0)"),
    "a product drops a number": Defect("row_products_kernel", "d < width", "d < width - 1"),
    "slices after the first do not count": Defect("slice_mix_kernel", "every < slices", "every < 1"),
    "slices leave a gap": Defect("slice_scores_kernel", "tl.arange(0, tile_width)", "tl.minimum(tl.arange(0, tile_width), tile_width - 2)"),
}  # fmt: skip

CHECKS = {
    "mix_kernel": ("mix, packed", "mix", "far apart"),
    "extend_kernel": ("extend", "far apart"),
    "mix_backward_kernel": ("backward",),
    "_kept": ("extend in two",),
    "_keep_in_two": ("mix in two",),
    "_exponents": ("mix in two, tiny",),
    "_steps": ("mix in two",),
    "_read_gradient": ("backward",),
    "_add_to_sums": ("backward",),
    "_deltas_of_mixtures": ("backward in two",),
    "_deltas_of_sources": ("backward",),
    "norm_backward_kernel": ("norm",),
    "row_products_kernel": ("products",),
    "slice_mix_kernel": ("mix, in slices", "mix in two, in slices"),
    "slice_scores_kernel": ("mix, in slices",),
    "_tile": ("extend",),
    "_rows": ("strided",),
}
"""The beginnings of the names of the checks that may notice."""


def broken(defect: Defect, folder: Path) -> ModuleType:
    """The kernels with a defect, as a module of their own."""
    source = Path(str(kernels.__file__)).read_text()
    before, rest = source.split(f"def {defect.function}(")
    body, decorator, after = rest.partition("\n@triton.jit")
    assert defect.text in body, f"{defect.function} has no {defect.text}"
    file = folder / "broken_kernels.py"
    file.write_text(f"{before}def {defect.function}({body.replace(defect.text, defect.planted)}{decorator}{after}")
    spec = importlib.util.spec_from_file_location("broken_kernels", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["broken_kernels"] = module
    spec.loader.exec_module(module)
    return module


def is_caught(module: ModuleType, names: tuple[str, ...]) -> bool:
    """Whether one of the checks fails whose name begins so."""
    for name, check in every_check():
        if name.startswith(names):
            try:
                with triton_operators(module):
                    check()
            except AssertionError:
                return True
    return False


def test_kernels_without_a_defect_pass() -> None:
    for name, check in every_check():
        with triton_operators():
            check()
        assert name


@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_is_caught(name: str, tmp_path: Path) -> None:
    defect = DEFECTS[name]
    assert is_caught(broken(defect, tmp_path), CHECKS[defect.function]), f"no check noticed that {name}"
