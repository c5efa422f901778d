"""Which calls may run now: the admission of turns, as a core without clock, task or I/O.

A grain runs one turn at a time unless it says otherwise. Calls that must wait stand in one queue, in the order they
came; nothing overtakes but what is declared to interleave, and what a running turn itself is waiting for.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterator
from typing import Generic, Literal, Protocol, TypeVar


class Admission(enum.Enum):
    """What becomes of a call that arrives at its grain."""

    START = "start"
    WAIT = "wait"
    CYCLE = "cycle"
    """It waits for its own chain: a turn that runs here waits for it, and the grain does not allow re-entrance."""
    FULL = "full"
    """As many calls wait as may."""
    FULL_BYTES = "full of bytes"
    """The calls that wait are as large as they may be."""


class Turn(Protocol):
    """What admission needs to know of a call."""

    @property
    def id(self) -> int: ...

    @property
    def size(self) -> int:
        """Its bytes, always the same number."""
        ...

    @property
    def path(self) -> tuple[tuple[str, int], ...]:
        """The turns that wait for this call, outermost first: (grain, call id)."""
        ...

    @property
    def read_only(self) -> bool: ...

    @property
    def always_interleave(self) -> bool: ...


T = TypeVar("T", bound=Turn)
T_co = TypeVar("T_co", bound=Turn, covariant=True)


class Quick(Protocol[T_co]):
    """A turn that is most likely over before anybody asks for it."""

    @property
    def call(self) -> T_co:
        """What admission knows of it; made when it is first asked for."""
        ...


Reentrancy = bool | Literal["call_chain"]


class TurnQueue(Generic[T]):
    """The running and the waiting turns of one activation.

    Born holding: nothing starts until `release()`. While it holds, only a call for which a running turn waits may
    start, so that a drain cannot be kept from its end by new calls, nor deadlock with the calls that it waits for.
    """

    __slots__ = (
        "counted",
        "is_holding",
        "queued",
        "quick",
        "reentrant",
        "waiting_bytes",
        "waiting_bytes_max",
        "waiting_max",
    )

    def __init__(self, reentrant: Reentrancy, waiting_max: int, waiting_bytes_max: int) -> None:
        self.reentrant = reentrant
        self.waiting_max = waiting_max
        self.waiting_bytes_max = waiting_bytes_max
        self.waiting_bytes = 0
        self.counted: dict[int, T] = {}
        """Those that run and are known by number: all but the quick one."""
        self.quick: Quick[T] | None = None
        """The one that runs, where nobody has asked for it yet. Whoever begins and ends it sets this himself, since
        that is most of what there is to do; while it stands here, nothing else runs or waits."""
        self.queued: deque[T] | None = None  # made when first needed: an idle activation stays small
        self.is_holding = True

    @property
    def is_idle(self) -> bool:
        """Nothing runs and nothing waits."""
        return not self._running and not self.queued

    @property
    def _running(self) -> dict[int, T]:
        """All that run: a quick one is, from here on, one like the others."""
        quick = self.quick
        if quick is not None:
            self.quick = None
            turn = quick.call
            self.counted[turn.id] = turn
        return self.counted

    def recount(self) -> None:
        """The quick turn, if there is one, is no longer quick."""
        self._running  # noqa: B018

    @property
    def running(self) -> tuple[T, ...]:
        return tuple(self._running.values())

    @property
    def running_count(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> tuple[T, ...]:
        return tuple(self.queued or ())

    @property
    def waiting_count(self) -> int:
        return len(self.queued) if self.queued else 0

    def admit(self, turn: T, *, forced: bool = False) -> Admission:
        """Take a call in. START: it counts as running now; WAIT: it stands in the queue; else it is not here at all.

        Args:
            forced: it was admitted elsewhere already, so the bounds do not refuse it.
        """
        path, running = turn.path, self._running
        if not path and not running and not self.queued and not self.is_holding:  # as for most
            running[turn.id] = turn
            return Admission.START
        if path and any(call in running for _, call in path):
            if not self.reentrant and not self._fits(turn):
                return Admission.CYCLE
            running[turn.id] = turn
            return Admission.START
        if path and self.is_holding and self._waits_for_itself(turn):
            return Admission.CYCLE
        if not self.is_holding and not self.queued and self._fits(turn):
            running[turn.id] = turn
            return Admission.START
        if not self.is_holding and turn.always_interleave:
            running[turn.id] = turn
            return Admission.START
        if self.queued is None:
            self.queued = deque()
        if not forced:
            if len(self.queued) >= self.waiting_max:
                return Admission.FULL
            if self.queued and self.waiting_bytes + turn.size > self.waiting_bytes_max:
                return Admission.FULL_BYTES  # one by itself may be larger: it could never wait otherwise
        self.queued.append(turn)
        self.waiting_bytes += turn.size
        return Admission.WAIT

    def begin(self, turn: T) -> bool:
        """Have a call run now, where nothing runs, waits or is held back; else False, with nothing done."""
        if self._running or self.queued or self.is_holding:
            return False
        self.counted[turn.id] = turn
        return True

    def end(self, turn: T) -> Iterator[T] | tuple[T, ...]:
        """A turn has ended; yields those that start now, each counted as running before it is yielded."""
        running = self.counted
        running.pop(turn.id, None)
        if self.queued:
            return self.startable()
        if not running:
            running.clear()  # an empty dict keeps the table that it once needed: a tenth of what an idle grain takes
        return ()

    def discard(self, turn: T) -> bool:
        """Take a waiting call out again, as when its caller has gone; False if it is not waiting."""
        if not self.queued:
            return False
        try:
            self.queued.remove(turn)
        except ValueError:
            return False
        self.waiting_bytes -= turn.size
        self._forget_if_empty()
        return True

    def hold(self) -> None:
        """Start nothing new, but what a running turn waits for."""
        self.is_holding = True

    def release(self) -> Iterator[T]:
        """Start again; yields those that start now."""
        self.is_holding = False
        return self.startable()

    def take_waiting(self) -> list[T]:
        """Hand over the whole queue, in order, to go on elsewhere."""
        waiting = list(self.queued or ())
        self.queued = None
        self.waiting_bytes = 0
        return waiting

    def startable(self) -> Iterator[T]:
        """Those at the head of the queue that may start now, one after the other."""
        while self.queued and not self.is_holding and self._fits(self.queued[0]):
            turn = self.queued.popleft()
            self.waiting_bytes -= turn.size
            self.counted[turn.id] = turn
            yield turn
        self._forget_if_empty()

    def _forget_if_empty(self) -> None:
        """An empty queue takes as much as all else of an idle activation: it goes, and is made anew when needed."""
        if self.queued is not None and not self.queued:
            self.queued = None

    def _waits_for_itself(self, turn: T) -> bool:
        """Whether the grain's own start led to it: a call that waits here for that start is on its path."""
        awaiting = {call.id for call in self.queued or ()}
        return any(call in awaiting for _, call in turn.path)

    def _fits(self, turn: T) -> bool:
        """Whether it may run beside what runs: what always interleaves neither waits nor makes others wait."""
        running = self._running
        if not running or turn.always_interleave or self.reentrant is True:
            return True
        read_only = turn.read_only
        for other in running.values():  # noqa: SIM110 - a generator costs more than the answer, for each call that waits
            if not (other.always_interleave or (read_only and other.read_only)):
                return False
        return True
