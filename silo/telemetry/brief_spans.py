"""Brief spans: recorded as the SDK of OpenTelemetry records them, at the price of those that only begin and end.

The SDK makes each span for whoever may write to it, from any thread: with a lock, bounded maps and lists, and a check
of every value. That takes several times as long as the objects that the span of a call needs. A brief span holds what
it was started with. Where more is asked of it than that, as by the code of a grain or by an error, a span of the SDK
takes its place, with the same ids and the same beginning; what is exported is the SDK's own in either case.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Mapping, Sequence
from time import time_ns
from typing import Any, Final

from opentelemetry.attributes import BoundedAttributes
from opentelemetry.context import Context, get_current
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, SpanProcessor, Tracer
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import Decision, ParentBased, Sampler, SamplingResult, TraceIdRatioBased
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    INVALID_SPAN,
    Link,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
    get_current_span,
)

from silo.telemetry.spans import Named
from silo.telemetry.traces import FLAGS, context_of, named_by

ATTRIBUTES_MAX: Final = 32
"""How many attributes a brief span has; who sets more of them has a span of the SDK."""
SAMPLED: Final = TraceFlags.SAMPLED
RANDOM: Final = 2
"""The flag that says that a trace's id was drawn at random; older SDKs have no name for it, and never set it."""
NO_STATE: Final = TraceState()
NO_STATUS: Final = Status(StatusCode.UNSET)
FOLLOWS_PARENT: Final = (
    ",remoteParentSampled:AlwaysOnSampler,remoteParentNotSampled:AlwaysOffSampler"
    ",localParentSampled:AlwaysOnSampler,localParentNotSampled:AlwaysOffSampler}"
)
"""How a sampler describes itself that always does with a child as was done with its parent."""
ROOT: Final = re.compile(r"ParentBased\{root:(AlwaysOnSampler|AlwaysOffSampler|TraceIdRatioBased\{([0-9.e-]+)\}),.*")
TRACE_ID_LIMIT: Final = TraceIdRatioBased.TRACE_ID_LIMIT
"""The bits of a trace's id by which some of them are chosen."""
MEASURES_ITSELF: Final = "OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED"
"""Has the SDK count its own spans, which it does where it starts them."""
DEAF: Final = frozenset({SpanProcessor.on_start, BatchSpanProcessor.on_start, SimpleSpanProcessor.on_start})
"""What processors do at the beginning of a span that do nothing then."""
PLAIN: Final = frozenset({str, int, float, bool})


def root_bound(how: str) -> int | None:
    """Below which bound of its id a new trace is sampled, by how a sampler describes itself; None where more counts."""
    found = ROOT.fullmatch(how) if how.endswith(FOLLOWS_PARENT) else None
    if found is None:
        return None
    root, rate = found.groups()
    rates = {"AlwaysOnSampler": 1.0, "AlwaysOffSampler": 0.0}
    return TraceIdRatioBased.get_bound_for_rate(rates[root] if rate is None else float(rate))


def _start_of(processor: SpanProcessor) -> object:
    return type(processor).on_start


