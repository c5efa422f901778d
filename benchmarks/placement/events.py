"""What happens to a cluster, and what is measured while it does."""

from __future__ import annotations

import math
from dataclasses import dataclass

from benchmarks.placement.graphs import Graph
from benchmarks.placement.rules import Rule, chance
from benchmarks.placement.world import World

EVENTS = ("+30%", "-30%", "crash", "hot", "diurnal", "roll")
STEP_S = 5.0
LENGTH_S = 1200.0
ROLL_PAUSE_S = 30.0
HOT_SHARE = 0.5
"""The part of all grains that is on the hot silo."""
DIURNAL_PERIOD_S, DIURNAL_SWING = 900.0, 0.3
NEAR_EVEN = 0.05


@dataclass(frozen=True)
class Cell:
    """One place of the matrix."""

    silos: int
    grains_each: int
    graph: str
    event: str

    def __str__(self) -> str:
        return f"{self.silos} silos × {self.grains_each:,}, {self.graph}, {self.event}"


@dataclass
class Outcome:
    """What one rule made of one cell."""

    cell: Cell
    rule: str
    moves_fewest: int
    """What any rule must move after the event to have the counts within a grain."""
    moves: int
    peak_per_s: float
    near_even_s: float | None
    """How long after the event all silos are within 5 % and a grain of the mean; None where they never are."""
    spread: float
    spread_peak: float
    both_ways: int
    """Grains that went in and out of one silo."""
    tail_per_min: float
    """Moves a minute in the last third."""
    remote_before: float | None
    remote_peak: float | None
    remote_mean: float | None
    """Over the ten minutes after the event."""


def play(cell: Cell, rule: Rule, *, seed: int = 1, length_s: float = LENGTH_S) -> Outcome:
    """The event, and the time after it. Everything by chance follows from the seed."""
    graph = Graph(cell.graph, cell.silos * cell.grains_each, seed)
    world = World(graph, cell.silos, seed)
    world.rng = chance(cell, seed)
    before = world.remote()
    tide = _Tide(world)
    _happen(cell.event, world, rule)
    counts = world.counts()
    fewest = _fewest(counts)
    spread_peak = _spread(counts)
    gave: dict[int, int] = {}
    got: dict[int, int] = {}
    moves = tail = 0
    peak = 0
    near_even: float | None = None
    remotes: list[float] = []
    steps = int(length_s / STEP_S)
    for number in range(1, steps + 1):
        now = number * STEP_S
        if cell.event == "diurnal":
            tide.turn(now, rule)
        moved = 0
        for donor, receiver, amount in rule.rebalance(world, now):
            gave[donor] = gave.get(donor, 0) + amount
            got[receiver] = got.get(receiver, 0) + amount
            moved += amount
        moves += moved
        peak = max(peak, moved)
        tail += moved if number > steps * 2 // 3 else 0
        counts = world.counts()
        if near_even is None and _near_even(counts):
            near_even = now
        remote = world.remote()
        if remote is not None:
            remotes.append(remote)
        if cell.event == "diurnal":
            spread_peak = max(spread_peak, _spread(counts))
    early = remotes[: int(600 / STEP_S)]
    return Outcome(
        cell,
        rule.name,
        fewest,
        moves,
        peak / STEP_S,
        near_even,
        _spread(counts),
        spread_peak,
        sum(min(amount, got.get(silo, 0)) for silo, amount in gave.items()),
        tail / (length_s / 180),
        before,
        max(early, default=None),
        sum(early) / len(early) if early else None,
    )


def _happen(event: str, world: World, rule: Rule) -> None:
    silos = len(world.live)
    if event == "+30%":
        world.join(math.ceil(0.3 * silos), 0.0)
    elif event == "-30%":
        rule.place(world, world.lose(world.live[-max(1, int(0.3 * silos)) :], 0.0))
    elif event == "crash":
        rule.place(world, world.lose(world.live[-max(1, silos // 10) :], 0.0))
    elif event == "hot":
        _heat(world)
    elif event == "roll":
        for silo in list(world.live):  # each leaves, and comes back empty before the next one does
            rule.place(world, world.lose([silo], 0.0))
            world.join(1, 0.0)


def _heat(world: World) -> None:
    """One silo has half of all grains, as after calls that entered there alone; groups are where their calls are."""
    hot = world.live[0]
    surplus = int(HOT_SHARE * world.graph.grains) - len(world.hosted[hot])
    for silo in world.live[1:]:
        wanted = max(0, surplus) // (len(world.live) - 1)
        for grain in list(world.hosted[silo]):
            if wanted > 0 and world.home[grain] == silo:
                group = [each for each in world.graph.group(grain) if world.home[each] == silo]
                wanted -= len(group)
                for each in group:
                    world.move(each, hot)


class _Tide:
    """Grains that go and come back in the course of a day, which is a quarter of an hour here."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._away: list[int] = []

    def turn(self, now: float, rule: Rule) -> None:
        world = self._world
        level = (1 - math.cos(2 * math.pi * now / DIURNAL_PERIOD_S)) / 2
        wanted = int(DIURNAL_SWING * level * world.graph.grains)
        more = wanted - len(self._away)
        if more > 0:
            while more:
                grain = world.rng.randrange(world.graph.grains)
                if world.home[grain] >= 0:
                    world.take(grain)
                    self._away.append(grain)
                    more -= 1
        elif more < 0:
            back, self._away = self._away[:-more], self._away[-more:]
            rule.place(world, back)


def _spread(counts: list[int]) -> float:
    return max(counts) / (sum(counts) / len(counts))


def _near_even(counts: list[int]) -> bool:
    mean = sum(counts) / len(counts)
    return max(counts) <= (1 + NEAR_EVEN) * mean + 1 and min(counts) >= (1 - NEAR_EVEN) * mean - 1


def _fewest(counts: list[int]) -> int:
    total, silos = sum(counts), len(counts)
    floor, ceiling = total // silos, -(-total // silos)
    return max(sum(max(0, count - ceiling) for count in counts), sum(max(0, floor - count) for count in counts))
