"""Where spans are started: by the tracer that was given, or for less where that is the SDK's own."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import INVALID_SPAN, ProxyTracer, Span, SpanContext, SpanKind, Tracer, TracerProvider

from silo.telemetry.traces import parent_of

if TYPE_CHECKING:
    from silo.telemetry.brief_spans import BriefSpans

SCOPE = "silo"
"""Who the spans and metrics come from, in the words of OpenTelemetry: the instrumentation scope."""
Attributes = dict[str, str | int]
Named = tuple[str, SpanContext | None, int]
"""A span that nobody sees before it has ended: its traceparent, its parent, and whether it is recorded."""


class Spans:
    """The spans of one `Telemetry`.

    Args:
        provider: where they go; the application's own (global) provider where none is given, and then as soon as there
            is one.
    """

    def __init__(self, provider: TracerProvider | None = None) -> None:
        self._provider = provider
        self._tracer = trace.get_tracer(SCOPE, tracer_provider=provider)
        self._brief = brief_spans(self._tracer)

    def beside(self, attributes: Mapping[str, str]) -> dict[str, str]:
        """Those that are not told of all spans of this process anyway, by its resource."""
        told: Mapping[str, object] = self._brief.resource if self._brief is not None else {}
        return {name: value for name, value in attributes.items() if told.get(name) != value}

    def start(
        self, name: str, attributes: Attributes, around: Context | None = None, kind: SpanKind = SpanKind.INTERNAL
    ) -> Span:
        """Start a span.

        Args:
            attributes: the span's own from here on.
            around: what it is a child of; None for whatever runs now.
        """
        brief = self._brief or self._found()
        if brief is not None:
            return brief.start(name, attributes, around, kind)
        return self._tracer.start_span(name, context=around, kind=kind, attributes=attributes)

    def named(self) -> Named | None:
        """Name a span that starts now and is told of once it has ended; None where it has to be started."""
        brief = self._brief or self._found()
        return brief.named() if brief is not None else None

    def started(self, named: Named, name: str, attributes: Attributes, kind: SpanKind, began_ns: int) -> Span:
        """The span that was named so, and started then."""
        brief = self._brief
        return (
            brief.started(named, name, attributes, kind, began_ns) if brief is not None and named[2] else INVALID_SPAN
        )

    def start_under(self, trace: str, name: str, attributes: Attributes, kind: SpanKind) -> Span:
        """Start a span under the one that a traceparent names, which may be read as late as when the span ends."""
        brief = self._brief or self._found()
        if brief is not None:
            return brief.start_under(trace, name, attributes, kind)
        return self._tracer.start_span(name, context=parent_of(trace), kind=kind, attributes=attributes)

    def _found(self) -> BriefSpans | None:
        if isinstance(self._tracer, ProxyTracer):  # the application had no provider yet
            self._tracer = trace.get_tracer(SCOPE, tracer_provider=self._provider)
            self._brief = brief_spans(self._tracer)
        return self._brief


def brief_spans(tracer: Tracer) -> BriefSpans | None:
    """What starts spans for less in place of this tracer, where that is known to come to the same."""
    if "opentelemetry.sdk.trace" not in sys.modules:  # so it is none of the SDK's
        return None
    from silo.telemetry.brief_spans import BriefSpans

    return BriefSpans.of(tracer)
