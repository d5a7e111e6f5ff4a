"""Settings of the export's tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from hrm_edge_runtime.engines import times


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache of their own, because an export keeps the times that it measures, briefly here."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        patch.setattr(times, "MEASURING_S", 0.01)
        patch.setattr(times, "LONGER_S", 0.01)
        yield folder
