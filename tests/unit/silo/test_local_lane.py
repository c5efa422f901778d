"""Silos on one host: they talk by sockets where they may, and do without where they cannot."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from silo.grain import Grain, grain
from silo.messaging.local_transport import LocalTransport
from silo.settings import SiloSettings
from silo.surroundings import Surroundings
from tests.cluster.clusters import Cluster, MemoryStand
from tests.support.waiting import until
from tests.unit.messaging.link_world import LaneTransport


@grain(kind="local-lane.counter")
class Counter(Grain):
    def __init__(self) -> None:
        self.total = 0

    async def add(self) -> int:
        self.total += 1
        return self.total


class HostStand(MemoryStand):
    """Silos that are on one host, as far as their folder says."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.lanes: list[LaneTransport] = []

    def surroundings(self, settings: SiloSettings) -> Surroundings:
        return replace(super().surroundings(settings), open_local=self.open_local)

    def open_local(self) -> LaneTransport:
        self.lanes.append(LaneTransport(LocalTransport(self.folder)))
        return self.lanes[-1]


async def calls(cluster: Cluster) -> None:
    client = await cluster.client()
    for key in range(20):
        assert await client.grain(Counter, f"one of {key}").add() == 1


async def test_silos_on_one_host_talk_by_sockets_which_go_when_they_leave(tmp_path: Path) -> None:
    stand = HostStand(tmp_path / "s")
    cluster = Cluster(stand)
    try:
        await cluster.start("a", "b", kinds=(Counter,))
        assert len(os.listdir(stand.folder)) == 2
        await until(lambda: any(lane.dialled for lane in stand.lanes))
        await calls(cluster)
        await cluster.stop("a")
        assert len(os.listdir(stand.folder)) == 1
    finally:
        await cluster.close()
    assert os.listdir(stand.folder) == []


async def test_a_silo_that_may_have_no_socket_says_why_and_does_without(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "s").touch()
    cluster = Cluster(HostStand(tmp_path / "s"))
    try:
        await cluster.start("a", "b", kinds=(Counter,))
        await calls(cluster)
    finally:
        await cluster.close()
    assert "silo.no_local_lane" in caplog.text


@pytest.mark.parametrize("settings", [{"direct": False}, {"direct_local": False}], ids=["no_lane", "no_sockets"])
async def test_a_setting_does_without_sockets(tmp_path: Path, settings: dict[str, Any]) -> None:
    stand = HostStand(tmp_path / "s")
    cluster = Cluster(stand)
    try:
        await cluster.start("a", "b", kinds=(Counter,), **settings)
        await calls(cluster)
    finally:
        await cluster.close()
    assert not stand.folder.exists()
    assert stand.lanes == []
