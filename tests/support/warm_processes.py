"""Fixtures: for the time of a test, processes are forked by a warm one (`tests.support.warm_popen`)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator

import pytest

from tests.support.warm_popen import WarmPopen, WarmServer


@pytest.fixture(scope="session")
def warm_server() -> Generator[WarmServer]:
    """One for each worker of the tests."""
    server = WarmServer()
    yield server
    server.stop()


@pytest.fixture
def warm_processes(request: pytest.FixtureRequest, warm_server: WarmServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes are forked by a warm one, for the time of a test that does not ask for fresh ones; on Linux."""
    if sys.platform == "linux" and request.node.get_closest_marker("fresh") is None:
        warm_server.start()
        monkeypatch.setattr(WarmPopen, "server", warm_server, raising=False)
        monkeypatch.setattr(subprocess, "Popen", WarmPopen)
