"""Where kernels cannot be compiled, or are not wanted: plain torch, said once."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from attention_residuals.ops import native

READS = """
import warnings
import torch
from attention_residuals import attn_res
from attention_residuals.ops import attn_res_reference
from attention_residuals.ops.native import load_native

sources, query = [torch.randn(3, 8) for _ in range(4)], torch.randn(8)
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    mixtures = [attn_res(sources, query) for _ in range(3)]
assert (mixtures[0].double() - attn_res_reference(sources, query)[0]).abs().max() < 1e-5
print(load_native(), *[str(one.message) for one in said if one.category is RuntimeWarning], sep="\\n")
"""


def reads(cache: Path, **environment: str) -> list[str]:
    """Whether kernels were loaded, then the warnings, of a process with nothing compiled that reads three times."""
    settings = {**os.environ, "ATTNRES_CACHE": str(cache), **environment}
    done = subprocess.run([sys.executable, "-c", READS], env=settings, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_not_wanted(tmp_path: Path) -> None:
    assert reads(tmp_path, ATTNRES_NATIVE="0") == ["False"]


def test_no_compiler(tmp_path: Path) -> None:
    loaded, warning = reads(tmp_path, CXX="", PATH=str(tmp_path))
    assert loaded == "False"
    assert "no C++ compiler found; install g++ or clang++, or name one in CXX" in warning


def test_a_compiler_that_fails(tmp_path: Path) -> None:
    compiler = tmp_path / "broken"
    compiler.write_text('#!/bin/sh\n[ "$1" = --version ] && exit 0\necho "error: out of patience"\nexit 1\n')
    compiler.chmod(0o755)
    loaded, warning = reads(tmp_path / "cache", CXX=str(compiler))
    assert loaded == "False"
    assert "out of patience" in warning
    assert not list((tmp_path / "cache").rglob("*.o")), "a failed compilation left files"


def test_the_name_of_a_library_follows_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """A home folder may be shared by machines that differ."""
    monkeypatch.setattr(native, "_run", lambda command: "compiler 1.0")
    names = set[str]()
    for flags in ("flags: avx2", "flags: avx2 avx512f"):
        monkeypatch.setattr(native, "_processor", lambda flags=flags: flags)
        names.add(native._fingerprint("c++"))
    assert len(names) == 2
