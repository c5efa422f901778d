"""Small clusters in memory whose ways can be cut: the cluster of `tests.cluster.clusters`, and what can befall it.

A story is written as a coroutine over a `Scene`, and `told` makes a test of it that runs under virtual time, where
waiting costs nothing and whatever waits for ever fails the test.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from silo.client import Client
from silo.directory.errors import DirectoryUnavailable, MembershipUnavailable
from silo.directory.loop_membership import LoopMembership
from silo.directory.membership import TableRequest
from silo.host import Silo
from silo.persistence.memory_storage import Hook, MemoryStorage, StorageCall
from silo.settings import SiloSettings
from silo.surroundings import Surroundings
from silo.testing.virtual_time import run
from tests.cluster.clusters import LEASE, Cluster, MemoryStand
from tests.cluster.stage import Stage, staged

STEP_S = 1e-6
STORY_S_MAX = 3600.0


class FaultyStand(MemoryStand):
    """A stand on which single silos lose the directory or the membership table."""

    def __init__(self, seed: int = 1) -> None:
        super().__init__(seed)
        self.without_directory: set[str] = set()
        """The names of silos that cannot reach the directory."""
        self.storage_before: dict[str, Hook] = {}
        self.storage_after: dict[str, Hook] = {}
        """What befalls the way to the storage, there and back, by silo."""
        self.with_broken_lease: set[str] = set()
        """Likewise, those whose lease fails by a mistake of its own."""

    async def asked(self, name: str, call: str) -> None:
        await super().asked(name, call)
        if name in self.without_directory:
            raise DirectoryUnavailable("the way to the directory is cut")

    def surroundings(self, settings: SiloSettings) -> Surroundings:
        name, table = str(settings.name), self.world.table

        async def ask_table(_: TableRequest) -> None:
            if name in self.without_table:
                raise MembershipUnavailable("the way to the membership table is cut")
            if name in self.with_broken_lease:
                raise RuntimeError("a mistake in the lease")

        async def to_storage(call: StorageCall) -> None:
            await self.storage_asked(call)
            if name in self.storage_before:
                await self.storage_before[name](call)

        async def from_storage(call: StorageCall) -> None:
            if name in self.storage_after:
                await self.storage_after[name](call)

        return replace(
            super().surroundings(settings),
            open_membership=lambda: LoopMembership(
                table, settings=LEASE, post=self.world.post, follow=table.follow, before=ask_table
            ),
            open_storage=lambda: MemoryStorage(self.storage_rows, before=to_storage, after=from_storage),
        )


class Scene:
    """What one story is about: a cluster, the stand that it is on, and the stage to which its grains talk."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.stand = FaultyStand()
        self.cluster = Cluster(self.stand)

    async def start(self, *names: str, kinds: tuple[type, ...], **settings: Any) -> list[Silo]:
        return await self.cluster.start(*names, kinds=kinds, **settings)

    async def client(self, **options: Any) -> Client:
        return await self.cluster.client(**options)

    def silo(self, name: str) -> Silo:
        return self.cluster.silos[name]


def told(story: Callable[[Scene], Awaitable[None]]) -> Callable[[], None]:
    """A test that plays the story under virtual time, and fails if a task is left behind."""

    async def play() -> None:
        with staged() as stage:
            scene = Scene(stage)
            try:
                await story(scene)
            finally:
                stage.open_all()
                scene.stand.without_directory.clear()
                scene.stand.mend_leases()
                scene.stand.storage_before.clear()
                scene.stand.storage_after.clear()
                scene.stand.network.heal()
                await scene.cluster.close()

    def test() -> None:
        run(play, step_s=STEP_S, seconds_max=STORY_S_MAX)

    test.__name__ = getattr(story, "__name__", "story")
    test.__doc__ = story.__doc__
    return test