class BriefSpans:
    """Starts spans in place of a tracer of the SDK; what it decides and whom it tells are that tracer's."""

    def __init__(self, tracer: Tracer, limits: SpanLimits, scope: InstrumentationScope) -> None:
        self._tracer = tracer
        self._limits = limits
        self._scope = scope
        self._resource = _Known(tracer.resource)
        self._ids = tracer.id_generator
        sampler = tracer.sampler
        how = sampler.get_description() if type(sampler).should_sample is ParentBased.should_sample else ""
        self._follows_parent = how.endswith(FOLLOWS_PARENT)
        self._root_bound = root_bound(how)
        is_random = getattr(self._ids, "is_trace_id_random", None)
        self._root_flags = RANDOM if is_random is not None and is_random() else 0
        self._is_bounded = limits.max_span_attribute_length is not None or (
            limits.max_span_attributes is not None and limits.max_span_attributes < ATTRIBUTES_MAX
        )
        self._given = _Given(self._root_flags != 0)
        self._whole_tracer = Tracer(
            sampler=self._given,
            resource=tracer.resource,
            span_processor=_Ends(tracer.span_processor),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - said to be one of two, and used as any processor
            id_generator=self._given,
            instrumentation_info=tracer.instrumentation_info,
            span_limits=limits,
            instrumentation_scope=scope,
        )
        self._processors: object = ()
        self._hears = False
        self._lock = threading.Lock()

    @classmethod
    def of(cls, tracer: object) -> BriefSpans | None:
        """In place of this tracer; None where that would not come to the same."""
        if type(tracer) is not Tracer or os.environ.get(MEASURES_ITSELF, "").strip().lower() == "true":
            return None
        inside = vars(tracer)
        limits, scope = inside.get("_span_limits"), inside.get("_instrumentation_scope")
        if not isinstance(limits, SpanLimits) or not isinstance(scope, InstrumentationScope):
            return None
        return cls(tracer, limits, scope)

    @property
    def resource(self) -> Mapping[str, Any]:
        """What is told of whoever reports, beside the spans and for all of them."""
        return self._tracer.resource.attributes

    def named(self) -> Named | None:
        """As `Spans.named`."""
        bound, ids = self._root_bound, self._ids
        if bound is None or self._is_heard_at_start():
            return None
        if get_current():
            above = get_current_span().get_span_context()
            if above.is_valid:
                flags = above.trace_flags & (RANDOM | SAMPLED)
                text = f"00-{above.trace_id:032x}-{ids.generate_span_id():016x}-{flags:02x}"
                return text, above, flags & SAMPLED
        trace_id = ids.generate_trace_id()
        sampled = trace_id & TRACE_ID_LIMIT < bound
        return f"00-{trace_id:032x}-{ids.generate_span_id():016x}-{self._root_flags | sampled:02x}", None, sampled

    def started(
        self,
        named: Named,
        name: str,
        attributes: dict[str, Any],
        kind: SpanKind,
        began_ns: int,
    ) -> BriefSpan:
        """As `Spans.started`."""
        text, parent, _ = named
        span = BriefSpan(self, name, attributes, kind, None, began_ns)
        _, trace_id, span_id, flags = text.split("-")
        state = NO_STATE if parent is None else parent.trace_state
        span.became(parent, SpanContext(int(trace_id, 16), int(span_id, 16), False, FLAGS[int(flags, 16)], state))
        return span

    def start(self, name: str, attributes: dict[str, Any], around: Context | None, kind: SpanKind) -> BriefSpan:
        """As the tracer's `start_span`; the attributes are the span's own from here on."""
        span = BriefSpan(self, name, attributes, kind, None)
        above = get_current_span(around).get_span_context()
        self._settle(span, above if above.is_valid else None, around)
        if self._is_heard_at_start():
            self._tell_start(span, around)
        return span

    def start_under(self, trace: str, name: str, attributes: dict[str, Any], kind: SpanKind) -> BriefSpan:
        """The same under the span that a traceparent names. It is read when somebody asks for it, or at the end."""
        span = BriefSpan(self, name, attributes, kind, trace)
        if self._is_heard_at_start():
            self.settle(span)
            self._tell_start(span, context_of(span.parent))
        return span

    def settle(self, span: BriefSpan) -> None:
        """Read whose child a span is, and decide whether it is recorded."""
        with self._lock:
            if span.trace is not None:
                self._settle(span, named_by(span.trace), None)
                span.trace = None

    def _settle(self, span: BriefSpan, parent: SpanContext | None, around: Context | None) -> None:
        state: TraceState | None
        if parent is not None:
            trace_id, flags = parent.trace_id, parent.trace_flags & RANDOM
            asks = not self._follows_parent
            sampled, state = parent.trace_flags & SAMPLED, parent.trace_state
        else:
            trace_id, flags = self._ids.generate_trace_id(), self._root_flags
            bound = self._root_bound
            asks = bound is None
            sampled, state = int(bound is not None and trace_id & TRACE_ID_LIMIT < bound), NO_STATE
        if asks:
            around = around or context_of(parent)
            name, kind, attributes = span.begun_name, span.kind, span.begun_attributes
            result: Any = self._tracer.sampler.should_sample(around, trace_id, name, kind, attributes, ())
            if result.decision is Decision.RECORD_ONLY:
                span.stand_in = self._tracer.start_span(name, around, kind, attributes, start_time=span.began_ns)
                span.became(parent, span.stand_in.get_span_context())
                return
            sampled, state = SAMPLED if result.decision is Decision.RECORD_AND_SAMPLE else 0, result.trace_state
            span.begun_attributes = dict(result.attributes or {})
        span.is_sampled = bool(sampled)
        span.became(parent, SpanContext(trace_id, self._ids.generate_span_id(), False, FLAGS[flags | sampled], state))

    def _is_heard_at_start(self) -> bool:
        """Whether any processor has to do with the beginning of spans."""
        processors: Any = vars(self._tracer.span_processor).get("_span_processors")
        if processors is not self._processors:
            self._processors = processors
            self._hears = processors is None or any(_start_of(each) not in DEAF for each in processors)
        return self._hears

    def _tell_start(self, span: BriefSpan, around: Context | None) -> None:
        if span.is_recording() and span.stand_in is None:
            self._tracer.span_processor.on_start(span, parent_context=around)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - what it lacks of theirs it takes from `whole`

    def whole(self, span: BriefSpan) -> Span:
        """A span of the SDK that takes this one's place."""
        with self._lock:
            if span.stand_in is None:
                self._given.context = span.context
                self._whole_tracer.resource = self._tracer.resource
                span.stand_in = self._whole_tracer.start_span(
                    span.begun_name, context_of(span.parent), span.kind, span.begun_attributes, start_time=span.began_ns
                )
            return span.stand_in

    def end(self, span: BriefSpan, end_ns: int) -> ReadableSpan:
        """Tell of a span that has ended, and stayed brief."""
        tracer = self._tracer
        if tracer.resource is not self._resource.original:
            self._resource = _Known(tracer.resource)
        ended = ReadableSpan(
            span.begun_name,
            span.context,
            span.parent,
            self._resource,
            self._bounded(span.begun_attributes) if self._is_bounded else span.begun_attributes,
            kind=span.kind,
            status=NO_STATUS,
            start_time=span.began_ns,
            end_time=end_ns,
            instrumentation_scope=self._scope,
        )
        tracer.span_processor.on_end(ended)
        return ended

    def _bounded(self, attributes: Mapping[str, Any]) -> BoundedAttributes:
        limits = self._limits
        return BoundedAttributes(limits.max_span_attributes, attributes, max_value_len=limits.max_span_attribute_length)


