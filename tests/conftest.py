"""What all tests share: a cache of their own, so that none meets what an earlier run left behind, and the kernels."""

import warnings
from collections.abc import Iterator

import pytest

from attention_residuals.ops.native import load_native


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATTNRES_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def kernels_are_loaded() -> None:
    """Once, before any test: where they cannot be compiled the one warning is spent, and the plain path is tested."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        load_native()
