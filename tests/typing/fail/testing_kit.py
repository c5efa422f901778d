"""Each line with a comment `E:` is a mistake, and both type checkers have to find it there and nowhere else."""

from __future__ import annotations

from silo.grain import Grain, grain
from silo.testing import Cluster, check_migratable, run_simulated


@grain(kind="room")
class Room(Grain):
    async def enter(self, player: str) -> int:
        return len(player)


@grain(kind="hall")
class Hall(Grain):
    async def sweep(self) -> None: ...


async def sweep(hall: Hall) -> None:
    await hall.sweep()


async def scenario(cluster: Cluster) -> None:
    await cluster.client.grain(Room, "lobby").enter(1)  # E: mypy=arg-type pyright=reportArgumentType
    cluster.when("offer", print)  # E: mypy=arg-type pyright=reportArgumentType
    cluster.partition("silo-1")  # E: mypy=call-arg pyright=reportCallIssue


def not_async(cluster: Cluster) -> int:
    return len(cluster.silos)


def test_all() -> None:
    run_simulated(not_async, kinds=[Room])  # E: mypy=arg-type pyright=reportArgumentType
    run_simulated(scenario)  # E: mypy=call-arg pyright=reportCallIssue
    check_migratable(Room, sweep)  # E: mypy=arg-type pyright=reportArgumentType