class BriefSpan(Span):
    """A span that so far has only begun, or has ended with nothing more.

    Args:
        trace: names its parent, where that has not been read yet; else None.
    """

    stand_in: Span | None = None
    """The span of the SDK that has taken its place, if one has."""
    is_sampled = True
    _context: SpanContext
    _parent: SpanContext | None = None
    _ended: ReadableSpan | None = None

    def __init__(
        self,
        spans: BriefSpans,
        name: str,
        attributes: dict[str, Any],
        kind: SpanKind,
        trace: str | None,
        began_ns: int | None = None,
    ) -> None:
        self._spans = spans
        self.begun_name = name
        self.begun_attributes = attributes
        self.kind = kind
        self.trace = trace
        self.began_ns = time_ns() if began_ns is None else began_ns

    def became(self, parent: SpanContext | None, context: SpanContext) -> None:
        self._parent, self._context = parent, context

    @property
    def parent(self) -> SpanContext | None:
        if self.trace is not None:
            self._spans.settle(self)
        return self._parent

    @property
    def context(self) -> SpanContext:
        if self.trace is not None:
            self._spans.settle(self)
        return self._context

    def get_span_context(self) -> SpanContext:
        return self.context

    def is_recording(self) -> bool:
        if self.trace is not None:
            self._spans.settle(self)
        if self.stand_in is not None:
            return self.stand_in.is_recording()
        return self.is_sampled and self._ended is None

    def set_attribute(self, key: str, value: Any) -> None:
        if self.stand_in is None and type(value) in PLAIN and key and len(self.begun_attributes) < ATTRIBUTES_MAX:
            if self._ended is None:
                self.begun_attributes[key] = value
        else:
            self._whole.set_attribute(key, value)

    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        for key, value in attributes.items():
            self.set_attribute(key, value)

    def end(self, end_time: int | None = None) -> None:
        if self.trace is not None:
            self._spans.settle(self)
        if self.stand_in is not None:
            self.stand_in.end(end_time)
        elif self.is_sampled and self._ended is None:
            self._ended = self._spans.end(self, time_ns() if end_time is None else end_time)

    # Whatever else is asked of it, a span of the SDK answers; of one that has ended, one that nothing changes.

    @property
    def _whole(self) -> Span:
        return self._spans.whole(self) if self.is_recording() else INVALID_SPAN

    def add_event(self, name: str, attributes: Any = None, timestamp: int | None = None) -> None:
        self._whole.add_event(name, attributes, timestamp)

    def add_link(self, context: SpanContext, attributes: Any = None) -> None:
        self._whole.add_link(context, attributes)

    def update_name(self, name: str) -> None:
        self._whole.update_name(name)

    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None:
        self._whole.set_status(status, description)

    def record_exception(
        self, exception: BaseException, attributes: Any = None, timestamp: int | None = None, escaped: bool = False
    ) -> None:
        self._whole.record_exception(exception, attributes, timestamp, escaped)

    def __getattr__(self, name: str) -> Any:
        """Only reached for what it has not of a span of the SDK, as processors may ask for at its start."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._ended or self._whole, name)


class _Known(Resource):
    """A resource that knows its hash, which exporters ask for with each span: to reckon it they would write JSON."""

    def __init__(self, original: Resource) -> None:
        super().__init__(dict(original.attributes), original.schema_url)
        self.original = original
        self._known_hash = hash(original)

    def __hash__(self) -> int:
        return self._known_hash

    def __eq__(self, other: object) -> bool:
        return self is other or super().__eq__(other)


class _Given(IdGenerator, Sampler):
    """Has a tracer start a span that has started: with these ids, sampled, in the trace's own state."""

    def __init__(self, is_random: bool) -> None:
        self.context: SpanContext
        """Of the span that has started."""
        self._is_random = is_random

    def generate_span_id(self) -> int:
        return self.context.span_id

    def generate_trace_id(self) -> int:
        return self.context.trace_id

    def is_trace_id_random(self) -> bool:
        return self._is_random

    def should_sample(
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: Any = None,
        links: Sequence[Link] | None = None,
        trace_state: TraceState | None = None,
    ) -> SamplingResult:
        return SamplingResult(Decision.RECORD_AND_SAMPLE, attributes, self.context.trace_state)

    def get_description(self) -> str:
        return "as it was decided"


class _Ends(SpanProcessor):
    """Passes on that spans end; that they start was told when they were brief."""

    def __init__(self, processor: SpanProcessor) -> None:
        self._processor = processor

    def on_end(self, span: ReadableSpan) -> None:
        self._processor.on_end(span)
