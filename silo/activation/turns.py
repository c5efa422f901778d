"""Which calls may run now: the admission of turns, as a core without clock, task or I/O.

A grain runs one turn at a time unless it says otherwise. Calls that must wait stand in one queue, in the order they
came; nothing overtakes but what is declared to interleave, and what a running turn itself is waiting for.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterator
from typing import Final, Generic, Literal, Protocol, TypeVar


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


class NotFree(enum.Enum):
    """In place of a quick turn: something runs, waits, or is held back."""

    NOT_FREE = "not free"


NOT_FREE: Final = NotFree.NOT_FREE


class TurnQueue(Generic[T]):
    """The running and the waiting turns of one activation.

    Born holding: nothing starts until `release()`. While it holds, only a call for which a running turn waits may
    start, so that a drain cannot be kept from its end by new calls, nor deadlock with the calls that it waits for.
    """

    __slots__ = (
        "_counted",
        "_holding",
        "_waiting",
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
        self._counted: dict[int, T] = {}
        """Those that run and are known by number: all but a quick one."""
        self.quick: Quick[T] | NotFree | None = NOT_FREE
        """None while nothing runs, waits or is held back. Whoever finds it so may have one turn run without further
        words: it stands here until it is over, or somebody asks what runs."""
        self._waiting: deque[T] | None = None  # made when first needed: an idle activation stays small
        self._holding = True

    @property
    def is_idle(self) -> bool:
        """Nothing runs and nothing waits."""
        return not self._running and not self._waiting

    @property
    def is_free(self) -> bool:
        """Whether a turn may be run without further words; see `quick`."""
        return self.quick is None

    @property
    def is_holding(self) -> bool:
        return self._holding

    @property
    def _running(self) -> dict[int, T]:
        """All that run: a quick one is, from here on, one like the others."""
        quick = self.quick
        if quick is not None and quick is not NOT_FREE:
            self.quick = NOT_FREE
            turn = quick.call
            self._counted[turn.id] = turn
        return self._counted

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
        return tuple(self._waiting or ())

    @property
    def waiting_count(self) -> int:
        return len(self._waiting) if self._waiting else 0

    def admit(self, turn: T, *, forced: bool = False) -> Admission:
        """Take a call in. START: it counts as running now; WAIT: it stands in the queue; else it is not here at all.

        Args:
            forced: it was admitted elsewhere already, so the bounds do not refuse it.
        """
        path, running = turn.path, self._running
        self.quick = NOT_FREE
        if not path and not running and not self._waiting and not self._holding:  # as for most
            running[turn.id] = turn
            return Admission.START
        if path and any(call in running for _, call in path):
            if not self.reentrant and not self._fits(turn):
                return Admission.CYCLE
            running[turn.id] = turn
            return Admission.START
        if path and self._holding and self._waits_for_itself(turn):
            return Admission.CYCLE
        if not self._holding and not self._waiting and self._fits(turn):
            running[turn.id] = turn
            return Admission.START
        if not self._holding and turn.always_interleave:
            running[turn.id] = turn
            return Admission.START
        if self._waiting is None:
            self._waiting = deque()
        if not forced:
            if len(self._waiting) >= self.waiting_max:
                return Admission.FULL
            if self._waiting and self.waiting_bytes + turn.size > self.waiting_bytes_max:
                return Admission.FULL_BYTES  # one by itself may be larger: it could never wait otherwise
        self._waiting.append(turn)
        self.waiting_bytes += turn.size
        return Admission.WAIT

    def begin(self, turn: T) -> bool:
        """Have a call run now, where nothing runs, waits or is held back; else False, with nothing done."""
        if self._running or self._waiting or self._holding:
            return False
        self.quick = NOT_FREE
        self._counted[turn.id] = turn
        return True

    def end(self, turn: T) -> Iterator[T] | tuple[T, ...]:
        """A turn has ended; yields those that start now, each counted as running before it is yielded."""
        running = self._counted
        running.pop(turn.id, None)
        if self._waiting:
            return self.startable()
        if not running:
            running.clear()  # an empty dict keeps the table that it once needed: a tenth of what an idle grain takes
            if not self._holding and self.quick is NOT_FREE:
                self.quick = None
        return ()

    def discard(self, turn: T) -> bool:
        """Take a waiting call out again, as when its caller has gone; False if it is not waiting."""
        if not self._waiting:
            return False
        try:
            self._waiting.remove(turn)
        except ValueError:
            return False
        self.waiting_bytes -= turn.size
        self._forget_if_empty()
        return True

    def hold(self) -> None:
        """Start nothing new, but what a running turn waits for."""
        self.recount()
        self.quick = NOT_FREE
        self._holding = True

    def release(self) -> Iterator[T]:
        """Start again; yields those that start now."""
        self._holding = False
        return self.startable()

    def take_waiting(self) -> list[T]:
        """Hand over the whole queue, in order, to go on elsewhere."""
        waiting = list(self._waiting or ())
        self._waiting = None
        self.waiting_bytes = 0
        return waiting

    def startable(self) -> Iterator[T]:
        """Those at the head of the queue that may start now, one after the other."""
        while self._waiting and not self._holding and self._fits(self._waiting[0]):
            turn = self._waiting.popleft()
            self.waiting_bytes -= turn.size
            self._counted[turn.id] = turn
            yield turn
        self._forget_if_empty()

    def _forget_if_empty(self) -> None:
        """An empty queue takes as much as all else of an idle activation: it goes, and is made anew when needed."""
        if not self._waiting:
            self._waiting = None
            if not self._counted and not self._holding and self.quick is NOT_FREE:
                self.quick = None

    def _waits_for_itself(self, turn: T) -> bool:
        """Whether the grain's own start led to it: a call that waits here for that start is on its path."""
        awaiting = {call.id for call in self._waiting or ()}
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
