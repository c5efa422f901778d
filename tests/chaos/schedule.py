"""What the nemesis is going to do, and when: made of a seed before the run, so that a run can be played again."""

from __future__ import annotations

import enum
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final


class Act(enum.StrEnum):
    """What can befall the cluster."""

    KILL = "kill"
    """SIGKILL; the silo is started again after a while."""
    FREEZE = "freeze"
    """SIGSTOP, and SIGCONT after a while."""
    TERMINATE = "terminate"
    """SIGTERM; started again after a while."""
    ROLL = "roll"
    """One silo after the other is restarted by SIGTERM."""
    REDIS_RESTART = "redis_restart"
    REDIS_CRASH = "redis_crash"
    """SIGKILL, and started again after a while with what is on disk, which is all."""
    REDIS_PAUSE = "redis_pause"
    DELAY = "delay"
    HOLD = "hold"
    """Nothing passes between two parties for a while, and then all that waited."""
    CUT = "cut"
    """Nothing passes in one direction for a while, and then the connections are reset."""
    LOSE_ANSWER = "lose_answer"
    RESET = "reset"
    WIPE = "wipe"
    """FLUSHALL."""
    ROLL_BACK = "roll_back"
    """Redis is as it was a while ago."""


PLANNED: Final = frozenset({Act.TERMINATE, Act.ROLL})
"""These cost no call and no state."""
OF_PROCESSES: Final = (Act.KILL, Act.FREEZE, Act.TERMINATE, Act.KILL, Act.FREEZE, Act.ROLL)
OF_LINKS: Final = (Act.DELAY, Act.HOLD, Act.CUT, Act.LOSE_ANSWER, Act.RESET)
OF_REDIS: Final = (Act.REDIS_PAUSE, Act.REDIS_RESTART, Act.REDIS_PAUSE, Act.REDIS_CRASH)
OF_WIPES: Final = (Act.WIPE, Act.ROLL_BACK)

REDIS: Final = "redis"
LEASES_FROZEN: Final = (0.3, 0.8, 1.5, 3.2)
"""For how many leases a silo is frozen: some less than one, some more than three."""
LEASES_PAUSED: Final = (0.2, 0.6, 1.5)
LEASES_DOWN: Final = (0.0, 0.5, 1.5)
"""How long a silo that ended stays away."""
DELAYS_S: Final = (0.02, 0.1, 0.4)
TAKES_S: Final[Mapping[Act, float]] = {Act.KILL: 2.0, Act.TERMINATE: 3.0, Act.ROLL: 4.0, Act.REDIS_RESTART: 0.5}
"""About how long it takes to stop and to start what an act ends; a roll takes it for each silo."""
STORM_S: Final = 45.0
CALM_S: Final = 20.0
"""After each storm nothing befalls the cluster for so long but what is planned."""
SHORT_S: Final = 60.0
"""A run that is shorter is one storm, and acts follow each other faster."""


@dataclass(frozen=True, slots=True)
class Beat:
    """One act of the nemesis.

    Args:
        at_s: after the beginning of the run.
        one, other: the parties that it concerns.
        lasts_s: how long it lasts, or how long the silo stays away.
        delay_s: of what passes between them.
    """

    at_s: float
    act: Act
    one: str
    other: str = ""
    lasts_s: float = 0.0
    delay_s: float = 0.0

    def __str__(self) -> str:
        whom = f"{self.one} and {self.other}" if self.other else self.one
        lasts = f" for {self.lasts_s:.2f} s" if self.lasts_s else ""
        by = f" by {self.delay_s * 1000:.0f} ms" if self.delay_s else ""
        return f"{self.at_s:8.2f} s  {self.act} {whom}{by}{lasts}"


@dataclass(frozen=True, slots=True)
class Cast:
    """The parties of a run.

    Args:
        lease_s: the lease of the silos: times are made of it.
    """

    silos: Sequence[str]
    callers: Sequence[str]
    lease_s: float
    wipe: bool = False


