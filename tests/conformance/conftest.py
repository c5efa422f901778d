"""What the conformance kits of several seams run over."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.redis_topology import slot_cluster


@pytest.fixture(scope="session")
def redis_cluster_url() -> Iterator[str]:
    """A Redis Cluster of three masters."""
    with slot_cluster() as servers:
        yield servers.url
