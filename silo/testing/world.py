"""What a cluster in memory stands on: its network, its store and its membership table, and the chance of one seed."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable
from functools import partial
from typing import Final

from silo.directory.lease_post import LeasePost
from silo.directory.lease_settings import LeaseSettings
from silo.directory.loop_membership import LoopMembership
from silo.directory.memory_directory import DirectoryRows
from silo.directory.memory_membership import MemoryMembershipTable
from silo.persistence.memory_storage import MemoryStorage, StorageRows
from silo.surroundings import Surroundings
from silo.testing.network import DELAY_S, MemoryNetwork
from silo.testing.nodes import Node
from silo.testing.store import DistantDirectory, LeaseRoad, StorageWay, Store, TableWay

DIRECT_LANE: Final = "direct lane"
"""The way of the network by which silos talk once they have met."""


class World:
    """The world of one cluster, from which each of its silos is given its surroundings.

    Args:
        rng: all chance is drawn from it, so that a seed repeats.
        lease: of every silo.
        delay_s: the range of a message's travelling time, in seconds.
    """

    def __init__(self, rng: random.Random, *, lease: LeaseSettings, delay_s: tuple[float, float] = DELAY_S) -> None:
        self.rng = rng
        self.lease = lease
        self.network = MemoryNetwork(random.Random(rng.random()), delay_s=delay_s)
        self.store = Store(self.network, random.Random(rng.random()))
        self.road = LeaseRoad(self.network)
        self.post = LeasePost(self.road)
        self.rows = DirectoryRows()
        self.table = MemoryMembershipTable()
        self.storage_rows = StorageRows()
        self._incarnations = itertools.count(1)

    def surroundings(self, node: Node | str, clock: Callable[[], float] | None = None) -> Surroundings:
        """What a silo is built from that runs as this node, or that is merely known by this name.

        Args:
            clock: the silo's own, which may drift; None for the loop's.
        """
        name = node if isinstance(node, str) else node.name
        way = TableWay(self.store, name)
        storage_way = StorageWay(self.store, name)
        return Surroundings(
            open_transport=lambda _services: self.network.transport(node),
            open_direct=lambda: self.network.transport(node, DIRECT_LANE),
            open_directory=lambda: DistantDirectory(self.store, self.rows, name),
            open_membership=lambda: LoopMembership(
                self.table,
                settings=self.lease,
                clock=clock,
                post=self.post,
                follow=self.table.follow,
                before=way.before,
                after=way.after,
            ),
            new_incarnation=partial(next, self._incarnations),
            rng=self.draw_rng(),
            open_storage=lambda: MemoryStorage(self.storage_rows, before=storage_way.before, after=storage_way.after),
            stopwatch=lambda: asyncio.get_running_loop().time(),
        )

    def lose(self) -> None:
        """The store forgets what silos keep there, though not what grains have stored."""
        self.rows.lose()
        self.table.lose()

    def keep(self) -> Callable[[], None]:
        """What starts the store again with what silos keep there now."""
        rows, table = self.rows.copy(), self.table.copy()

        def set_back() -> None:
            self.rows.set_back(rows)
            self.rows.restart()
            self.table.set_back(table)
            self.table.fail_over()

        return set_back

    def draw_rng(self) -> random.Random:
        """A source of chance of its own, drawn from the seed's."""
        return random.Random(self.rng.random())
