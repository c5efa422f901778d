"""The witness: what grains, callers and faults did, one event a line, under one clock.

In one process events gather in a list under the loop's time. Several processes append to one file that was opened with
O_APPEND: a line is one write, so lines never mix; CLOCK_MONOTONIC is common to all processes of a Linux machine.
"""

from __future__ import annotations

import enum
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypedDict, Unpack

import msgspec


class What(enum.StrEnum):
    """The kinds of events."""

    OPENED = "opened"
    """An activation is about to take turns: `value` is its count, `because` call, migration or migration_aborted."""
    HOLDING = "holding"
    """An activation is told that it moves, right before it stops admitting calls."""
    DEHYDRATED = "dehydrated"
    """An activation gave its soft state away: `value` is its count."""
    REHYDRATED = "rehydrated"
    """A grain that arrives was given its soft state: `value` is its count."""
    TURN_STARTED = "turn_started"
    TURN_ENDED = "turn_ended"
    """`value` is the grain's count after the turn."""
    CLOSED = "closed"
    """An activation takes no more turns: `because` says why, such as "migrating", "idle" or "shutting_down"."""
    CALL_SENT = "call_sent"
    """`number` counts the caller's calls to this grain, in the order in which they were sent."""
    CALL_ENDED = "call_ended"
    """`outcome` says how, `value` is the answer."""
    SILO_LOST = "silo_lost"
    """The silo was killed, or the membership table declared it dead."""
    CALLER_LOST = "caller_lost"
    PAUSED = "paused"
    """The process named by `silo` was frozen."""
    RESUMED = "resumed"
    FAULT = "fault"
    """Something that may cost calls began: `because` names it."""
    HEALED = "healed"
    """All of the faults before this are over."""


class Ended(enum.StrEnum):
    """How a call ended."""

    VALUE = "value"
    SENT = "sent"
    """A one-way call was sent on its way; nobody is told what becomes of it."""
    APPLICATION_ERROR = "application_error"
    NOT_EXECUTED = "not_executed"
    OUTCOME_UNKNOWN = "outcome_unknown"
    CANCELLED = "cancelled"


class Event(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, gc=False):
    """One line of the witness; the fields that a kind of event does not need are left out."""

    what: What
    at: float
    grain: str = ""
    activation: str = ""
    silo: str = ""
    call: str = ""
    caller: str = ""
    method: str = ""
    interleaves: bool = False
    """The method may run beside others of its kind, and out of their order."""
    anywhere: bool = False
    """It may run beside any other, such as in a reentrant grain or for the very turn that waits for it."""
    number: int = 0
    deadline_s: float | None = None
    outcome: str = ""
    value: int | None = None
    because: str = ""


class Fields(TypedDict, total=False):
    """What can be told of an event, as `Event` names it."""

    grain: str
    activation: str
    silo: str
    call: str
    caller: str
    method: str
    interleaves: bool
    anywhere: bool
    number: int
    deadline_s: float | None
    outcome: str
    value: int | None
    because: str


class ListWitness:
    """The witness of a run in one process. Called with what happened, it adds the time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.events: list[Event] = []
        self._clock = clock

    def __call__(self, what: What, **fields: Unpack[Fields]) -> None:
        self.take(Event(what=what, at=self._clock(), **fields))

    def take(self, event: Event) -> None:
        """Keep one event."""
        self.events.append(event)


class FileWitness(ListWitness):
    """The witness of one process among several: appends to a file that they share."""

    def __init__(self, path: Path | str) -> None:
        super().__init__(time.monotonic)  # CLOCK_MONOTONIC
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def take(self, event: Event) -> None:
        line = msgspec.json.encode(event) + b"\n"
        written = os.write(self._file, line)
        if written != len(line):
            raise OSError(f"the witness wrote {written} of {len(line)} bytes: the disk is full")

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._file)


def read_events(path: Path | str) -> list[Event]:
    """The events of all processes in the order of their common clock; a line that is being written is yet to come."""
    decoder = msgspec.json.Decoder(Event)
    whole, _, _ = Path(path).read_bytes().rpartition(b"\n")
    return in_order(decoder.decode(line) for line in whole.splitlines())


def in_order(events: Iterable[Event]) -> list[Event]:
    """By time; events of one moment stay in the order in which they were written."""
    return sorted(events, key=lambda event: event.at)
