"""The nemesis: does to the cluster what the schedule says, and tells of each act as it begins."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from collections import Counter as Tally
from collections.abc import Callable, Sequence
from typing import Final

from silo.testing.witness import What
from tests.chaos.cluster import ChaosCluster
from tests.chaos.schedule import Act, Beat
from tests.support.redis_server import operator

LOOK_EVERY_S: Final = 0.01
LATE_MAX_S: Final = 1.0


class Nemesis:
    """Plays a schedule. Acts on processes come one at a time, and so do those on Redis.

    Args:
        tell: told of each act when it begins.
    """

    def __init__(self, cluster: ChaosCluster, lease_s: float, tell: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._lease_s = lease_s
        self._tell = tell
        self._processes = asyncio.Lock()
        self._redis = asyncio.Lock()
        self.done: Tally[Act] = Tally()
        """How often each act was played."""

    async def play(self, beats: Sequence[Beat], seconds: float) -> None:
        """Play them all, each at its time or as soon as it can, and wait for the end of the run."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        async with asyncio.TaskGroup() as group:
            for beat in beats:
                await asyncio.sleep(began + beat.at_s - loop.time())
                late_s = loop.time() - began - beat.at_s
                if late_s > LATE_MAX_S:  # the machine stood still: what was due then does not come all at once now
                    began += late_s
                group.create_task(self._act(beat), name=str(beat))
            await asyncio.sleep(began + seconds - loop.time())

    async def heal(self) -> None:
        """Whatever is left of the acts: clear roads, all silos up."""
        self._cluster.network.heal()
        missing = [name for name in self._cluster.silos if name not in self._cluster.up]
        await asyncio.gather(*(self._cluster.start(name) for name in missing))

    async def _act(self, beat: Beat) -> None:
        match beat.act:
            case Act.KILL | Act.FREEZE | Act.TERMINATE | Act.ROLL:
                async with self._processes:
                    self._begin(beat)
                    await self._to_processes(beat)
            case Act.REDIS_RESTART | Act.REDIS_CRASH | Act.REDIS_PAUSE | Act.WIPE | Act.ROLL_BACK:
                async with self._redis:
                    self._begin(beat)
                    with self._cluster.fault(beat.act):
                        await self._to_redis(beat)
            case Act.DELAY | Act.HOLD | Act.CUT | Act.LOSE_ANSWER | Act.RESET:
                self._begin(beat)
                with self._cluster.fault(f"{beat.act} {beat.one} {beat.other}"):
                    await self._to_links(beat)

    def _begin(self, beat: Beat) -> None:
        self.done[beat.act] += 1
        self._tell(str(beat))

    async def _to_processes(self, beat: Beat) -> None:
        cluster, name = self._cluster, beat.one
        match beat.act:
            case Act.KILL if name in cluster.up:
                with cluster.fault(f"kill {name}"):
                    await cluster.kill(name)
                    await asyncio.sleep(beat.lasts_s)
                    await cluster.start(name)
            case Act.FREEZE if name in cluster.up:
                with cluster.fault(f"freeze {name}"):
                    await self._freeze(name, beat.lasts_s)
            case Act.TERMINATE if name in cluster.up:
                await cluster.stop(name)
                await asyncio.sleep(beat.lasts_s)
                await cluster.start(name)
            case Act.ROLL:
                for each in cluster.silos:
                    if each in cluster.up:
                        await cluster.stop(each)
                        await cluster.start(each)
            case _:
                pass  # the silo has ended by itself: a violation, and the guard has told of it

    async def _freeze(self, name: str, lasts_s: float) -> None:
        cluster = self._cluster
        process, silo = cluster.up[name], str(cluster.members.current(name))
        cluster.witness(What.PAUSED, silo=silo)
        process.pause()
        await asyncio.sleep(lasts_s)
        cluster.witness(What.RESUMED, silo=silo)
        process.resume()

    async def _to_redis(self, beat: Beat) -> None:
        server = self._cluster.redis
        match beat.act:
            case Act.REDIS_PAUSE:
                os.kill(server.pid, signal.SIGSTOP)
                await asyncio.sleep(beat.lasts_s)
                os.kill(server.pid, signal.SIGCONT)
            case Act.REDIS_CRASH:
                await asyncio.to_thread(server.kill)
                await asyncio.sleep(beat.lasts_s)
                await asyncio.to_thread(server.restart)
            case Act.REDIS_RESTART:
                await asyncio.to_thread(server.restart)
            case Act.WIPE:
                self._cluster.members.forgetful = True
                redis = operator(server.url)
                try:
                    await redis.flushall()
                finally:
                    await redis.aclose()
            case _:
                self._cluster.members.forgetful = True
                await self._roll_back(beat.lasts_s)

    async def _roll_back(self, after_s: float) -> None:
        """Start the server again with the files that it had a while ago, as from a backup."""
        server, files, kept = (
            self._cluster.redis,
            self._cluster.redis_files,
            self._cluster.redis_files.with_name("kept"),
        )
        await asyncio.to_thread(shutil.copytree, files, kept)
        await asyncio.sleep(after_s)
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(shutil.rmtree, files)
        kept.rename(files)
        await asyncio.to_thread(server.restart)

    async def _to_links(self, beat: Beat) -> None:
        network = self._cluster.network
        there, back = network.road(beat.one, beat.other), network.road(beat.other, beat.one)
        match beat.act:
            case Act.DELAY:
                there.delay_s = back.delay_s = beat.delay_s
                await asyncio.sleep(beat.lasts_s)
            case Act.HOLD:
                there.block()
                back.block()
                await asyncio.sleep(beat.lasts_s)
            case Act.CUT:
                there.block()
                await asyncio.sleep(beat.lasts_s)
                network.reset(beat.one, beat.other)
            case Act.LOSE_ANSWER:
                lost, until = network.answers_lost, time.monotonic() + self._lease_s
                back.answers_to_lose = 1
                while network.answers_lost == lost and time.monotonic() < until:  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(LOOK_EVERY_S)
            case _:
                network.reset(beat.one, beat.other)
        there.clear()
        back.clear()
