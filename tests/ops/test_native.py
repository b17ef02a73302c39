"""Where kernels cannot be compiled or are not wanted: plain torch, said once. And what compiling leaves behind."""

import os
import signal
import subprocess
import sys
import time
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


@pytest.mark.parametrize("part", ["torch", "compiler", "flags", "source"])
def test_the_name_of_a_library_follows_what_it_is_made_of(
    part: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(native, "_run", lambda command: "compiler 1.0")
    before = native._fingerprint("c++")
    assert native._fingerprint("c++") == before
    if part == "torch":
        monkeypatch.setattr(native.torch, "__version__", "9.9.9")
    elif part == "compiler":
        monkeypatch.setattr(native, "_run", lambda command: "compiler 2.0")
    elif part == "flags":
        monkeypatch.setattr(native, "FLAGS", (*native.FLAGS, "-g"))
    else:
        for file in native.SOURCES.iterdir():
            (tmp_path / file.name).write_bytes(file.read_bytes() + b"\n")
        monkeypatch.setattr(native, "SOURCES", tmp_path)
    assert native._fingerprint("c++") != before


COMPILE = """
import signal
import sys
from pathlib import Path
from attention_residuals.ops import native

signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored where these tests run in the background
native._compile(sys.argv[1], Path(sys.argv[2]))
"""

COMPILER = """#!/bin/sh
for argument; do
    if [ "$previous" = -o ]; then
        printf half > "$argument"; : > "{started}"; sleep {seconds}; printf ready > "$argument"
    fi
    previous=$argument
done
"""
"""Stands in for a compiler: what it makes is first of half length, then whole."""


def compiler(folder: Path, seconds: float) -> tuple[Path, Path]:
    """A compiler of that speed, and the file that tells that it is at work."""
    script, started = folder / f"compiler-{seconds}", folder / f"started-{seconds}"
    script.write_text(COMPILER.format(started=started, seconds=seconds))
    script.chmod(0o755)
    return script, started


def compiling(script: Path, library: Path) -> subprocess.Popen[bytes]:
    """A process, in a group of its own, that compiles `library`."""
    command = [sys.executable, "-c", COMPILE, str(script), str(library)]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)


def wait_for(file: Path, process: subprocess.Popen[bytes]) -> None:
    while not file.exists():
        assert process.poll() is None, "it ended before it began"
        time.sleep(0.01)


def test_processes_may_compile_at_once(tmp_path: Path) -> None:
    """A library is whole from the moment it is there."""
    library = tmp_path / "cache" / "native" / "cpu.so"
    processes = [compiling(compiler(tmp_path, seconds)[0], library) for seconds in (0.1, 0.2, 0.3)]
    seen = set[str]()
    while any(process.poll() is None for process in processes):
        if library.exists():
            seen.add(library.read_text())
        time.sleep(0.002)
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert seen | {library.read_text()} == {"ready"}
    assert list(library.parent.iterdir()) == [library]


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT])
def test_a_compilation_that_is_killed_does_not_stop_the_next(sent: signal.Signals, tmp_path: Path) -> None:
    library = tmp_path / "cache" / "native" / "cpu.so"
    slow, started = compiler(tmp_path, 60)
    process = compiling(slow, library)
    wait_for(started, process)
    os.killpg(process.pid, sent)
    assert process.wait() != 0
    assert not library.exists()
    if sent == signal.SIGINT:
        assert not list(library.parent.iterdir()), "an interrupted compilation left files"
    native._compile(str(compiler(tmp_path, 0)[0]), library)
    assert library.read_text() == "ready"


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    """A file stands where its folder should be, which stops even a superuser."""
    (tmp_path / "cache").touch()
    loaded, warning = reads(tmp_path / "cache", CXX=str(compiler(tmp_path, 0)[0]))
    assert loaded == "False"
    assert "reads on the CPU take the plain path" in warning


def test_a_library_that_does_not_load(tmp_path: Path) -> None:
    loaded, warning = reads(tmp_path / "cache", CXX=str(compiler(tmp_path, 0)[0]))
    assert loaded == "False"
    assert "reads on the CPU take the plain path" in warning


def test_no_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container whose user has no entry: then there is nowhere to keep kernels."""

    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("ATTNRES_CACHE")
    monkeypatch.setattr(native.Path, "home", nowhere)
    with pytest.raises(native.CompilationError, match="name a folder in ATTNRES_CACHE"):
        native.cache_folder()
