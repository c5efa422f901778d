"""Telemetry that a test can look into."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from silo.telemetry import Telemetry

Labels = dict[str, Any]


@dataclass
class Observed:
    """The telemetry of one process, and what it has produced."""

    exporter: InMemorySpanExporter = field(default_factory=InMemorySpanExporter)
    reader: InMemoryMetricReader = field(default_factory=InMemoryMetricReader)
    tracers: TracerProvider = field(default_factory=lambda: TracerProvider(shutdown_on_exit=False))

    def __post_init__(self) -> None:
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.telemetry = Telemetry(self.tracers, MeterProvider([self.reader], shutdown_on_exit=False))

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        self.telemetry.settle()
        return self.exporter.get_finished_spans()

    def spans_named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == name]

    def span(self, name: str) -> ReadableSpan:
        """The only span of this name."""
        (found,) = self.spans_named(name)
        return found

    def metrics(self) -> dict[str, list[tuple[Labels, float]]]:
        """By name: the labels, and the value (of histograms: how many were recorded)."""
        found: dict[str, list[tuple[Labels, float]]] = {}
        produced = self.reader.get_metrics_data()
        for resource in produced.resource_metrics if produced is not None else ():
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    points: Any = metric.data.data_points
                    found[metric.name] = [
                        (dict(point.attributes), point.value if hasattr(point, "value") else point.count)
                        for point in points
                    ]
        return found

    def total(self, name: str, **labels: str) -> float:
        """The sum over all points that have these labels."""
        points = self.metrics().get(name, [])
        return sum(value for found, value in points if labels.items() <= found.items())


def is_child(child: ReadableSpan, parent: ReadableSpan) -> bool:
    """Whether one span is the other's child, in one trace."""
    above, own, own_parent = parent.context, child.context, child.parent
    return (
        above is not None
        and own is not None
        and own_parent is not None
        and own_parent.span_id == above.span_id
        and own.trace_id == above.trace_id
    )
