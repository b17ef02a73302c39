"""What a run of one benchmark is asked for."""

import math
from dataclasses import dataclass

import torch

from attention_residuals.bench.timing import Budget
from attention_residuals.errors import InputError, require_positive

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}
ALLOCATORS = ("shipped", "kept")

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Request:
    """One benchmark under given settings; `only` names the implementations to run, none meaning all.

    Raises:
        InputError: a setting that is not allowed.
    """

    benchmark: str
    shapes: tuple[Shape, ...]
    dtype: str = "float32"
    threads: int = 1
    repeats: int = 30
    seconds: float = 60.0
    allocators: tuple[str, ...] = ALLOCATORS
    only: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_positive(self, "threads", "repeats")
        if not (math.isfinite(self.seconds) and self.seconds > 0):
            raise InputError(f"seconds is {self.seconds}; it must be a number above 0")
        if self.dtype not in DTYPES:
            raise InputError(f"dtype is {self.dtype}; choose {', '.join(DTYPES)}")
        for allocator in self.allocators:
            if allocator not in ALLOCATORS:
                raise InputError(f"allocator is {allocator}; choose {' or '.join(ALLOCATORS)}")

    @property
    def budget(self) -> Budget:
        """How long each contest may take."""
        return Budget(self.repeats, self.seconds)

    @property
    def torch_dtype(self) -> torch.dtype:
        """Type of the sources."""
        return DTYPES[self.dtype]

    def wants(self, name: str) -> bool:
        """Whether the implementation `name` is to run."""
        return not self.only or name in self.only
