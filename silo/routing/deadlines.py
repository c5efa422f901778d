"""When open calls are overdue: one timer of the loop for all, since a timer for each took a tenth of a call."""

from __future__ import annotations

import asyncio
import contextvars
import heapq
from collections.abc import Callable, Mapping
from typing import Final

from silo.activation.turn_context import current_turn
from silo.routing.call import Call

ENDED_SPARE: Final = 256
"""How many deadlines of calls that have ended may stay, beyond as many as there are open calls."""
TIMER_STEP_S: Final = 0.001
"""The shortest timer that is set: some loops round to milliseconds, and may call too early by less than one."""


class Deadlines:
    """The deadlines of the open calls, in a heap of which the timer watches the first.

    Nothing is done when a call ends: its deadline is dropped when it comes up, or with others when too many are there.

    Args:
        open_calls: those that have not ended, by number; others of which deadlines were given count for nothing.
        on_overdue: called for each open call whose deadline has passed, in a pass of the loop soon after.
    """

    def __init__(self, open_calls: Mapping[int, Call], on_overdue: Callable[[Call], None]) -> None:
        self._open = open_calls
        self._on_overdue = on_overdue
        self._heap: list[tuple[float, int]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._context: contextvars.Context | None = None

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def is_idle(self) -> bool:
        """Whether no timer runs, which would keep whoever owns the calls alive."""
        return self._timer is None

    def watch(self, call_id: int, deadline: float, loop: asyncio.AbstractEventLoop) -> None:
        """Have it said when this call is overdue; it is among the open ones, or will be."""
        if len(self._heap) > 2 * len(self._open) + ENDED_SPARE:
            self._heap = [each for each in self._heap if each[1] in self._open]
            heapq.heapify(self._heap)
        heapq.heappush(self._heap, (deadline, call_id))
        if self._timer is None or deadline < self._due:
            self._set(deadline, loop)

    def settle(self) -> None:
        """Drop the deadlines of calls that have ended, and the timer where none is left."""
        self._heap = [each for each in self._heap if each[1] in self._open]
        heapq.heapify(self._heap)
        if not self._heap and self._timer is not None:
            self._timer.cancel()
            self._timer = None

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
        now, heap = loop.time(), self._heap
        while heap and (heap[0][0] <= now or heap[0][1] not in self._open):
            call = self._open.get(heapq.heappop(heap)[1])
            if call is not None:
                loop.call_soon(self._tell, call)  # each by itself: the failure of one is not the others'
        if heap:
            self._set(max(heap[0][0], now + TIMER_STEP_S), loop)

    def _tell(self, call: Call) -> None:
        if not call.answered:
            self._on_overdue(call)
