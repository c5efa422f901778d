"""What grains have stored survives SIGKILL and the end of the whole cluster, and nothing is stored twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from silo.client import Client
from silo.directory.errors import NotExecuted, SiloError
from silo.reference import with_timeout
from tests.process.grains import Vault
from tests.process.stage import Stage

SILOS = ("silo-1", "silo-2", "silo-3")
VAULTS = 20
DEADLINE_S = 4.0
KILLS = 2
PAUSE_S = 0.02
"""Between two writes of one vault: a load, and not so much that nothing else gets to run."""
LOADED_S = 1.0
"""How long the load runs between two kills."""
RETRY_PAUSE_S = 0.01


@dataclass
class Depositor:
    """Puts one number after the other into one vault, and keeps book of what it was told."""

    vault: Vault
    stored: list[int] = field(default_factory=list[int])
    unknown: set[int] = field(default_factory=set[int])
    refused: int = 0

    async def run(self, until: asyncio.Event) -> None:
        number = 0
        while not until.is_set():
            number += 1
            try:
                await self.vault.put(number)
            except NotExecuted:
                self.refused += 1
                await asyncio.sleep(RETRY_PAUSE_S)
            except SiloError:
                self.unknown.add(number)
            else:
                self.stored.append(number)
            await asyncio.sleep(PAUSE_S)

    def check(self, found: list[int]) -> None:
        """Nothing that was acknowledged is missing, nothing is there twice, and nothing that nobody may have put."""
        assert [number for number in found if number not in self.unknown] == self.stored
        assert len(set(found)) == len(found)


async def all_found(client: Client) -> list[list[int]]:
    async def look(key: int) -> list[int]:
        vault = with_timeout(client.grain(Vault, str(key)), DEADLINE_S)
        while True:
            try:
                return await vault.look()
            except SiloError:
                await asyncio.sleep(RETRY_PAUSE_S)

    async with asyncio.timeout(60.0):
        return await asyncio.gather(*(look(key) for key in range(VAULTS)))


async def test_R429_kill_9_loses_no_acknowledged_write_and_repeats_none(make_stage: Callable[..., Stage]) -> None:
    async with make_stage({}) as stage:
        async with stage.client() as client:
            await stage.start(*SILOS)
            vaults = [with_timeout(client.grain(Vault, str(key)), DEADLINE_S) for key in range(VAULTS)]
            depositors = [Depositor(vault) for vault in vaults]
            enough = asyncio.Event()
            async with asyncio.TaskGroup() as group:
                for depositor in depositors:
                    group.create_task(depositor.run(enough))
                for kill in range(KILLS):
                    await asyncio.sleep(LOADED_S)
                    await stage.kill(SILOS[kill % len(SILOS)])
                    await asyncio.sleep(LOADED_S)
                    await stage.start(SILOS[kill % len(SILOS)])
                await asyncio.sleep(LOADED_S)
                enough.set()
            for depositor, found in zip(depositors, await all_found(client), strict=True):
                depositor.check(found)
        for name in SILOS:
            await stage.kill(name)
        await stage.start("silo-4")
        async with stage.client() as client:
            for depositor, found in zip(depositors, await all_found(client), strict=True):
                depositor.check(found)
        stored = sum(len(depositor.stored) for depositor in depositors)
        unknown = sum(len(depositor.unknown) for depositor in depositors)
        refused = sum(depositor.refused for depositor in depositors)
        print(
            f"\nwrites: {stored} acknowledged, {unknown} unknown, {refused} refused; {KILLS} silos and a cluster killed"
        )
        assert stored > VAULTS * KILLS
