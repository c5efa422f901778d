"""Breadth first through every state of a world, until there is none left, one breaks the promise, or time is over."""

from __future__ import annotations

import gc
import time
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, Self, TypeVar

import msgspec

LOOK_AT_CLOCK_EVERY = 1_000
S = TypeVar("S", bound=Hashable)


class Part(msgspec.Struct, frozen=True, cache_hash=True, gc=False):
    """A state, or a part of one. It keeps its hash: the same few parts make up very many states."""

    def but(self, **changes: Any) -> Self:
        """The same with these changes."""
        return msgspec.structs.replace(self, **changes)


class World(Protocol[S]):
    """The states of something, and the steps from each."""

    def first(self) -> S: ...

    def steps(self, state: S) -> Iterator[tuple[str, S]]:
        """What may happen next, and what comes of it."""
        ...

    def violated(self, state: S) -> bool:
        """Whether this state must not be."""
        ...


@dataclass(frozen=True)
class Exploration:
    """What an exploration has come to."""

    states: int
    transitions: int
    depth: int
    complete: bool
    cpu_s: float
    counterexample: tuple[str, ...] | None = None
    """What happened, in order, up to a state that must not be."""

    def __str__(self) -> str:
        if self.counterexample is not None:
            found = "VIOLATED: " + "; ".join(self.counterexample)
        else:
            found = "complete" if self.complete else f"not complete, depth {self.depth}"
        return f"{self.states:,} states, {self.transitions:,} transitions, {self.cpu_s:.1f} s: {found}"


def explore(world: World[S], *, seconds_max: float, traced: bool = False) -> Exploration:
    """Explore the world.

    Args:
        seconds_max: when to give up, in seconds of processor time: what runs beside it changes nothing.
        traced: whether to remember how each state was reached; states themselves are kept as hashes of 64 bits only.
    """
    collects = gc.isenabled()
    gc.disable()  # states hold no cycles, and looking for some in so many took a fifth of the time
    try:
        return _explore(world, seconds_max, traced)
    finally:
        if collects:
            gc.enable()


def _explore(world: World[S], seconds_max: float, traced: bool) -> Exploration:
    started = time.process_time()
    first = world.first()
    seen = {hash(first)}
    reached: dict[int, tuple[int, str]] = {}
    """By the hash of a state: that of the one before it, and what has happened there."""
    frontier, transitions, depth = [(hash(first), first)], 0, 0
    while frontier:
        found: list[tuple[int, S]] = []
        depth += 1
        for number, (before, state) in enumerate(frontier):
            for label, after in world.steps(state):
                transitions += 1
                key = hash(after)
                if key in seen:
                    continue
                seen.add(key)
                if traced:
                    reached[key] = (before, label)
                if world.violated(after):
                    path = _path(reached, key) if traced else (label,)
                    return Exploration(len(seen), transitions, depth, False, time.process_time() - started, path)
                found.append((key, after))
            if number % LOOK_AT_CLOCK_EVERY == 0 and time.process_time() - started > seconds_max:
                return Exploration(len(seen), transitions, depth, False, time.process_time() - started)
        frontier = found
    return Exploration(len(seen), transitions, depth, True, time.process_time() - started)


def replay(world: World[S], *labels: str) -> list[S]:
    """All states that the world may be in after this has happened, in this order; none if it cannot."""
    states = [world.first()]
    for label in labels:
        states = list({after for state in states for name, after in world.steps(state) if name == label})
    return states


def _path(reached: dict[int, tuple[int, str]], key: int) -> tuple[str, ...]:
    labels: list[str] = []
    while key in reached:
        key, label = reached[key]
        labels.append(label)
    return tuple(reversed(labels))
