"""The cluster that each test here gets: in memory under virtual time; if marked `real`, over gRPC and Redis too."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from silo.testing.virtual_time import VirtualTimeLoop, describe_task
from tests.cluster.clusters import Cluster, MemoryStand, RealStand
from tests.cluster.mortal import MortalCluster
from tests.cluster.stage import Stage, staged

VIRTUAL_S_MAX = 3600.0
STEPS_MAX = 600_000


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "in_memory: runs in memory alone, whatever its module says")
    config.addinivalue_line("markers", "real: also runs over gRPC and a real server, not in memory alone")


def _virtual_loop() -> asyncio.AbstractEventLoop:
    return VirtualTimeLoop(step_s=1e-6, seconds_max=VIRTUAL_S_MAX, steps_max=STEPS_MAX)


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Which loops a test runs on: its stands."""
    factories: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"memory": _virtual_loop}
    if item.get_closest_marker("real") is not None and item.get_closest_marker("in_memory") is None:
        factories["real"] = asyncio.new_event_loop
    return factories


@pytest.fixture
async def cluster(request: pytest.FixtureRequest, stage: Stage) -> AsyncIterator[Cluster]:
    """An empty cluster on the stand that the running loop stands for."""
    loop = asyncio.get_running_loop()
    if isinstance(loop, VirtualTimeLoop):
        made = Cluster(MemoryStand())
    else:
        made = Cluster(RealStand(request.getfixturevalue("redis_url"), request.getfixturevalue("cluster_name")))
    try:
        yield made
    finally:
        stage.open_all()
        await made.close()
    if isinstance(loop, VirtualTimeLoop):
        left = [task for task in loop.pending_tasks() if task is not asyncio.current_task()]
        assert not left, "left behind:\n" + "\n".join(describe_task(task) for task in left)


@pytest.fixture
def mortal(stage: Stage) -> MortalCluster:
    """An empty cluster of simulated processes, for a test that is `simulated`."""
    return MortalCluster()


@pytest.fixture
def stage() -> Iterator[Stage]:
    """What the test's grains say and wait for."""
    with staged() as made:
        yield made
