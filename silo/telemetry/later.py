"""What is told a little later and together, since telling it call by call would take each of them longer."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from opentelemetry.metrics import Histogram
from opentelemetry.trace import INVALID_SPAN, set_span_in_context

from silo.telemetry.traces import NOWHERE

AT_A_TIME: Final = 32
"""How many figures, or spans, are told together, in a pass of the loop of their own."""
WAITING_MAX: Final = 1024
"""How many may wait; whoever adds that many tells them."""
WAIT_S: Final = 0.05
"""How long a span waits for others."""
_OF_NO_SPAN: Final = set_span_in_context(INVALID_SPAN, NOWHERE)
"""Recorded later, figures are no examples of what runs then."""


Figure = tuple[Histogram, float, dict[str, str]]


class Later:
    """Figures, each with the histogram and the labels under which it belongs; and spans, each with when it ended.

    Figures are lost to nobody: whoever reads the metrics has those that wait recorded first, which may be from another
    thread. Spans are told in the loop in which they ended, at the latest when what they are of is closed.
    """

    def __init__(self) -> None:
        self._figures: deque[Figure] = deque()
        self._is_to_tell = False
        """Whether the loop will soon have the figures told."""
        self._spans: deque[tuple[Callable[..., object], tuple[object, ...]]] = deque()

    def record(self, *figures: Figure) -> None:
        """Have values recorded. Their labels are not to change any more."""
        waiting = self._figures
        waiting.extend(figures)
        if len(waiting) >= AT_A_TIME:
            if len(waiting) >= WAITING_MAX:
                self.tell_figures()
            elif not self._is_to_tell:
                self._is_to_tell = True
                asyncio.get_running_loop().call_soon(self.tell_figures)

    def end(self, end: Callable[..., object], *told: object) -> None:
        """Have a span ended, by what does so as of when it did."""
        waiting = self._spans
        waiting.append((end, told))
        if len(waiting) == 1:
            asyncio.get_running_loop().call_later(WAIT_S, self.tell_spans)
        elif len(waiting) == AT_A_TIME:
            asyncio.get_running_loop().call_soon(self.tell_spans)
        elif len(waiting) >= WAITING_MAX:
            self.tell_spans()

    def tell_figures(self) -> None:
        """Record all figures that wait."""
        self._is_to_tell = False
        waiting = self._figures
        while waiting:
            try:
                histogram, value, labels = waiting.popleft()
            except IndexError:  # another thread has taken the last one
                return
            histogram.record(value, labels, _OF_NO_SPAN)

    def tell_spans(self) -> None:
        """End all spans that wait."""
        waiting = self._spans
        while waiting:
            end, told = waiting.popleft()
            end(*told)
