"""Brief spans: what is exported is what a tracer of the SDK would have exported."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    ALWAYS_ON,
    Decision,
    ParentBased,
    ParentBasedTraceIdRatio,
    Sampler,
    SamplingResult,
    StaticSampler,
    TraceIdRatioBased,
)
from opentelemetry.trace import (
    NonRecordingSpan,
    NoOpTracerProvider,
    ProxyTracerProvider,
    Span,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
    TraceState,
    set_span_in_context,
)

from silo.telemetry.brief_spans import ATTRIBUTES_MAX, BriefSpan, BriefSpans, root_bound
from silo.telemetry.spans import SCOPE, Spans
from silo.telemetry.traces import parent_of, traceparent

ATTRIBUTES: dict[str, str | int] = {"rpc.system": "silo", "silo.grain.key": "lobby", "silo.epoch": 7}
OTHERS_TRACE = "00-0123456789abcdef0123456789abcdef-0123456789abcdef"


class Exported:
    """A provider of the SDK, and what it has exported."""

    def __init__(self, sampler: Sampler | None = None, limits: SpanLimits | None = None) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(sampler, shutdown_on_exit=False, span_limits=limits)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.spans = Spans(self.provider)

    @property
    def ended(self) -> tuple[ReadableSpan, ...]:
        return self._exporter.get_finished_spans()

    def seen(self) -> list[dict[str, Any]]:
        """All that was exported, but for what is drawn at random or read off a clock."""
        found: list[dict[str, Any]] = [json.loads(span.to_json()) for span in self.ended]
        for each in found:
            each["context"]["span_id"] = each["start_time"] = each["end_time"] = "own"
            if each["parent_id"] is None:
                each["context"]["trace_id"] = "own"
            for event in each["events"]:
                event["timestamp"] = "own"
                event["attributes"].pop("exception.stacktrace", None)
        return found


def nothing(_: Span) -> None: ...


def attributes_of_all_kinds(span: Span) -> None:
    span.set_attribute("players", 3)
    span.set_attributes({"open": True, "names": ["ada", "bob"], "share": 0.5})
    span.set_attribute("players", 4)


def more_attributes_than_are_brief(span: Span) -> None:
    for number in range(2 * ATTRIBUTES_MAX):
        span.set_attribute(f"number {number}", number)


def everything_else(span: Span) -> None:
    span.set_attribute("before", 1)
    span.add_event("entered", {"player": "ada"})
    span.add_link(SpanContext(1, 2, is_remote=True), {"why": "held"})
    span.update_name("another name")
    span.set_attribute("after", 2)


def failure(span: Span) -> None:
    span.record_exception(ValueError("no such player"))
    span.set_status(StatusCode.ERROR, "ValueError: no such player")


@pytest.mark.parametrize(
    "add", [nothing, attributes_of_all_kinds, more_attributes_than_are_brief, everything_else, failure]
)
@pytest.mark.parametrize("kind", [SpanKind.CLIENT, SpanKind.SERVER])
@pytest.mark.parametrize("flags", [None, "01", "03"])
@pytest.mark.parametrize("limits", [None, SpanLimits(max_span_attributes=2, max_span_attribute_length=3)])
def test_what_is_exported_is_what_the_sdk_would_export(
    add: Callable[[Span], None], kind: SpanKind, flags: str | None, limits: SpanLimits | None
) -> None:
    around = Context() if flags is None else parent_of(f"{OTHERS_TRACE}-{flags}")
    brief, whole = Exported(limits=limits), Exported(limits=limits)
    ours = brief.spans.start("room/enter", dict(ATTRIBUTES), around, kind)
    theirs = whole.provider.get_tracer(SCOPE).start_span("room/enter", around, kind, dict(ATTRIBUTES))
    assert isinstance(ours, BriefSpan)
    for span in (ours, theirs):
        assert span.is_recording()
        add(span)
        span.end()
        assert not span.is_recording()
    assert brief.seen() == whole.seen()
    ended, other = brief.ended[0], whole.ended[0]
    assert ended.context is not None
    assert other.context is not None
    assert ended.context == ours.get_span_context()
    assert ended.context.trace_flags == other.context.trace_flags
    assert ended.parent == other.parent
    assert ended.start_time is not None
    assert ended.end_time is not None
    assert ended.start_time <= ended.end_time


def test_a_span_that_was_touched_keeps_its_ids_its_parent_and_its_beginning() -> None:
    exported = Exported()
    with exported.provider.get_tracer("an application").start_as_current_span("a web request") as request:
        span = exported.spans.start("room/enter", {})
    before = span.get_span_context()
    with exported.provider.get_tracer("an application").start_as_current_span("what happens to run now"):
        span.add_event("entered")
    span.end()
    (ended,) = (each for each in exported.ended if each.name == "room/enter")
    assert ended.context == before
    assert ended.parent == request.get_span_context()


def test_spans_of_the_grain_are_its_children() -> None:
    exported = Exported()
    span = exported.spans.start("room/enter", {}, Context())
    child = exported.provider.get_tracer("an application").start_span("own work", set_span_in_context(span, Context()))
    child.end()
    (ended,) = exported.ended
    assert ended.parent == span.get_span_context()


@pytest.mark.parametrize("add", [nothing, failure])
def test_what_has_ended_changes_no_more_and_is_told_once(add: Callable[[Span], None]) -> None:
    exported = Exported()
    span = exported.spans.start("room/enter", dict(ATTRIBUTES), Context())
    add(span)
    span.end()
    before = exported.seen()
    attributes_of_all_kinds(span)
    everything_else(span)
    failure(span)
    span.end()
    assert exported.seen() == before
    assert len(before) == 1


class Says(Sampler):
    """Decides one thing, and adds to it."""

    def __init__(self, decision: Decision) -> None:
        self._decision = decision

    def should_sample(self, parent_context: Any, trace_id: int, name: str, *args: Any, **more: Any) -> SamplingResult:
        return SamplingResult(self._decision, {"asked": name}, TraceState([("asked", "yes")]))

    def get_description(self) -> str:
        return "says"


SAMPLERS = {
    "all": ParentBased(ALWAYS_ON),
    "all by itself": ALWAYS_ON,
    "none by itself": ALWAYS_OFF,
    "no roots": ParentBased(ALWAYS_OFF),
    "all of this share": ParentBasedTraceIdRatio(1.0),
    "none of this share": ParentBasedTraceIdRatio(0.0),
    "not those whose parent is": ParentBased(ALWAYS_ON, remote_parent_sampled=ALWAYS_OFF),
    "those whose parent is not": ParentBased(ALWAYS_ON, remote_parent_not_sampled=ALWAYS_ON),
    "adds": Says(Decision.RECORD_AND_SAMPLE),
    "drops": Says(Decision.DROP),
    "records only": StaticSampler(Decision.RECORD_ONLY),
}


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("flags", [None, "00", "01"])
def test_the_sampler_decides_as_it_does_for_the_sdk(name: str, flags: str | None) -> None:
    around = Context() if flags is None else parent_of(f"{OTHERS_TRACE}-{flags}")
    brief, whole = Exported(SAMPLERS[name]), Exported(SAMPLERS[name])
    ours = brief.spans.start("room/enter", dict(ATTRIBUTES), around, SpanKind.SERVER)
    theirs = whole.provider.get_tracer(SCOPE).start_span("room/enter", around, SpanKind.SERVER, dict(ATTRIBUTES))
    assert ours.is_recording() == theirs.is_recording()
    made, wanted = ours.get_span_context(), theirs.get_span_context()
    assert made.is_valid
    assert made.trace_flags == wanted.trace_flags
    assert dict(made.trace_state) == dict(wanted.trace_state)
    assert (made.trace_id == wanted.trace_id) == (flags is not None)
    failure(ours)
    failure(theirs)
    ours.end()
    theirs.end()
    assert brief.seen() == whole.seen()


@pytest.mark.parametrize("name", ["all", "no roots", "all of this share", "none of this share"])
@pytest.mark.parametrize("flags", [None, "00", "01", "03"])
def test_a_span_that_is_told_of_when_it_has_ended_is_the_one_that_would_have_been_started(
    name: str, flags: str | None
) -> None:
    around = Context() if flags is None else parent_of(f"{OTHERS_TRACE}-{flags}")
    brief, whole = Exported(SAMPLERS[name]), Exported(SAMPLERS[name])
    token = attach(around)
    try:
        named = brief.spans.named()
    finally:
        detach(token)
    theirs = whole.provider.get_tracer(SCOPE).start_span("room/enter", around, SpanKind.CLIENT, dict(ATTRIBUTES))
    assert named is not None
    assert traceparent(theirs)[-3:] == named[0][-3:]
    ours = brief.spans.started(named, "room/enter", dict(ATTRIBUTES), SpanKind.CLIENT, 5)
    ours.end(7)
    theirs.end()
    assert brief.seen() == whole.seen()
    for ended in brief.ended:
        assert ended.context is not None
        assert traceparent(NonRecordingSpan(ended.context)) == named[0]
        assert (ended.start_time, ended.end_time) == (5, 7)


@pytest.mark.parametrize("name", ["all by itself", "adds", "not those whose parent is", "those whose parent is not"])
def test_where_the_sampler_has_to_be_asked_a_span_is_started(name: str) -> None:
    assert Exported(SAMPLERS[name]).spans.named() is None


@pytest.mark.parametrize(
    ("sampler", "share"),
    [(ParentBased(ALWAYS_ON), 1.0), (ParentBased(ALWAYS_OFF), 0.0)]
    + [(ParentBasedTraceIdRatio(share), share) for share in (0.0, 1e-07, 0.1, 1 / 3, 1.0)],
)
def test_new_traces_are_sampled_by_the_share_that_a_sampler_describes(sampler: Sampler, share: float) -> None:
    assert root_bound(sampler.get_description()) == TraceIdRatioBased.get_bound_for_rate(share)


class Notices(SpanProcessor):
    """Reads what begins, and writes to it."""

    def __init__(self) -> None:
        self.begun: list[tuple[str, dict[str, Any], bool]] = []

    def on_start(self, span: Any, parent_context: Context | None = None) -> None:
        self.begun.append((span.name, dict(span.attributes), span.end_time is None))
        span.set_attribute("noticed", True)


def test_a_processor_that_has_to_do_with_the_beginning_of_spans_finds_what_it_knows() -> None:
    exported, notices = Exported(), Notices()
    exported.provider.add_span_processor(notices)
    assert exported.spans.named() is None
    exported.spans.start("room/enter", dict(ATTRIBUTES), Context()).end()
    assert notices.begun == [("room/enter", ATTRIBUTES, True)]
    (ended,) = exported.ended
    assert dict(ended.attributes or {}) == {**ATTRIBUTES, "noticed": True}


def test_without_the_sdk_spans_are_those_of_the_given_tracer() -> None:
    parent = NonRecordingSpan(SpanContext(1, 2, is_remote=False, trace_flags=TraceFlags(1)))
    span = Spans(NoOpTracerProvider()).start("room/enter", {}, set_span_in_context(parent, Context()))
    assert not isinstance(span, BriefSpan)
    assert span.get_span_context().trace_id == 1


def test_where_the_sdk_counts_its_own_spans_it_makes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED", "true")
    assert BriefSpans.of(TracerProvider(shutdown_on_exit=False).get_tracer(SCOPE)) is None


def test_an_application_may_set_its_provider_after_it_has_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    providers: list[trace.TracerProvider] = [ProxyTracerProvider()]

    def get_tracer(name: str, tracer_provider: object = None) -> trace.Tracer:
        return providers[-1].get_tracer(name)

    monkeypatch.setattr(trace, "get_tracer", get_tracer)
    spans, exported = Spans(), Exported()
    spans.start("nobody listens", {}).end()
    providers.append(exported.provider)
    spans.start("room/enter", {}).end()
    assert [span.name for span in exported.ended] == ["room/enter"]


def test_a_span_does_not_repeat_what_is_told_of_all_of_them() -> None:
    silo = {"silo.address": "127.0.0.1:7000@7", "silo.name": "one"}
    assert Exported().spans.beside(silo) == silo
    assert Spans(NoOpTracerProvider()).beside(silo) == silo
    told = TracerProvider(resource=Resource({**silo, "silo.name": "by another name"}), shutdown_on_exit=False)
    assert Spans(told).beside(silo) == {"silo.name": "one"}


def test_spans_of_one_resource_are_exported_under_one() -> None:
    exported = Exported()
    for add in (nothing, failure):
        span = exported.spans.start("room/enter", {}, Context())
        add(span)
        span.end()
    exported.provider.get_tracer("an application").start_span("own work").end()
    assert len(encode_spans(exported.ended).resource_spans) == 1


@pytest.mark.parametrize("flags", ["00", "01", "02", "03", "ff"])
def test_a_traceparent_names_the_same_span_after_its_way(flags: str) -> None:
    text = f"{OTHERS_TRACE}-{flags}"
    named = trace.get_current_span(parent_of(text))
    assert named.get_span_context().is_remote
    assert traceparent(named) == text
