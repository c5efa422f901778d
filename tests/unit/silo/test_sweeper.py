"""The sweeper: the rows of the dead are cleared away by one silo, and by another where that one dies first."""

from __future__ import annotations

from silo.grain import Grain, grain
from silo.reference import with_hint
from tests.support.memory_cluster import Scene, told


@grain(kind="stone")
class Stone(Grain):
    async def lie(self) -> str:
        return self.silo


ABC = ("a", "b", "c")


async def with_stones_at(scene: Scene, silo: str) -> None:
    await scene.start(*ABC, kinds=(Stone,))
    for number in range(5):
        await with_hint(scene.silo("a").grain(Stone, str(number)), silo).lie()


@told
async def test_rows_of_a_dead_silo_go_though_nobody_calls_its_grains(scene: Scene) -> None:
    await with_stones_at(scene, "c")
    await scene.cluster.kill("c")
    await scene.cluster.seen(lambda: not scene.stand.rows.all())


@told
async def test_another_silo_sweeps_where_the_elected_one_dies_before_it_has(scene: Scene) -> None:
    await with_stones_at(scene, "c")
    dead = scene.silo("c").address
    sweepers = {name: scene.silo(name).runtime.sweeper for name in "ab"}
    view = scene.silo("a").view
    elected = next(name for name, sweeper in sweepers.items() if sweeper.is_elected(view, dead))
    scene.stand.without_directory.add(elected)
    await scene.cluster.kill("c")
    await scene.cluster.seen(lambda: all(silo.view.is_dead(dead) for silo in scene.cluster.silos.values()))
    assert len(scene.stand.rows.all()) == 5
    await scene.cluster.kill(elected)
    await scene.cluster.seen(lambda: not scene.stand.rows.all())
