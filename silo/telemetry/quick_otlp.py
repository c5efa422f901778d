"""Export of spans by OTLP over gRPC, for less: it happens in the silo's own process, beside its calls.

The SDK makes a message of each attribute of each span. Nearly all spans here are alike: they have no events and links,
and attributes of which most are the same each time. Those are written as the bytes that OTLP says; of the others, and
of who reports, the SDK makes messages as ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode

KEPT_MAX: Final = 4096
"""How many written attributes are kept, for the next span that has the same."""
SHORT: Final = 100
"""Bytes up to which a text is written here: its attribute's length, too, then takes one byte."""
INT_MAX: Final = 1 << 31
HAS_IS_REMOTE, IS_REMOTE = 0x100, 0x200
KINDS: Final = {kind: bytes((0x30, kind.value + 1)) for kind in SpanKind}
"""Field 6 of a span; a kind's number in OTLP is one more than in the API, where 0 stands for none."""
IDS: Final = Struct(">2sQQ2sQ").pack
"""Fields 1 and 2: the trace's id, in halves, and the span's."""
PARENT: Final = Struct(">2sQ").pack
TIMES: Final = Struct("<BQBQ").pack
"""Fields 7 and 8."""
END: Final = Struct("<2s2sI").pack
"""Fields 15 and 16: a status that says nothing, and flags."""
LOW: Final = (1 << 64) - 1


class QuickSpans(OTLPSpanExporter):
    """The SDK's exporter, but for how it writes what it exports."""

    def _translate_data(self, data: Sequence[ReadableSpan]) -> ExportTraceServiceRequest:
        return encoded(data, self._kept)

    @property
    def _kept(self) -> dict[tuple[str, str], bytes]:
        kept: dict[tuple[str, str], bytes] = vars(self).setdefault("_written", {})
        return kept


def encoded(spans: Sequence[ReadableSpan], kept: dict[tuple[str, str], bytes]) -> ExportTraceServiceRequest:
    """The request that exports these spans: as the SDK's, though their order may be another.

    Args:
        kept: attributes that were written before.
    """
    others: list[ReadableSpan] = []
    written: dict[tuple[object, object], tuple[ReadableSpan, list[bytes]]] = {}
    for span in spans:
        own = _written(span, kept)
        if own is None:
            others.append(span)
            continue
        group = written.get((span.resource, span.instrumentation_scope))
        if group is None:  # the SDK writes the first one of them, and who reports it
            written[span.resource, span.instrumentation_scope] = span, []
        else:
            group[1].append(own)
    request = encode_spans(others)
    for first, rest in written.values():
        ours = encode_spans([first])
        ours.resource_spans[0].scope_spans[0].MergeFromString(b"".join(rest))
        request.MergeFrom(ours)
    return request


def _written(span: ReadableSpan, kept: dict[tuple[str, str], bytes]) -> bytes | None:
    """The span as a field of those of one scope; None where it is not one of the many."""
    context, parent, name = span.context, span.parent, span.name.encode()
    if (
        context is None
        or context.trace_state
        or span.events
        or span.links
        or span.status.status_code is not StatusCode.UNSET
        or span.dropped_attributes
        or len(name) > SHORT
    ):
        return None
    trace_id = context.trace_id
    parts = [IDS(b"\x0a\x10", trace_id >> 64, trace_id & LOW, b"\x12\x08", context.span_id)]
    flags = HAS_IS_REMOTE
    if parent is not None:
        parts.append(PARENT(b"\x22\x08", parent.span_id))
        if parent.is_remote:
            flags |= IS_REMOTE
    parts.append(bytes((0x2A, len(name))) + name)
    parts.append(KINDS[span.kind])
    parts.append(TIMES(0x39, span.start_time or 0, 0x41, span.end_time or 0))
    for key, value in (span.attributes or {}).items():
        if type(value) is str:
            own = kept.get((key, value))
            if own is None:
                text = value.encode()
                if len(text) > SHORT:
                    return None
                own = _attribute(key, bytes((0x0A, len(text))) + text)
                if len(kept) < KEPT_MAX:
                    kept[key, value] = own
        elif type(value) is int and 0 <= value < INT_MAX:
            own = _attribute(key, b"\x18" + _varint(value))
        else:
            return None
        if not own:
            return None
        parts.append(own)
    parts.append(END(b"\x7a\x00", b"\x85\x01", flags))
    body = b"".join(parts)
    return b"\x12" + _varint(len(body)) + body


def _attribute(key: str, value: bytes) -> bytes:
    """Field 9 of a span; empty where it is longer than is written here."""
    name = key.encode()
    length = len(name) + len(value) + 4
    if length > 127:
        return b""
    return bytes((0x4A, length, 0x0A, len(name))) + name + bytes((0x12, len(value))) + value


def _varint(number: int) -> bytes:
    written = bytearray()
    while number > 127:
        written.append(number & 127 | 128)
        number >>= 7
    written.append(number)
    return bytes(written)
