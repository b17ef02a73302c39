"""What all tests share: a cache of their own, so that none meets what an earlier run left behind, and the kernels."""

import warnings
from collections.abc import Iterator

import pytest

from attention_residuals.ops.native import cache_folder, load_native


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    # Where there is no compiler the one warning is spent here, and the plain path is tested.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        load_native()
    compiled, cache = cache_folder(), tmp_path_factory.mktemp("cache")
    if compiled.is_dir():
        (cache / "native").symlink_to(compiled)  # commands that tests start need not compile the kernels again
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATTNRES_CACHE", str(cache))
        yield
