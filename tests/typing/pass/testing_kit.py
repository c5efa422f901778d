"""The testing kit is typed by the scenario and by the grain; both type checkers have to agree."""

from __future__ import annotations

from typing import assert_type

from silo.grain import Grain, grain, soft_state
from silo.testing import Cluster, Place, Planned, Run, Step, check_migratable, run_simulated


@grain(kind="room")
class Room(Grain):
    inside: list[str] = soft_state(default_factory=list)

    async def enter(self, player: str) -> int:
        self.inside.append(player)
        return len(self.inside)


async def scenario(cluster: Cluster) -> int:
    room = cluster.client.grain(Room, "lobby")
    assert_type(room, Room)
    assert_type(cluster.when(Step.OFFER, lambda at: cluster.kill(at.source)), Planned)
    assert_type(await cluster.fail(Step.DEHYDRATE, grain=room).reached(), Place)
    assert_type(cluster.home(room), str)
    return await room.enter("ada")


async def script(room: Room) -> None:
    assert_type(await room.enter("ada"), int)


def test_scenario() -> None:
    run = run_simulated(scenario, kinds=[Room], silos=3, seeds=10)
    assert_type(run, Run[int])
    assert_type(run.result, int)


def test_script() -> None:
    check_migratable(Room, script)
    check_migratable(Room, lambda room: room.enter("ada"))
