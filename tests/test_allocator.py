"""Freed memory that is kept: seen by page faults, in a process of its own, since it cannot be undone."""

import ctypes
import subprocess
import sys
import textwrap

import pytest

from attention_residuals import keep_freed_memory

CLONES = """
    import resource, sys, torch
    from attention_residuals import keep_freed_memory

    torch.set_num_threads(1)
    print(keep_freed_memory() if sys.argv[1] == "keep" else "shipped")
    tensor = torch.ones(16 * 2**20)  # larger than any block that glibc keeps by itself
    for _ in range(20):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        tensor.clone()
        print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""

PAGES = 64 * 2**20 // 4096


def page_faults(mode: str) -> tuple[str, list[int]]:
    """The answer of `keep_freed_memory`, and the faults of making and freeing 64 MiB, time after time."""
    command = [sys.executable, "-c", textwrap.dedent(CLONES), mode]
    answer, *faults = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return answer, list(map(int, faults))


@pytest.mark.slow
@pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library has no mallopt"
)
def test_kept_memory_is_used_again_without_page_faults() -> None:
    answer, kept = page_faults("keep")
    assert answer == "True"
    # The first rounds take memory from the system, until what was freed fits what is asked for.
    assert sum(kept[-10:]) < PAGES / 100
    # Pages may be large ones, so that there are few of them.
    assert sum(page_faults("shipped")[1][-10:]) > max(100, 10 * sum(kept[-10:]))


def test_other_c_libraries_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    assert keep_freed_memory() is False


def test_a_refused_setting_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Library:
        @staticmethod
        def mallopt(parameter: int, value: int) -> int:
            return int(parameter == -1)

    monkeypatch.setattr(ctypes, "CDLL", lambda _: Library)
    assert keep_freed_memory() is False
