"""Fixtures for all tests: servers, and a cluster name that no other test uses."""

from __future__ import annotations

import uuid

import pytest

from tests.support.redis_server import own_redis_server, redis_server, redis_url

__all__ = ["own_redis_server", "redis_server", "redis_url"]

SERVER_FIXTURES = {"own_redis_server", "redis_server", "redis_url"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs a Redis or Valkey server, so that `pytest -m redis` runs exactly that."""
    for item in items:
        if SERVER_FIXTURES.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.redis)


@pytest.fixture
def cluster_name() -> str:
    return f"test-{uuid.uuid4().hex[:12]}"
