"""The paper's losses (arXiv 2603.15031, Table 4 and Figure 6; 436 M parameters, 32 sublayers). Knows no torch."""

import re

BASELINE = 1.766

TABLE = {
    "standard": BASELINE,
    "denseformer": 1.767,
    "mhc": 1.747,
    "full": 1.737,
    "full+dynamic": 1.731,
    "full+static": 1.749,
    "full+sigmoid": 1.741,
    "full+nonorm": 1.743,
    "full+window8": 1.764,
    "block4+nonorm": 1.750,
}
HEADS = 1.752
"""Block of 4 with 16 heads a read."""

BLOCKS = {1: 1.737, 2: 1.746, 4: 1.746, 8: 1.748, 16: 1.753, 32: 1.757}
"""By sublayers a block; 32 is one block."""


def loss(stream: str, sublayers: int) -> float | None:
    """The paper's loss of an arm, None if it has none; one block of all sublayers stands for one of theirs."""
    if stream in TABLE:
        return TABLE[stream]
    if re.fullmatch(r"block4\+heads\d+", stream):
        return HEADS
    size = block_size(stream)
    if size is None:
        return None
    return BLOCKS[32] if size >= sublayers else BLOCKS.get(size)


def block_size(stream: str) -> int | None:
    """Sublayers a block of a plain Block or Full; None for any other."""
    if stream == "full":
        return 1
    match = re.fullmatch(r"block(\d+)", stream)
    return int(match[1]) if match else None
