"""CPU kernels in C++, compiled when first needed and kept for later processes.

Once loaded they stand in front of the plain implementations of `operators.py` for CPU tensors; where they cannot be
compiled those stay, with the same results. Environment: `ATTNRES_NATIVE=0` forgoes them, `CXX` names the compiler,
`ATTNRES_CACHE` the folder they are kept in.
"""

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import warnings
from functools import cache
from pathlib import Path

import torch

from attention_residuals.ops.compiler import constant_when_compiled

SOURCES = Path(__file__).parent / "cpu"
UNITS = {"kernels.cpp": "-O3", "binding.cpp": "-O1", "group.cpp": "-O1"}
"""Translation units and how far each is worth optimising: what surrounds torch's headers compiles twice as fast so."""

FLAGS = ("-std=c++20", "-march=native", "-fno-math-errno", "-fPIC", "-fopenmp", "-fvisibility=hidden", "-w")
COMPILE_SECONDS = 600


class CompilationError(Exception):
    """The kernels cannot be compiled here; the text says why."""


def native_kernels(device: torch.device) -> bool:
    """Whether there are kernels for `device`; they are at hand then. Costs nothing after the first call."""
    return device.type == "cpu" and load_native()


# A compiler that traces a read runs this at once instead of tracing it.
@constant_when_compiled
def load_native() -> bool:
    """Load the kernels, compiling them first if no earlier process has; False, with one warning, where that fails.

    It does its work once a process. A compilation takes less than a minute.
    """
    return _load()


@cache
def _load() -> bool:
    if os.environ.get("ATTNRES_NATIVE") == "0":
        return False
    try:
        torch.ops.load_library(str(_library()))
    except (CompilationError, OSError) as error:
        warnings.warn(
            f"reads on the CPU take the plain path, exact but several times slower: {error}",
            RuntimeWarning,
            stacklevel=5,
        )
        return False
    return True


def _library() -> Path:
    """The compiled kernels for this source, compiler, torch and processor."""
    compiler = _compiler()
    library = cache_folder() / f"cpu-{_fingerprint(compiler)}.so"
    if not library.exists():
        _compile(compiler, library)
    return library


def _compiler() -> str:
    for name in filter(None, (os.environ.get("CXX"), "g++", "clang++", "c++")):
        if found := shutil.which(name):
            return found
    raise CompilationError("no C++ compiler found; install g++ or clang++, or name one in CXX")


def cache_folder() -> Path:
    """Where compiled kernels are kept: `$ATTNRES_CACHE/native`, or `~/.cache/attention-residuals/native`."""
    if named := os.environ.get("ATTNRES_CACHE"):
        return Path(named) / "native"
    try:
        return Path.home() / ".cache" / "attention-residuals" / "native"
    except RuntimeError as error:
        raise CompilationError("there is no home folder to keep them in; name a folder in ATTNRES_CACHE") from error


def _fingerprint(compiler: str) -> str:
    """What a compiled library depends on. The processor counts: a home may be shared by machines that differ."""
    parts = [torch.__version__, *FLAGS, str(UNITS), platform.machine(), _processor(), _run([compiler, "--version"])]
    digest = hashlib.sha256("\0".join(parts).encode())
    for file in sorted(SOURCES.iterdir()):
        digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()[:20]


def _processor() -> str:
    """The instruction sets of this processor where the system lists them, else its name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())


def _compile(compiler: str, library: Path) -> None:
    """Compile the units side by side in a folder of their own, then rename: other processes may be doing the same."""
    torch_folder = Path(torch.__file__).parent
    include = [
        f"-I{torch_folder / 'include'}",
        f"-I{torch_folder / 'include/torch/csrc/api/include'}",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
    ]
    library.parent.mkdir(parents=True, exist_ok=True)
    print("attention-residuals: compiling its CPU kernels, once for this machine (about 40 s)", file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        objects = [str(Path(folder) / f"{unit}.o") for unit in UNITS]
        jobs = [
            [compiler, *FLAGS, optimise, *include, "-c", str(SOURCES / unit), "-o", target]
            for (unit, optimise), target in zip(UNITS.items(), objects, strict=True)
        ]
        _run_all(jobs)
        linked = str(Path(folder) / library.name)
        # OpenMP is left to the library that torch has loaded: two of them would fight for the cores.
        _run([compiler, "-shared", *objects, f"-L{torch_folder / 'lib'}", "-lc10", "-ltorch_cpu", "-o", linked])
        os.replace(linked, library)


def _run(command: list[str]) -> str:
    return _run_all([command])[0]


def _run_all(commands: list[list[str]]) -> list[str]:
    """Outputs of commands that run at the same time."""
    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for command in commands
    ]
    try:
        outputs = [process.communicate(timeout=COMPILE_SECONDS)[0] for process in started]
    except subprocess.TimeoutExpired as error:
        raise CompilationError(f"{commands[0][0]} took more than {COMPILE_SECONDS} s") from error
    finally:
        for process in started:
            process.kill()
    for command, process, output in zip(commands, started, outputs, strict=True):
        if process.returncode:
            raise CompilationError(f"{command[0]} failed: {_first_error(output)}")
    return outputs


def _first_error(output: str) -> str:
    lines = output.splitlines() or ["no output"]
    return next((line for line in lines if "error" in line), lines[-1]).strip()
