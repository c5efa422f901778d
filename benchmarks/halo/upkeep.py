"""What it costs to watch: processor time per message, and memory per grain, of the table of neighbours as shipped."""

from __future__ import annotations

import random
import time
import tracemalloc
from collections.abc import Callable

from silo.directory.addresses import GrainId, SiloAddress
from silo.migration.repartitioning.neighbours import NeighbourTable
from silo.migration.repartitioning.settings import RepartitioningSettings

GRAINS, PEERS = 2_000, 8
MESSAGES = 20_000
REPEATS = 15
NS = 1e9


def per_message_ns(repeats: int = REPEATS, messages: int = MESSAGES) -> dict[str, float]:
    """Nanoseconds of processor time per message, the best of many short repetitions, without the loop around it.

    Two thousand players and their games, in no order; and one grain with twenty thousand peers. The table is asked with
    names that are equal to those it keeps and not the very same, as decoded ones are; they have been used just before.
    """
    rng = random.Random(1)
    here, there = SiloAddress("here:1", 1), SiloAddress("there:1", 1)
    table = NeighbourTable(here, RepartitioningSettings(), rng, 0.0)
    for number in range(GRAINS):
        table.on_remote(GrainId("player", str(number)), GrainId("game", str(number // PEERS)), there)
    names = [(GrainId("player", str(number)), GrainId("game", str(number // PEERS))) for number in range(GRAINS)]
    pairs = [rng.choice(names) for _ in range(messages)]
    crowd = [(GrainId("game", "famous"), GrainId("player", str(rng.randrange(10 * GRAINS)))) for _ in range(messages)]

    def touch(one: GrainId, other: GrainId) -> int:
        return hash(one) ^ hash(other)

    def nothing(one: GrainId, other: GrainId) -> None:
        touch(one, other)

    def remote(one: GrainId, other: GrainId) -> None:
        touch(one, other)
        table.on_remote(one, other, there)

    def local(one: GrainId, other: GrainId) -> None:
        touch(one, other)
        table.on_local(one, other)

    def best(call: Callable[[GrainId, GrainId], object], of: list[tuple[GrainId, GrainId]]) -> float:
        took: list[float] = []
        for _ in range(repeats):
            began = time.process_time()
            for one, other in of:
                call(one, other)
            took.append(time.process_time() - began)
        return min(took) / len(of) * NS

    floor, floor_crowded = best(nothing, pairs), best(nothing, crowd)
    return {
        "remote": best(remote, pairs) - floor,
        "remote_crowded": best(remote, crowd) - floor_crowded,
        "local": best(local, pairs) - floor,
    }


def bytes_per_grain(grains: int = 5_000, peers: int = 16) -> float:
    """Memory of a grain whose every place for a peer is taken, names not included, which the silo has anyway."""
    settings = RepartitioningSettings(grains_max=grains, peers_max=peers)
    table = NeighbourTable(SiloAddress("here:1", 1), settings, random.Random(1), 0.0)
    there = SiloAddress("there:1", 1)
    names = [GrainId("player", str(number)) for number in range(grains)]
    tracemalloc.start()
    for number, name in enumerate(names):
        for step in range(peers):
            table.on_remote(name, names[(number + step + 1) % grains], there)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return taken / grains
