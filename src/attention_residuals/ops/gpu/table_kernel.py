"""The kernel that writes tables; see `tables.py`."""

# Triton has types of its own.
# pyright: reportInvalidTypeForm=false, reportArgumentType=false, reportIndexIssue=false

import triton
import triton.language as tl


@triton.jit(do_not_specialize=[f"a{n}" for n in range(16)])
def write_table_kernel(
    table,
    a0: tl.int64, a1: tl.int64, a2: tl.int64, a3: tl.int64,
    a4: tl.int64, a5: tl.int64, a6: tl.int64, a7: tl.int64,
    a8: tl.int64, a9: tl.int64, a10: tl.int64, a11: tl.int64,
    a12: tl.int64, a13: tl.int64, a14: tl.int64, a15: tl.int64,
):  # fmt: skip
    """Sixteen numbers into a table, as arguments of a kernel: a copy from the host could not be captured in a graph.

    Their type is given: by default it would follow from their values, and a kernel be compiled for each mixture.
    """
    tl.store(table, a0)
    tl.store(table + 1, a1)
    tl.store(table + 2, a2)
    tl.store(table + 3, a3)
    tl.store(table + 4, a4)
    tl.store(table + 5, a5)
    tl.store(table + 6, a6)
    tl.store(table + 7, a7)
    tl.store(table + 8, a8)
    tl.store(table + 9, a9)
    tl.store(table + 10, a10)
    tl.store(table + 11, a11)
    tl.store(table + 12, a12)
    tl.store(table + 13, a13)
    tl.store(table + 14, a14)
    tl.store(table + 15, a15)
