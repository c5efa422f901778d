"""Fixtures for all tests: servers, and a cluster name that no other test uses."""

from __future__ import annotations

import gc
import uuid

import pytest

from tests.support.redis_server import own_redis_server, redis_server, redis_url
from tests.support.warm_processes import warm_processes, warm_server

__all__ = ["own_redis_server", "redis_server", "redis_url", "warm_processes", "warm_server"]

SERVER_FIXTURES = {"own_redis_server", "redis_server", "redis_url"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs a Redis or Valkey server, so that `pytest -m redis` runs exactly that."""
    for item in items:
        if SERVER_FIXTURES.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.redis)


def pytest_collection_finish() -> None:
    """Keep the garbage collector off what all tests have imported: each run under virtual time ends with a collection.

    It would look at half a million objects that are there to stay, and that was half of what most tests took.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture
def cluster_name() -> str:
    return f"test-{uuid.uuid4().hex[:12]}"
