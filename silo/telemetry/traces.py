"""Trace context between processes: W3C traceparents, as frames and migration payloads carry them."""

from __future__ import annotations

from opentelemetry.context import Context
from opentelemetry.trace import Span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

_FIELD = "traceparent"
_W3C = TraceContextTextMapPropagator()


def parent_of(trace: str) -> Context:
    """The context that a traceparent names; where it is empty or not one, a context that begins a new trace."""
    return _W3C.extract({_FIELD: trace}, Context()) if trace else Context()


def traceparent(span: Span) -> str:
    """What names this span to another process; empty where nobody records it and it continues no trace."""
    context = span.get_span_context()
    if not context.is_valid:
        return ""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
