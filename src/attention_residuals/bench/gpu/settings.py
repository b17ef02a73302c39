"""Shapes and types of a run: those to publish, and tiny ones that show that everything works."""

from dataclasses import dataclass, replace

import torch

FLOAT_TYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Settings:
    """What is run, and where.

    Args:
        device: of the tensors; "cpu" means Triton's interpreter.
        counts, widths, tokens, dtypes: of the sources in the checks, every combination.
        sweep: numbers of sources for which compiled variants are counted.
        reads: N, T, D of single reads.
        blocks: N, S, T, D of blocks.
        full: reads, T, D of Full.
        decode: N, T, D of single reads of few tokens.
        network: layers, width, batch, sequence, sublayers of a block.
        processes: that check at once; 0 checks in this process.
        rounds: of timing, at most.
    """

    device: str
    counts: tuple[int, ...]
    widths: tuple[int, ...]
    tokens: tuple[int, ...]
    dtypes: tuple[torch.dtype, ...]
    sweep: tuple[int, ...]
    reads: tuple[tuple[int, int, int], ...]
    blocks: tuple[tuple[int, int, int, int], ...]
    full: tuple[int, int, int]
    decode: tuple[tuple[int, int, int], ...]
    network: tuple[int, int, int, int, int]
    processes: int
    rounds: int

    @property
    def on_gpu(self) -> bool:
        """Whether there is a GPU: without one there is nothing to time or to capture."""
        return self.device == "cuda"

    def on(self, device: str) -> "Settings":
        """The same elsewhere."""
        return replace(self, device=device)


REAL = Settings(
    device="cuda",
    counts=(1, 8, 33, 130),
    widths=(64, 1000, 1024, 4096, 7168),
    tokens=(3, 70),  # few enough for D to be split over programs, and more
    dtypes=FLOAT_TYPES,
    sweep=tuple(range(1, 65)),
    # 128 MiB of sources or as near as whole thousands of tokens come, well above a cache of 50 MB.
    reads=(
        (8, 8192, 1024), (8, 2048, 4096), (8, 1170, 7168), (32, 2048, 1024), (32, 512, 4096), (32, 293, 7168),
    ),
    blocks=((8, 8, 2048, 4096), (8, 8, 8192, 1024)),
    full=(48, 4096, 1024),
    decode=tuple((count, tokens, width) for width in (4096, 7168) for tokens in (1, 8) for count in (8,)),
    network=(8, 1024, 8, 1024, 4),
    processes=12,
    rounds=40,
)  # fmt: skip

TINY = Settings(
    device="cpu",
    counts=(1, 3),
    widths=(33, 64),
    tokens=(2, 19),
    dtypes=FLOAT_TYPES,
    sweep=(1, 2, 3, 4),
    reads=((3, 35, 64),),
    blocks=((2, 3, 35, 64),),
    full=(9, 35, 64),
    decode=((3, 1, 64),),
    network=(2, 64, 2, 16, 2),
    processes=0,
    rounds=5,
)
