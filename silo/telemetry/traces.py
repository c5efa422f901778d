"""Trace context between processes: W3C traceparents, as frames and migration payloads carry them."""

from __future__ import annotations

import re
from typing import Final

from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, TraceFlags, get_current_span, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

_FIELD = "traceparent"
_W3C = TraceContextTextMapPropagator()
_OWN: Final = re.compile("00-([0-9a-f]{32})-([0-9a-f]{16})-0([0-3])")
"""As `traceparent` writes it. Whatever else the standard allows is left to what reads the standard."""
FLAGS: Final = tuple(TraceFlags(flags) for flags in range(4))
"""By number: whether a trace is sampled (1), and whether its id was drawn at random (2)."""
NOWHERE: Final = Context()


def named_by(trace: str) -> SpanContext | None:
    """The span that a traceparent names; None where it is empty or not one."""
    own = _OWN.fullmatch(trace)
    if own is not None:
        trace_id, span_id, flags = own.groups()
        named = SpanContext(int(trace_id, 16), int(span_id, 16), True, FLAGS[int(flags)])
    elif trace:
        named = get_current_span(_W3C.extract({_FIELD: trace}, Context())).get_span_context()
    else:
        return None
    return named if named.is_valid else None


def context_of(parent: SpanContext | None) -> Context:
    """The context in which that span is the current one; without one, a context that begins a new trace."""
    return Context() if parent is None else set_span_in_context(NonRecordingSpan(parent), NOWHERE)


def parent_of(trace: str) -> Context:
    """The context that a traceparent names; where it is empty or not one, a context that begins a new trace."""
    return context_of(named_by(trace))


def traceparent(span: Span) -> str:
    """What names this span to another process; empty where nobody records it and it continues no trace."""
    context = span.get_span_context()
    if not context.is_valid:
        return ""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