def schedule(seconds: float, cast: Cast, rng: random.Random) -> list[Beat]:
    """The acts of a run, in order of time; the same for the same source of chance."""
    beats: list[Beat] = []
    for since, until in _storms(seconds):
        haste = 1.0 if seconds >= SHORT_S else 0.3
        tracks: list[tuple[Sequence[Act], float, float]] = [
            (OF_PROCESSES, 3.0 * haste, 9.0 * haste),
            (OF_LINKS, 1.0 * haste, 4.0 * haste),
            (OF_REDIS, 8.0 * haste, 20.0 * haste),
        ]
        if cast.wipe:
            tracks.append((OF_WIPES, 12.0 * haste, 25.0 * haste))
        for acts, gap_min_s, gap_max_s in tracks:
            deck = _deck(acts, rng)
            at = since + rng.uniform(0.0, gap_min_s)
            while at < until:
                beat = _beat(at, next(deck), cast, rng)
                beats.append(beat)
                times = len(cast.silos) if beat.act is Act.ROLL else 1
                at += beat.lasts_s + TAKES_S.get(beat.act, 0.0) * times + rng.uniform(gap_min_s, gap_max_s)
        if until < seconds:
            calm = (Act.TERMINATE, Act.ROLL)[rng.randrange(2)]
            beats.append(_beat(until + 0.6 * CALM_S, calm, cast, rng))
    return sorted(beats, key=lambda beat: beat.at_s)


def _storms(seconds: float) -> Iterator[tuple[float, float]]:
    if seconds < SHORT_S:
        yield 0.0, seconds
        return
    at = 0.0
    while at < seconds:
        yield at, min(at + STORM_S, seconds)
        at += STORM_S + CALM_S


def _deck(acts: Sequence[Act], rng: random.Random) -> Iterator[Act]:
    """Each of them before any comes again, in another order each time."""
    while True:
        yield from rng.sample(acts, len(acts))


def _beat(at: float, act: Act, cast: Cast, rng: random.Random) -> Beat:
    lease_s = cast.lease_s
    silo = rng.choice(cast.silos)
    match act:
        case Act.KILL | Act.TERMINATE:
            return Beat(at, act, silo, lasts_s=rng.choice(LEASES_DOWN) * lease_s)
        case Act.FREEZE:
            return Beat(at, act, silo, lasts_s=rng.choice(LEASES_FROZEN) * lease_s)
        case Act.ROLL:
            return Beat(at, act, "all silos")
        case Act.REDIS_RESTART | Act.WIPE:
            return Beat(at, act, REDIS)
        case Act.REDIS_CRASH | Act.REDIS_PAUSE | Act.ROLL_BACK:
            return Beat(at, act, REDIS, lasts_s=rng.choice(LEASES_PAUSED) * lease_s)
        case Act.DELAY:
            one, other = _pair(cast, rng)
            return Beat(at, act, one, other, rng.uniform(0.5, 1.5) * lease_s, rng.choice(DELAYS_S))
        case Act.HOLD | Act.CUT:
            one, other = rng.sample(_pair(cast, rng), 2)
            return Beat(at, act, one, other, rng.choice((0.2, 0.6, 1.5)) * lease_s)
        case Act.LOSE_ANSWER | Act.RESET:
            return Beat(at, act, *_pair(cast, rng))


def _pair(cast: Cast, rng: random.Random) -> tuple[str, str]:
    """Two parties between which there are connections; the second is the one that is dialled, where that is settled."""
    kind = rng.random()
    if kind < 0.45 and len(cast.silos) > 1:
        one, other = rng.sample(list(cast.silos), 2)
        return one, other
    if kind < 0.7:
        return rng.choice(cast.callers), rng.choice(cast.silos)
    if kind < 0.95:
        return rng.choice(cast.silos), REDIS
    return rng.choice(cast.callers), REDIS
