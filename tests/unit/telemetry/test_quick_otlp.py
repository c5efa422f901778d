"""Spans that are written here are those that the SDK would have written."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from silo.telemetry.quick_otlp import KEPT_MAX, encoded

RESOURCE = Resource({"service.name": "game"}, "https://example.org/schema")
SCOPE = InstrumentationScope("silo", "1.0", "https://example.org/scope")
CONTEXT = SpanContext((1 << 127) + 5, (1 << 63) + 7, is_remote=False, trace_flags=TraceFlags(3))
PARENT = SpanContext(CONTEXT.trace_id, 9, is_remote=True)
ATTRIBUTES = {"rpc.system": "silo", "silo.grain.key": "lobby", "silo.epoch": 7}


def span(**changes: Any) -> ReadableSpan:
    told: dict[str, Any] = {
        "name": "room/enter",
        "context": CONTEXT,
        "parent": PARENT,
        "resource": RESOURCE,
        "attributes": ATTRIBUTES,
        "kind": SpanKind.SERVER,
        "start_time": 1_700_000_000_000_000_001,
        "end_time": 1_700_000_000_000_000_002,
        "instrumentation_scope": SCOPE,
    }
    return ReadableSpan(**{**told, **changes})


def told(request: ExportTraceServiceRequest) -> list[tuple[bytes, bytes, bytes]]:
    """Each span with who reports it."""
    return sorted(
        (resource.resource.SerializeToString(), scope.scope.SerializeToString(), each.SerializeToString())
        for resource in request.resource_spans
        for scope in resource.scope_spans
        if resource.schema_url == RESOURCE.schema_url and scope.schema_url == SCOPE.schema_url
        for each in scope.spans
    )


CHANGES: list[dict[str, Any]] = [
    {},
    {"parent": None},
    {"parent": SpanContext(CONTEXT.trace_id, 9, is_remote=False)},
    *({"kind": kind} for kind in SpanKind),
    {"name": "é" * 40},
    {"name": "é" * 60},
    {"name": "n" * 200},
    {"attributes": {}},
    {"attributes": None},
    *({"attributes": {"silo.epoch": number}} for number in (0, 1, 127, 128, 16383, 16384, (1 << 31) - 1, 1 << 31, -1)),
    *({"attributes": {"silo.grain.key": "é" * length}} for length in (0, 1, 49, 50, 51, 64, 200)),
    {"attributes": {"k" * 60: "v" * 60}},
    {"attributes": {"k" * 200: 1}},
    {"attributes": {"share": 0.5, "open": True, "names": ("ada", "bob"), "text": "1", "number": 1}},
    {"attributes": {f"number {number}": f"value {number}" for number in range(40)}},
    {"context": SpanContext(1, 2, is_remote=False, trace_state=TraceState([("vendor", "x")]))},
    {"status": Status(StatusCode.ERROR, "ValueError: no such player")},
    {"status": Status(StatusCode.OK)},
    {"events": [Event("entered", {"player": "ada"}, 5)]},
    {"links": [Link(CONTEXT)]},
    {"start_time": 0, "end_time": (1 << 63) - 1},
]


@pytest.mark.parametrize("changes", CHANGES, ids=range(len(CHANGES)))
def test_a_span_is_written_as_the_sdk_writes_it(changes: dict[str, Any]) -> None:
    kept: dict[tuple[str, str], bytes] = {}
    first = span()
    for _ in range(2):  # the second time from what was kept
        assert told(encoded([first, span(**changes)], kept)) == told(encode_spans([first, span(**changes)]))


def test_spans_of_several_resources_and_scopes_stay_apart() -> None:
    spans = [
        span(resource=resource, instrumentation_scope=InstrumentationScope(name))
        for resource in (RESOURCE, Resource({"service.name": "another"}))
        for name in ("silo", "an application", "silo")
    ]
    found = sorted(
        (resource.resource.attributes[0].value.string_value, scope.scope.name, len(scope.spans))
        for resource in encoded(spans, {}).resource_spans
        for scope in resource.scope_spans
    )
    assert found == [
        ("another", "an application", 1),
        ("another", "silo", 2),
        ("game", "an application", 1),
        ("game", "silo", 2),
    ]


def test_what_is_kept_is_bounded() -> None:
    kept: dict[tuple[str, str], bytes] = {}
    spans = [span(attributes={"silo.grain.key": str(number)}) for number in range(KEPT_MAX + 10)]
    encoded(spans, kept)
    assert len(kept) == KEPT_MAX
