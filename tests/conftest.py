"""For every test: no GPU test without a GPU, and nothing of the user's own folders is read or written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


def has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    wanted = [item for item in items if item.get_closest_marker("gpu")]
    if wanted and not has_gpu():
        for item in wanted:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU"))


@pytest.fixture(autouse=True)
def own_folders(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """AUTOFUSE_STORE and the results and log folders under a folder of the test's own. The cache of compiled kernels is
    content-addressed and stays shared, so that tests are fast the second time."""
    from autofuse.settings import settings

    folder = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("AUTOFUSE_STORE", str(folder / "store"))
    monkeypatch.setenv("XDG_DATA_HOME", str(folder / "data"))
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
    settings.cache_clear()
    yield folder
    settings.cache_clear()
