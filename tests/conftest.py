"""What all tests share: a cache of their own, so that none meets what an earlier run left behind."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATTNRES_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
