"""What the conformance kits of several seams run over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping

import pytest

from tests.support.redis_topology import slot_cluster

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, LoopFactory]:
    """Transports are held on each loop that silos run on, since what TCP and TLS do there is the loop's own."""
    factories: dict[str, LoopFactory] = {"asyncio": asyncio.new_event_loop}
    if item.path.stem.startswith("test_transport"):
        try:
            import uvloop
        except ModuleNotFoundError:  # it is not to be had everywhere
            return factories
        factories["uvloop"] = uvloop.new_event_loop
    return factories


@pytest.fixture(scope="session")
def redis_cluster_url() -> Iterator[str]:
    """A Redis Cluster of three masters."""
    with slot_cluster() as servers:
        yield servers.url
