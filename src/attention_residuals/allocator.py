"""Keeping freed memory in the process, for training and inference on the CPU.

A C library hands large freed blocks back to the system at once, so that each new tensor of some MiB is made of pages
that the system has to clear first: cloning 128 MiB takes 32,768 page faults and several times as long as the copy.
"""

import ctypes

# From glibc's malloc.h; the parameters of mallopt have no names outside of C.
M_TRIM_THRESHOLD = -1
M_MMAP_MAX = -4


def keep_freed_memory() -> bool:
    """Have the C library keep freed memory for later tensors, in this process, from now on; it cannot be undone.

    Call it once, before the work begins. Speed changes, results do not. The cost: the process stays as large as it
    ever was, and somewhat larger than without, since a block is only used again by what fits into it.

    Returns:
        Whether the C library took the settings. It is glibc's (Linux) that has them; elsewhere nothing is changed.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    # Both are needed, and no more. Without the first a large block is a mapping of its own, which goes when it is
    # freed; without the second the end of the heap is given back as often as something large there is freed.
    return all([mallopt(M_MMAP_MAX, 0) == 1, mallopt(M_TRIM_THRESHOLD, -1) == 1])
