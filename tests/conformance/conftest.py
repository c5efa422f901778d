"""What the conformance kits of several seams run over."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from silo.directory.redis_connection import open_sync
from tests.support.redis_server import ask_until, server_for_tests


@pytest.fixture(scope="session")
def redis_cluster_url() -> Iterator[str]:
    """A Redis Cluster of one node that has all slots."""
    with server_for_tests(arguments=["--cluster-enabled", "yes"]) as server:
        with contextlib.closing(open_sync(server.url, 1.0)) as typed:
            client: Any = typed
            client.execute_command("CLUSTER ADDSLOTSRANGE", 0, 16383)
            ask_until(lambda: client.execute_command("CLUSTER INFO")["cluster_state"] == "ok")
        yield server.url.replace("redis://", "redis+cluster://")
