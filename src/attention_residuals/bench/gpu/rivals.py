"""Other implementations of a read on a GPU. Each is optional: one that is absent is a sentence that says so."""

import importlib
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from attention_residuals.bench.problems import EPS, Computation
from attention_residuals.bench.reads import block_outputs
from attention_residuals.bench.rivals import compiled, einsum_listing

PREPARATION_SECONDS = 35.0
"""A rival may compile and tune itself so long in the whole run; then it is left out of what follows."""

FLA, LIGER, FLASH, FAST = "flash-linear-attention", "liger", "flash-attn-res", "fast-attnres"


class Allowances:
    """How long each implementation has been at its preparation."""

    def __init__(self, seconds: float = PREPARATION_SECONDS, now: Callable[[], float] = time.monotonic):
        self._seconds, self._now = seconds, now
        self._spent: dict[str, float] = {}

    @contextmanager
    def counted(self, name: str) -> Iterator[str | None]:
        """Count the body for `name`; gives why it must not run, if it must not."""
        spent = self._spent.get(name, 0.0)
        if spent > self._seconds:
            yield f"not measured: earlier shapes took {spent:.0f} s to compile and tune"
            return
        begun = self._now()
        try:
            yield None
        finally:
            self._spent[name] = spent + self._now() - begun


def find(module: str, name: str) -> Any:
    """Something of an optional package, or the sentence that it is not there."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return getattr(importlib.import_module(module), name)
    except ImportError as error:
        return f"not installed ({error})"
    except Exception as error:  # a package that breaks on import is absent all the same
        return f"does not import ({type(error).__name__}: {' '.join(str(error).split())[:120]})"


def single_rivals(width: int) -> dict[str, Computation | str]:
    """Single reads by others for sources `[T, width]`."""
    return {
        FLA: _with("fla.ops.attnres", "fused_attnres", _fla),
        FAST: _with("attnres", "attnres", _fast),
        LIGER: _with("liger_kernel.ops.attn_res", "LigerAttnResFunction", _liger),
        FLASH: _with("flash_attn_res", "phase_1_batched_attention_triton_op", _flash_single)
        if _binary(width)
        else _ODD,
        "einsum": einsum_listing,
        "einsum-compiled": compiled(einsum_listing),
    }


def flash_block(count: int, width: int) -> Computation | str:
    """A block over `count` closed sources by flash-attn-res, the other implementation in two phases."""
    if not _binary(width):
        return _ODD
    one = find("flash_attn_res", "phase_1_batched_attention_triton_op")
    two = find("flash_attn_res", "phase_2_online_softmax_merge_triton_op")
    if isinstance(one, str) or isinstance(two, str):
        return one if isinstance(one, str) else two

    def run(leaves: list[Tensor], vectors: list[Tensor]) -> list[Tensor]:
        common = [leaf.view_as(leaf) for leaf in leaves[:count]]
        folded = _folded(vectors)
        parts, sums = one(torch.stack(common).unsqueeze(1), folded, EPS)
        mixtures, partial_sum = [parts[0, 0]], None
        for n, output in enumerate(leaves[count:], 1):
            partial_sum = output if partial_sum is None else partial_sum + output
            mixtures.append(two(partial_sum.unsqueeze(0), folded[n], parts[n], sums[n], EPS)[0])
        return block_outputs(mixtures, common, partial_sum)

    return run


_ODD = "takes widths that are powers of two only"


def _binary(width: int) -> bool:
    return width & (width - 1) == 0


def _with(module: str, name: str, make: Callable[[Any], Computation]) -> Computation | str:
    found = find(module, name)
    return found if isinstance(found, str) else make(found)


def _folded(vectors: list[Tensor]) -> Tensor:
    """Query times key weight, for those that know no key weight."""
    query, key_weight = vectors
    return (query.float() * key_weight.float()).to(query.dtype)


def _fla(fused_attnres: Any) -> Computation:
    return lambda leaves, vectors: [fused_attnres(vectors[0], leaves, vectors[1], rms_eps=EPS)]


def _fast(attnres: Any) -> Computation:
    return lambda leaves, vectors: [attnres(leaves, _folded(vectors), eps=EPS)]


def _liger(function: Any) -> Computation:
    return lambda leaves, vectors: [function.apply(torch.stack(leaves), *vectors, EPS)]


def _flash_single(phase_1: Any) -> Computation:
    def read(leaves: list[Tensor], vectors: list[Tensor]) -> list[Tensor]:
        return [phase_1(torch.stack(leaves).unsqueeze(1), _folded(vectors).unsqueeze(0), EPS)[0][0, 0]]

    return read
