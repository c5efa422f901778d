"""When open calls are overdue: one timer of the loop for all, since a timer for each took a tenth of a call."""

from __future__ import annotations

import asyncio
import contextvars
import heapq
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from silo.activation.turn_context import current_turn
from silo.routing.call import Call

ENDED_SPARE: Final = 256
"""How many deadlines of calls that have ended may stay, beyond as many as there are open calls."""
TIMER_STEP_S: Final = 0.001
"""The shortest timer that is set: some loops round to milliseconds, and may call too early by less than one."""


class Deadlines:
    """The deadlines of the open calls, of which the timer watches the first.

    Most calls may take equally long, so most deadlines are later than those before them: they stand in a row, and the
    others in a heap. Nothing is done when a call ends: its deadline is dropped when it comes up, or with others when
    too many are there.

    Args:
        open_calls: those that have not ended, by number; others of which deadlines were given count for nothing.
        on_overdue: called for each open call whose deadline has passed, in a pass of the loop soon after.
    """

    def __init__(self, open_calls: Mapping[int, Call], on_overdue: Callable[[Call], None]) -> None:
        self._open = open_calls
        self._on_overdue = on_overdue
        self._row: deque[tuple[float, int]] = deque()
        self._heap: list[tuple[float, int]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._context: contextvars.Context | None = None

    def __len__(self) -> int:
        return len(self._row) + len(self._heap)

    @property
    def is_idle(self) -> bool:
        """Whether no timer runs, which would keep whoever owns the calls alive."""
        return self._timer is None

    def watch(self, call_id: int, deadline: float, loop: asyncio.AbstractEventLoop) -> None:
        """Have it said when this call is overdue; it is among the open ones, or will be."""
        row = self._row
        if not row or deadline >= row[-1][0]:
            row.append((deadline, call_id))
        else:
            heapq.heappush(self._heap, (deadline, call_id))
        if self._timer is None or deadline < self._due:
            self._set(deadline, loop)
        if len(row) + len(self._heap) > 2 * len(self._open) + ENDED_SPARE:
            self._drop_ended(call_id)

    def settle(self) -> None:
        """Drop the deadlines of calls that have ended, and the timer where none is left."""
        self._drop_ended()
        if not self._row and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _drop_ended(self, coming: int | None = None) -> None:
        """Keep the deadlines of open calls, and of one that is about to be among them, all in the row again."""
        is_open = self._open
        self._row = deque(sorted(each for each in (*self._row, *self._heap) if each[1] in is_open or each[1] == coming))
        self._heap.clear()

    def _set(self, when: float, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due = when
        self._timer = loop.call_at(when, self._come_up, loop, context=self._own_context())

    def _own_context(self) -> contextvars.Context:
        """Where the timer runs: in this process, as simulation needs to know, and in nobody's turn."""
        if self._context is None:
            self._context = contextvars.copy_context()
            self._context.run(current_turn.set, None)
        return self._context

    def _come_up(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        now = loop.time()
        while (first := self._first()) is not None and (first[0] <= now or first[1] not in self._open):
            if self._row and self._row[0] is first:
                self._row.popleft()
            else:
                heapq.heappop(self._heap)
            call = self._open.get(first[1])
            if call is not None:
                loop.call_soon(self._tell, call)  # each by itself: the failure of one is not the others'
        if first is not None:
            self._set(max(first[0], now + TIMER_STEP_S), loop)

    def _first(self) -> tuple[float, int] | None:
        """The earliest deadline, with its call."""
        if self._row and self._heap:
            return min(self._row[0], self._heap[0])
        return self._row[0] if self._row else self._heap[0] if self._heap else None

    def _tell(self, call: Call) -> None:
        if not call.answered:
            self._on_overdue(call)
