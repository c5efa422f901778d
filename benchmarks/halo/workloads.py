"""Who talks to whom: the workloads that the repartitioner is tried on. Seeded; a step is a while of traffic.

`Halo` has the shape of the workload that ActOp was measured on (Newell et al., EuroSys 2016): a request of a player
goes to its game, from there to the eight players, and each of these is answered, 18 messages in all. The times are
ours: games of 20 to 30 minutes, players that leave after three to five of them, and a percent that waits for a game.
The others are fixed graphs with Poisson traffic: communities, celebrities with communities, and no structure.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from silo.directory.addresses import GrainId

GAME_SIZE = 8
GAMES_PER_PLAYER = (3, 5)
REPLIED = 2
"""Each message has its answer."""


class Talk(NamedTuple):
    """So many messages between two grains, whichever way they went."""

    one: GrainId
    other: GrainId
    messages: int


@dataclass(slots=True)
class Step:
    """What came about in a while."""

    born: list[GrainId] = field(default_factory=list[GrainId])
    ended: list[GrainId] = field(default_factory=list[GrainId])
    talks: list[Talk] = field(default_factory=list[Talk])


class Workload(Protocol):
    """Something that grains do."""

    def step(self, for_s: float) -> Step:
        """The next while. What is born is so at its beginning; what has ended no longer talks in it."""
        ...


def poisson(rng: random.Random, mean: float) -> int:
    """A draw from the Poisson distribution: by products of uniform draws, and from 30 on by the normal one."""
    if mean > 30:
        return max(0, round(rng.gauss(mean, math.sqrt(mean))))
    limit, drawn, product = math.exp(-mean), 0, rng.random()
    while product > limit:
        drawn += 1
        product *= rng.random()
    return drawn


@dataclass(slots=True)
class _Game:
    grain: GrainId
    seats: tuple[int, ...]
    ends_at: float


class Halo:
    """Players, games, heartbeats.

    Args:
        game_s: the shortest and the longest time that a game takes.
        rate: requests per second and player.
        is_frozen: whether games go on for ever.
    """

    def __init__(
        self,
        rng: random.Random,
        players: int = 2_000,
        game_s: tuple[float, float] = (1_200.0, 1_800.0),
        rate: float = 0.06,
        *,
        is_frozen: bool = False,
    ) -> None:
        self._rng = rng
        self._rate = rate
        self._game_s = game_s
        self._is_frozen = is_frozen
        self._now = 0.0
        self._made = 0
        self._pool_size = max(GAME_SIZE, players // 100)
        self._born: list[GrainId] = []
        self._seats = [self._player() for _ in range(players)]
        self._left = [rng.randint(*GAMES_PER_PLAYER) for _ in range(players)]
        self._games: list[_Game] = []
        self._pool = list(range(players))
        self._begin_games(is_first=True)

    def _player(self) -> GrainId:
        return self._make("player")

    def _make(self, kind: str) -> GrainId:
        self._made += 1
        grain = GrainId(kind, str(self._made))
        self._born.append(grain)
        return grain

    def _begin_games(self, *, is_first: bool = False) -> None:
        rng = self._rng
        rng.shuffle(self._pool)
        while len(self._pool) >= self._pool_size + GAME_SIZE:
            seats = tuple(self._pool.pop() for _ in range(GAME_SIZE))
            length = rng.uniform(*self._game_s)
            ends_at = self._now + (rng.uniform(0, length) if is_first else length)
            self._games.append(_Game(self._make("game"), seats, ends_at))

    def step(self, for_s: float) -> Step:
        done = Step()
        if not self._is_frozen:
            self._end_games(done)
            self._begin_games()
        self._now += for_s
        done.born, self._born = self._born, []
        mean = self._rate * for_s
        for game in self._games:
            own = [poisson(self._rng, mean) for _ in game.seats]
            requests = sum(own)
            if requests:
                for seat, asked in zip(game.seats, own, strict=True):
                    # its own requests, and the message to it of each request of the game with its answer
                    done.talks.append(Talk(self._seats[seat], game.grain, REPLIED * (asked + requests)))
        return done

    def _end_games(self, done: Step) -> None:
        over = [game for game in self._games if game.ends_at <= self._now]
        self._games = [game for game in self._games if game.ends_at > self._now]
        for game in over:
            done.ended.append(game.grain)
            for seat in game.seats:
                self._left[seat] -= 1
                if self._left[seat] == 0:
                    done.ended.append(self._seats[seat])
                    self._seats[seat] = self._player()
                    self._left[seat] = self._rng.randint(*GAMES_PER_PLAYER)
                self._pool.append(seat)


Edges = Sequence[tuple[int, int, float]]
"""Two ends each, and their messages per second."""


class Graph:
    """A fixed graph."""

    def __init__(self, rng: random.Random, size: int, edges: Edges) -> None:
        self._rng = rng
        self._grains = [GrainId("vertex", str(number)) for number in range(size)]
        self._edges = [(self._grains[one], self._grains[other], rate) for one, other, rate in edges]
        self._is_new = True

    def step(self, for_s: float) -> Step:
        done = Step()
        if self._is_new:
            done.born = list(self._grains)
            self._is_new = False
        rng = self._rng
        for one, other, rate in self._edges:
            if messages := poisson(rng, rate * for_s):
                done.talks.append(Talk(one, other, messages))
        return done


def communities(
    rng: random.Random, size: int = 2_000, *, of: int = 20, degree: int = 8, mixed: float = 0.1, rate: float = 0.5
) -> Graph:
    """Communities whose members have `degree` ties each, of which a part, `mixed`, goes anywhere."""
    return Graph(rng, size, _communities(rng, size, of, degree, mixed, rate))


def _communities(rng: random.Random, size: int, of: int, degree: int, mixed: float, rate: float) -> Edges:
    ties: dict[tuple[int, int], float] = {}
    for one in range(size):
        first = one - one % of
        for _ in range(degree // 2):
            other = rng.randrange(size) if rng.random() < mixed else first + rng.randrange(of)
            if one != other:
                ties[min(one, other), max(one, other)] = rate
    return [(one, other, rate) for (one, other), rate in ties.items()]


def unstructured(rng: random.Random, size: int = 2_000, *, degree: int = 8, rate: float = 0.5) -> Graph:
    """Ties between any two: there is next to nothing to win."""
    return communities(rng, size, degree=degree, mixed=1.0, rate=rate)


def celebrities(
    rng: random.Random, size: int = 2_000, *, famous: int = 10, followers: float = 0.2, rate: float = 0.5
) -> Graph:
    """Communities, and a few grains with each of which a fifth of all others talk."""
    edges = list(_communities(rng, size, 20, 6, 0.05, rate))
    for star in range(famous):
        edges += [(star, other, rate / 2) for other in rng.sample(range(famous, size), int(followers * size))]
    return Graph(rng, size, edges)


WORKLOADS: dict[str, Callable[[random.Random], Workload]] = {
    "halo": Halo,
    "halo-1pct": lambda rng: Halo(rng, game_s=(4_800.0, 7_200.0)),
    "halo-frozen": lambda rng: Halo(rng, is_frozen=True),
    "communities": communities,
    "celebrities": celebrities,
    "random": unstructured,
}
