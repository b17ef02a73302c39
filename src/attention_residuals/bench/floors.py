"""How much memory traffic each schedule cannot do without, in units of U, the bytes of one tensor `[T, D]`.

Every tensor that a kernel needs is read once and every one that it makes is written once; what is a number a token is
left out. A floor in seconds is these bytes at the speed of a plain copy.
"""

from collections.abc import Sequence


def read_units(sources: int) -> tuple[int, int]:
    """Forward and backward of one read: sources in, mixture out; sources and its gradient in, source gradients out."""
    return sources + 1, 2 * sources + 1


def group_units(common: int, local: Sequence[int], gradients: Sequence[int], sums: int = 0) -> tuple[int, int]:
    """Forward and backward of reads that share a first phase.

    Args:
        common: sources that all reads have.
        local: for each read, how many sources it has besides.
        gradients: for each local source, how many reads have it.
        sums: local sources that are the sum of two tensors, which is part of the read that needs it first.

    Forward: the first phase reads the common sources and writes a part for each read. A read with local sources then
    reads its part and these, and writes its mixture; a sum also reads one more tensor and writes another.

    Backward: a local source is read, with its running gradient and the gradients of its reads, and its own is written;
    each such read's mixture is read once. The same once for the common sources, with the gradients of all reads.
    """
    reads, later = len(local), [count for count in local if count]
    forward = common + reads + sum(count + 2 for count in later) + 2 * sums
    backward = 3 * common + reads + sum(count + 3 for count in gradients) + len(later)
    return forward, backward


def block_units(sources: int, reads: int) -> tuple[int, int]:
    """A block of `reads` over `sources` closed ones, in two phases: N + 6S - 7 and 3N + 6S - 5.

    The first read has no partial sum; the second has the first output as it is; each later one adds an output to it.
    """
    return group_units(sources, [0] + [1] * (reads - 1), [1] * (reads - 1), sums=reads - 2)


def full_units(sublayers: int, group: int) -> tuple[int, int]:
    """Full over `sublayers`, `group` consecutive ones sharing a first phase, and the output read as a single one.

    Sublayer 0 reads the embedding as it is, so the first group has one read less and all its reads have local sources.
    """
    forward, backward = read_units(sublayers + 1)
    for begin in range(0, sublayers, group):
        size = min(group, sublayers - begin)
        local = list(range(1 if begin == 0 else 0, size))
        if not local:
            continue
        shared = group_units(begin + 1, local, list(range(1, size)))
        forward, backward = forward + shared[0], backward + shared[1]
    return forward, backward
