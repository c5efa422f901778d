"""The record of one move at one silo: a span with a child for each stage, and the figures at its end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from opentelemetry.trace import Span, Status, StatusCode, get_current_span, set_span_in_context

from silo.migration import handover
from silo.migration.outcome import MigrationOutcome
from silo.telemetry.instruments import Instruments
from silo.telemetry.spans import Spans
from silo.telemetry.traces import parent_of, traceparent

if TYPE_CHECKING:
    from silo.activation.activation import Activation

STAGES: Final[dict[type[handover.Order], str]] = {
    handover.SendAsk: "ask",
    handover.Drain: "drain",
    handover.Deactivate: "deactivate",
    handover.Dehydrate: "dehydrate",
    handover.SendOffer: "offer",
    handover.Fence: "fence",
    handover.Forward: "moved",
    handover.Rehydrate: "rehydrate",
    handover.Register: "register",
    handover.Activate: "activate",
    handover.Open: "open",
    handover.GiveBack: "give back",
}
"""What begins with which order of the protocol; a stage ends where the next begins."""
HELD_LINKS_MAX: Final = 32
"""To how many of the calls that waited for a move its span is linked."""


class MoveRecord:
    """One move, at its source or at its target. Hooks that run in a stage belong to the stage's span.

    Args:
        stage_spans: by activation, the span that its hooks belong to now.
    """

    def __init__(
        self,
        spans: Spans,
        instruments: Instruments,
        span: Span,
        activation: Activation,
        stage_spans: dict[Activation, Span],
    ) -> None:
        self._spans = spans
        self._instruments = instruments
        self._span = span
        self._activation = activation
        self._stage_spans = stage_spans
        self._began = self._stage_began = asyncio.get_running_loop().time()
        self._stage = ""
        self._stage_span: Span | None = None
        self._ended = False

    @property
    def trace(self) -> str:
        """The traceparent that travels to the other silo."""
        return traceparent(self._span)

    def on(self, order: handover.Order) -> None:
        """The protocol gave an order: where it begins a stage, the stage before it has ended."""
        stage = STAGES.get(type(order))
        if stage is None or self._ended:
            return
        self._end_stage()
        self._stage = stage
        self._stage_began = asyncio.get_running_loop().time()
        self._stage_span = self._spans.start(stage, {}, set_span_in_context(self._span))
        self._stage_spans[self._activation] = self._stage_span

    def held(self, traces: Iterable[str]) -> None:
        """These calls wait for the move: link it to the spans of their callers."""
        for _, trace in zip(range(HELD_LINKS_MAX), filter(None, traces), strict=False):
            self._span.add_link(get_current_span(parent_of(trace)).get_span_context())

    def ended(self, outcome: MigrationOutcome) -> None:
        """At the source: this came of it."""
        if self._ended:
            return
        instruments, kind = self._instruments, self._instruments.kind(outcome.grain.kind)
        self._span.set_attributes(
            {
                "silo.migration.status": outcome.status.value,
                "silo.migration.to": outcome.target_name,
                "silo.migration.epoch": outcome.epoch,
                "silo.migration.bytes": outcome.payload_bytes,
                "silo.migration.held": outcome.held_calls,
            }
        )
        reason = {"reason": instruments.reason(outcome.reason)}
        instruments.move_duration.record(asyncio.get_running_loop().time() - self._began, reason)
        if outcome.moved:
            instruments.moves_completed.add(1, {**reason, "type": kind})
            instruments.move_pause.record(outcome.pause_s, reason)
            instruments.payload_size.record(outcome.payload_bytes, {"type": kind})
            instruments.held_calls.record(outcome.held_calls, reason)
        else:
            labels = {**reason, "type": kind, "stage": self._stage, "status": outcome.status.value}
            instruments.moves_failed.add(1, labels)
        self._end("" if outcome.moved else f"{outcome.status.value}: {outcome.why}")

    def opened(self, epoch: int) -> None:
        """At the target: the grain is open."""
        if not self._ended:
            self._span.set_attribute("silo.migration.epoch", epoch)
            self._arrived("ok")
            self._end("")

    def failed(self, why: str) -> None:
        """It was given up here."""
        if not self._ended:
            self._end(why)

    def discarded(self, why: str) -> None:
        """At the target: the grain was not taken."""
        if not self._ended:
            self._arrived("not taken")
            self._end(why)

    def _arrived(self, result: str) -> None:
        labels = {"type": self._instruments.kind(self._activation.id.kind), "result": result, "via": "migration"}
        self._instruments.activation_duration.record(asyncio.get_running_loop().time() - self._began, labels)

    def _end_stage(self) -> None:
        if self._stage_span is not None:
            took_s = asyncio.get_running_loop().time() - self._stage_began
            self._instruments.stage_duration.record(took_s, {"stage": self._stage})
            self._stage_span.end()
            self._stage_span = None
            self._stage_spans.pop(self._activation, None)

    def _end(self, why: str) -> None:
        self._ended = True
        if why and self._stage_span is not None:
            self._stage_span.set_status(Status(StatusCode.ERROR, why))
        self._end_stage()
        if why:
            self._span.set_status(Status(StatusCode.ERROR, why))
        self._span.end()
