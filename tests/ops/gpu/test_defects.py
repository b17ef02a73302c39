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
    "mix takes the padded width for D": Defect("mix_kernel", "squares / width", "squares / tile_width"),
    "mix masks one number too many": Defect("mix_kernel", "(d < width)[None, :]", "(d < width - 1)[None, :]"),
    "mix reads with the first queries only": Defect("mix_kernel", "r[:, None] * width", "(r % 4)[:, None] * width"),
    "mix forgets the gain": Defect("mix_kernel", "(gain / weight)", "(1.0 / weight)"),
    "mix leaves out queries beyond the first four": Defect("mix_kernel", "range(0, queries,", "range(0, 4,"),
    "extend drops the last source": Defect("extend_kernel", EVERY_SOURCE, BUT_THE_LAST),
    "extend forgets to rescale the part": Defect("extend_kernel", "values * kept[:, None] + ", "values + "),
    "extend takes the part's total for 1": Defect("extend_kernel", "begun = weight\n", "begun = weight * 0 + 1\n"),
    "extend forgets the gain": Defect("extend_kernel", "values = values * gain", "values = values * 1.0"),
    "extend forgets to store a mixture": Defect("extend_kernel", "if has_mixed:", "if has_norm:"),
    "extend takes a half without its scale": Defect("extend_kernel", "values = values * of_part[:, None]", "values = values * 1.0"),
    "extend forgets what is left of the part": Defect("extend_kernel", "of_part * kept", "of_part * 1.0"),
    "a scale is too large": Defect("_scale", "(14 << 23)", "(4 << 23)"),
    "a scale is too small": Defect("_scale", "(14 << 23)", "(24 << 23)"),
    "scales of tiny numbers are none": Defect("_scale", "67 << 23", "14 << 23"),
    "a reciprocal is that of a neighbour": Defect("_reciprocal", "(254 << 23)", "(255 << 23)"),
    "mix has a scale from the last source": Defect("mix_kernel", "tl.maximum(longest, squares)", "squares"),
    "mix forgets the read that is whole": Defect("mix_kernel", "(r == whole)", "(r == -2)"),
    "mix rounds what is whole from the sum": Defect("mix_kernel", "(half.to(tl.float32) * power[:, None, None])", "values"),
    "slices have a scale from the last source": Defect("slice_mix_kernel", "tl.maximum(longest, squares)", "squares"),
    "slices store scales in the first": Defect("slice_mix_kernel", "scale + r * tokens", "scale + 0 * tokens"),
    "the norm forgets its weight": Defect("extend_kernel", " * weight_of_norm[None, :]", ""),
    "the norm forgets its eps": Defect("extend_kernel", " + norm_eps", " + 0.5 * norm_eps"),
    "backward drops the last source": Defect("mix_backward_kernel", EVERY_SOURCE, BUT_THE_LAST),
    "backward forgets the running gradient": Defect("mix_backward_kernel", "!= 0", "== 1"),
    "backward forgets what goes along the source": Defect("mix_backward_kernel", "v * along_source", "0 * along_source"),
    "backward drops sums of earlier calls": Defect("_begin_sums", "(address != 0)", "(address == 1)"),
    "backward carries on the sums of the first program": Defect("_begin_sums", "program.to(tl.int64) * width", "0 * width"),
    "backward forgets the sums of a tile": Defect("_add_to_sums", "tl.load(to, mask=known, other=0.0)", "0.0 * tl.load(to, mask=known, other=0.0)"),
    "backward forgets the offset": Defect("_shares_of_gradients", "product - delta", "product"),
    "backward forgets the gain": Defect("_shares_of_gradients", " * gain[None, :]", ""),
    "an offset leaves out the last source": Defect("_shares_of_gradients", EVERY_SOURCE, BUT_THE_LAST),
    "an offset counts the sources at hand twice": Defect("_shares_of_gradients", "tl.where(adds, own, 0.0)", "own"),
    "an offset tells all instead of its own": Defect("_shares_of_gradients", "tl.where(adds, own, delta)", "delta"),
    "an offset forgets what it was given": Defect("_shares_of_gradients", "mask=known & (address != 0), other=0.0)", "mask=known & (address == 1), other=0.0)"),
    "backward divides by no total": Defect("_scores", " / _numbers(totals, r, t, row, 1.0)", ""),
    "backward has the slope of another width": Defect("_scores", "logit * rstd / width", "logit * rstd / (width + 1)"),
    "an offset made of a mixture keeps its gain": Defect("_products_of_mixtures", "tl.sum(g * h, 1) / tl.load(gains + r)", "tl.sum(g * h, 1) / tl.load(gains)"),
    "an offset made of a part takes it whole": Defect("_products_of_mixtures", " * _numbers(shares, r, t, row, 0.0)", ""),
    "a mixture is made again of the part alone": Defect("_mixture_again", EVERY_SOURCE, BUT_THE_LAST),
    "a mixture made again forgets the gain": Defect("_mixture_again", "values * gain", "values"),
    "a mixture made again divides by no total": Defect("_mixture_again", " / tl.load(total + t, mask=row, other=1.0)", ""),
    "the gradient of a norm keeps its radial part": Defect("norm_backward_kernel", "incoming - h *", "incoming - 0 *"),
    "the weight's gradient is that of unnormed rows": Defect("norm_backward_kernel", "tl.sum(incoming * h, 0)", "tl.sum(incoming * h / rstd[:, None], 0)"),
    "an offset beside a part has the part too": Defect("norm_backward_kernel", "product - of_part", "product"),
    "a delta keeps its gain": Defect("norm_backward_kernel", "product / gain", "product"),
    "a product drops a number": Defect("row_products_kernel", "d < width", "d < width - 1"),
    "slices after the first do not count": Defect("slice_mix_kernel", "every < slices", "every < 1"),
    "slices leave a gap": Defect("slice_scores_kernel", "tl.arange(0, tile_width)", "tl.minimum(tl.arange(0, tile_width), tile_width - 2)"),
}  # fmt: skip

CHECKS = {
    "mix_kernel": ("mix, packed", "mix", "far apart", "halves, mix", "halves, range"),
    "extend_kernel": ("extend", "far apart", "halves, extend"),
    "mix_backward_kernel": ("backward",),
    "_scale": ("halves, range", "halves, mix"),
    "_reciprocal": ("halves, mix",),
    "_scores": ("backward",),
    "_products_of_mixtures": ("backward", "halves, backward"),
    "_shares_of_gradients": ("backward", "halves, backward"),
    "_begin_sums": ("halves, backward",),
    "_add_to_sums": ("backward",),
    "_mixture_again": ("halves, extend",),
    "norm_backward_kernel": ("norm", "halves, extend"),
    "row_products_kernel": ("products",),
    "slice_mix_kernel": ("mix, in slices", "halves, mix in slices", "halves, range in slices"),
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
