"""What a reader of a measurement has to know of the machine. No names of hosts, users or folders."""

import os
import platform
from pathlib import Path

import torch

from attention_residuals.bench.results import Value
from attention_residuals.ops.native import load_native


def describe_machine() -> dict[str, Value]:
    """Processor, cores, threads, versions, and whether reads run on this package's compiled kernels."""
    return {
        "processor": _processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "c_library": " ".join(platform.libc_ver()).strip() or None,
        "kernels": "compiled" if load_native() else "plain torch",
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return name or platform.processor() or platform.machine()
