"""A cluster in memory whose silos are simulated processes: they are killed, frozen, and cut off from others.

For virtual time alone. A silo that is killed runs nothing more, says nothing to anybody, and its endpoint is free.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Protocol

from silo.directory.addresses import GrainId, SiloAddress
from silo.directory.errors import DirectoryUnavailable, MembershipUnavailable
from silo.directory.loop_membership import LoopMembership
from silo.directory.membership import SiloStatus, TableRequest
from silo.directory.memory_directory import DirectoryCall, MemoryDirectory
from silo.directory.memory_membership import MemoryMembershipTable
from silo.host import Silo
from silo.serialization.registry import DEFAULT_REGISTRY, TypeRegistry
from silo.settings import SiloSettings
from silo.surroundings import Surroundings
from silo.testing.nodes import Node
from silo.testing.virtual_time import VirtualTimeLoop, run
from tests.cluster.clusters import LEASE, Cluster, MemoryStand
from tests.cluster.stage import stage

STEP_S = 1e-6
STORY_S_MAX = 3600.0
STORY_STEPS_MAX = 2_000_000


class Befalls(Protocol):
    """What befalls one silo's calls of the directory."""

    def __call__(self, call: DirectoryCall) -> Awaitable[None]: ...


async def nothing(call: DirectoryCall) -> None:
    """The directory works."""


class MortalStand(MemoryStand):
    """A stand whose silos are nodes, each with ways of its own to the directory and to the membership table."""

    def __init__(self, seed: int = 1) -> None:
        super().__init__(seed)
        self.nodes: dict[str, Node] = {}
        self.before: dict[str, Befalls] = {}
        """By silo: awaited before its calls of the directory are carried out. It may wait, and raise."""
        self.after: dict[str, Befalls] = {}
        """By silo: awaited when they have been carried out and not been answered yet."""
        self.without_directory: set[str] = set()
        """The names of silos that cannot reach the directory."""

    @property
    def table(self) -> MemoryMembershipTable:
        return self.world.table

    def forget_row(self, silo: SiloAddress) -> None:
        """Take a silo's row out of the membership table, by hand."""
        del self.table._rows[silo]  # pyright: ignore[reportPrivateUsage] - as an operator does, past the table's scripts

    def surroundings(self, settings: SiloSettings) -> Surroundings:
        name = str(settings.name)

        async def before(call: DirectoryCall) -> None:
            await self.asked(name, call)
            if name in self.without_directory:
                raise DirectoryUnavailable("the way to the directory is cut")
            await self.before.get(name, nothing)(call)

        async def after(call: DirectoryCall) -> None:
            await self.after.get(name, nothing)(call)

        async def ask_table(_: TableRequest) -> None:
            if name in self.without_table:
                raise MembershipUnavailable("the way to the membership table is cut")

        own = self.world.surroundings(self.nodes[name])
        return replace(
            own,
            open_directory=lambda: MemoryDirectory(self.rows, before=before, after=after),
            open_membership=lambda: LoopMembership(
                self.table, settings=LEASE, post=self.world.post, follow=self.table.follow, before=ask_table
            ),
        )


class MortalCluster(Cluster):
    """The silos and clients of one test."""

    def __init__(self, seed: int = 1) -> None:
        self.world = MortalStand(seed)
        super().__init__(self.world)

    async def start(
        self, *names: str, kinds: tuple[type, ...], registry: TypeRegistry = DEFAULT_REGISTRY, **settings: Any
    ) -> list[Silo]:
        """Start silos of these names, each in a process of its own, and wait until the living see each other."""
        started = [await self.start_one(name, kinds=kinds, registry=registry, **settings) for name in names]
        await self.settled()
        return started

    async def start_one(
        self, name: str, *, kinds: tuple[type, ...], registry: TypeRegistry = DEFAULT_REGISTRY, **settings: Any
    ) -> Silo:
        """Start one silo, and wait until it serves."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        node = self.world.nodes[name] = loop.node(name)
        own = self.world.settings(name, **settings)
        silo = node.call(Silo, *kinds, settings=own, surroundings=self.world.surroundings(own), registry=registry)
        await node.run(silo.start(), name=f"start {name}")
        self.silos[name] = silo
        return silo

    async def settled(self) -> None:
        """Wait until every living silo sees all of the living as active, and nobody else."""
        await self.seen(lambda: all(len(silo.view.active()) == len(self.silos) for silo in self.silos.values()))

    async def stop(self, name: str) -> None:
        silo = self.silos.pop(name)
        await self.world.nodes[name].run(silo.drain_and_stop(), name=f"stop {name}")

    async def kill(self, name: str) -> None:
        self.kill_now(name)

    async def close(self) -> None:
        """End what is left. Whoever is called from outside of its process must live until here: it owns those tasks."""
        for client in self._clients:
            await client.close()
        while self.silos:
            name, silo = self.silos.popitem()
            self.thaw(name)
            await self.world.nodes[name].run(silo.kill(), name=f"end {name}")

    def kill_now(self, name: str) -> None:
        """SIGKILL; what is in the middle of a step ends that."""
        del self.silos[name]
        self.world.nodes[name].kill()

    def freeze(self, name: str) -> None:
        """SIGSTOP."""
        self.world.nodes[name].pause()

    def thaw(self, name: str) -> None:
        """SIGCONT."""
        self.world.nodes[name].resume()

    def status_of(self, silo: Silo) -> SiloStatus:
        """What the membership table says of a silo's present incarnation."""
        (status,) = (row.status for row in self.world.table.table.rows if row.silo == silo.address)
        return status

    def placed(self) -> set[tuple[GrainId, str]]:
        """What lives in the catalogs: grains, and the ids of their activations."""
        return {
            (activation.id, activation.activation_id)
            for silo in self.silos.values()
            for activation in silo.runtime.catalog
        }

    def assert_rows_match(self) -> None:
        """The directory and the catalogs match one to one."""
        rows = {(entry.grain, entry.activation) for entry in self.world.rows.all()}
        assert rows == self.placed()
        assert len(rows) == len(self.world.rows.all())


def simulated(story: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """A test of mortal silos: plays the story, which has a fixture `mortal`, on a loop of its own under virtual time.

    The dead leave tasks that never end, which only that loop's own end knows how to put away.
    """

    @functools.wraps(story)
    def test(**fixtures: Any) -> None:
        cluster: MortalCluster = fixtures["mortal"]

        async def play() -> None:
            try:
                await story(**fixtures)
            finally:
                stage().open_all()
                await cluster.close()

        run(play, step_s=STEP_S, seconds_max=STORY_S_MAX, steps_max=STORY_STEPS_MAX)

    return test
