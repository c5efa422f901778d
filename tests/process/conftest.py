"""Fixtures of the process tests. Every test of this folder is marked `process`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from silo.embedded import EmbeddedServer
from tests.process.stage import LONG, Stage

HERE = Path(__file__).parent
LONG_TIMEOUT_S = 600
"""How long one test may take in its long form."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what starts silo processes, and nothing else; the long forms have more time."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.process)
            if LONG:
                item.add_marker(pytest.mark.timeout(LONG_TIMEOUT_S))


@pytest.fixture(autouse=True)
def forked_from_a_warm_one(warm_processes: None) -> None:
    """Silos and callers cost no imports, save in tests that are marked `fresh`."""


@pytest.fixture
def make_stage(own_redis_server: EmbeddedServer, cluster_name: str, tmp_path: Path) -> Callable[..., Stage]:
    """Makes the stage of a test: with a server of its own, and the settings that are given."""

    def make(settings: dict[str, object] | None = None, **environment: str) -> Stage:
        return Stage(own_redis_server.url, cluster_name, tmp_path, settings or {}, environment)

    return make
