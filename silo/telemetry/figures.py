"""Figures that wait a little before they are recorded, since that takes longer than a call has to spare."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from opentelemetry.metrics import Histogram
from opentelemetry.trace import INVALID_SPAN, set_span_in_context

from silo.telemetry.traces import NOWHERE

AT_A_TIME: Final = 16
"""How many are recorded together, once the loop has nothing else to do in its pass."""
WAITING_MAX: Final = 512
"""How many may wait; whoever adds that many records them."""
_OF_NO_SPAN: Final = set_span_in_context(INVALID_SPAN, NOWHERE)
"""Recorded later, they are no examples of what runs then."""


class Figures:
    """Measured values, each with the histogram and the labels under which it belongs.

    Nothing is lost: whoever reads the metrics has what waits recorded first, which may be from another thread.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[Histogram, float, dict[str, str]]] = deque()

    def note(self, histogram: Histogram, value: float, labels: dict[str, str]) -> None:
        """Have a value recorded. The labels are not to change any more."""
        waiting = self._waiting
        waiting.append((histogram, value, labels))
        if len(waiting) == AT_A_TIME:
            asyncio.get_running_loop().call_soon(self.record)
        elif len(waiting) >= WAITING_MAX:
            self.record()

    def record(self) -> None:
        """Record all that waits."""
        waiting = self._waiting
        while waiting:
            try:
                histogram, value, labels = waiting.popleft()
            except IndexError:  # another thread has taken the last one
                return
            histogram.record(value, labels, _OF_NO_SPAN)
