"""What befalls a simulated cluster: kinds of faults, and scripts of them drawn from a seed."""

from __future__ import annotations

import enum
import random
from dataclasses import dataclass


class Act(enum.StrEnum):
    """One thing that a script does to the cluster."""

    MOVE = "move"
    MOVE_BATCH = "move_batch"
    STAMPEDE = "stampede"
    """All processes at once call a grain that is nowhere active."""
    JOIN = "join"
    DRAIN = "drain"
    RESTART = "restart"
    """Drain a silo and start another on its endpoint."""
    RESET = "reset"
    """Break the connections between two processes, or all of one."""
    SLOW = "slow"
    """Make the way between two processes slow for a while."""
    HICCUP = "hiccup"
    """Cut or freeze something for less time than anything notices."""
    CUT = "cut"
    CUT_ONE_WAY = "cut_one_way"
    ISOLATE = "isolate"
    """Cut one process off from all others, the store included."""
    KILL = "kill"
    KILL_CLIENT = "kill_client"
    PAUSE = "pause"
    """Freeze a silo: for less than a lease, or for long enough that it is declared dead and replaced."""
    STORE_DOWN = "store_down"
    STORE_FAILS = "store_fails"
    STORE_LOSES_ANSWERS = "store_loses_answers"
    STORE_CUT = "store_cut"
    """Cut one silo off from the store alone."""
    STORE_WIPED = "store_wiped"
    """Let the store forget all rows of directory and members."""
    STORE_SET_BACK = "store_set_back"
    """Let the store start again with the rows that it had a while ago."""
    LANE = "lane"
    """Break, hold or cut the direct lane between two silos, and leave them the stream."""


PLANNED = (Act.MOVE, Act.MOVE_BATCH, Act.STAMPEDE, Act.STAMPEDE, Act.JOIN, Act.DRAIN, Act.RESTART)
"""What an operator does: no call may be lost by it, nor any state."""
UNNOTICED = (Act.RESET, Act.SLOW, Act.HICCUP)
"""What links bridge: no call may be lost by it either."""
FAULTS = frozenset(Act) - frozenset(PLANNED) - frozenset(UNNOTICED) - {Act.LANE}
"""What may cost calls, and the state of what dies; never a promise."""


@dataclass(frozen=True, slots=True)
class Profile:
    """A kind of weather: what may happen, and how often."""

    name: str
    acts: tuple[Act, ...]
    every_s: tuple[float, float] = (0.3, 2.5)


PROFILES = (
    Profile("planned", PLANNED, (0.2, 1.5)),
    Profile("moves", (Act.MOVE, Act.MOVE_BATCH), (0.02, 0.4)),
    Profile("unnoticed", (*PLANNED, *UNNOTICED, *UNNOTICED)),
    Profile("crashes", (Act.MOVE, Act.MOVE, Act.STAMPEDE, Act.JOIN, Act.KILL, Act.KILL_CLIENT), (0.2, 1.5)),
    Profile("pauses", (Act.MOVE, Act.MOVE, Act.PAUSE, Act.HICCUP), (0.8, 4.0)),
    Profile("partitions", (Act.MOVE, Act.MOVE, Act.CUT, Act.CUT_ONE_WAY, Act.ISOLATE, Act.RESET)),
    Profile(
        "store",
        (Act.MOVE, Act.STAMPEDE, Act.STORE_DOWN, Act.STORE_FAILS, Act.STORE_LOSES_ANSWERS, Act.STORE_CUT, Act.JOIN),
    ),
    Profile(
        "losses",
        (
            *(Act.MOVE, Act.MOVE_BATCH, Act.STAMPEDE, Act.KILL, Act.PAUSE, Act.STORE_DOWN, Act.RESET),
            *(Act.STORE_WIPED, Act.STORE_WIPED, Act.STORE_SET_BACK, Act.STORE_SET_BACK),
        ),
    ),
    Profile("lanes", (Act.MOVE, Act.MOVE_BATCH, Act.STAMPEDE, Act.LANE, Act.LANE, Act.LANE), (0.05, 0.8)),
    Profile("everything", tuple(Act)),
)


@dataclass(frozen=True, slots=True)
class Size:
    """How large a world is, and how long it lasts."""

    name: str
    silos: tuple[int, int]
    """How many there are at first: the least, and the most."""
    clients: tuple[int, int]
    workers: int
    """How many calls, or bursts of them, each client makes at a time."""
    keys: tuple[int, ...]
    """How many grains of each kind there may be."""
    begins_s: float
    """When the first thing may befall it."""
    script_s: float
    """For how long things are begun. Clients make calls until the last of them has ended."""
    haste: float
    """By how much things follow each other faster than their profile says."""
    aftermath_s: float
    """For how long clients make calls after that."""
    settle_s: float
    """How long the traces of it all are given to go, at least."""


SHORT = Size("short", (2, 3), (1, 2), 2, (1, 2, 5), 0.2, 1.2, 4.0, 0.1, 0.5)
"""Few silos and few grains to which much happens at once: what is not found there costs less than half of a long world.

Planted faults are found by as much processor time or less than in the worlds of ten busy seconds that all seeds had
before, whose silos and grains were more and whose callers were twice as many: see ARCHITECTURE.
"""
LONG = Size("long", (2, 4), (1, 2), 2, (2, 5, 12), 1.0, 10.0, 1.0, 1.0, 6.0)
"""Time for what is slow: leases that end, links that are resumed, grains that are idle, sweeps."""
LONG_EVERY = 12
"""One in so many seeds of each profile has a long world."""


@dataclass(frozen=True, slots=True)
class Beat:
    """One line of a script."""

    at_s: float
    act: Act


def profile_of(seed: int) -> Profile:
    """Seeds take turns among the profiles."""
    return PROFILES[seed % len(PROFILES)]


def size_of(seed: int) -> Size:
    """So do the worlds of each profile."""
    return LONG if seed // len(PROFILES) % LONG_EVERY == LONG_EVERY - 1 else SHORT


def script(profile: Profile, rng: random.Random, size: Size) -> list[Beat]:
    """What happens when, within the time that the load lasts."""
    beats: list[Beat] = []
    at_s = size.begins_s
    while (at_s := at_s + rng.uniform(*profile.every_s) / size.haste) < size.script_s:
        beats.append(Beat(at_s, rng.choice(profile.acts)))
    return beats
