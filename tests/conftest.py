"""What all tests share: a cache of their own, so that none meets what an earlier run left behind,
except the compiled kernels."""

from collections.abc import Iterator

import pytest

from attention_residuals.ops.native import cache_folder, load_native


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    load_native()
    compiled, cache = cache_folder(), tmp_path_factory.mktemp("cache")
    if compiled.is_dir():
        (cache / "native").symlink_to(compiled)  # commands that tests start need not compile the kernels again
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATTNRES_CACHE", str(cache))
        yield
