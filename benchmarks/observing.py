"""Telemetry as `silo run --otel` has it: the SDK, batched spans and periodic metrics, exported over OTLP."""

from __future__ import annotations

from collections.abc import Callable

# The exporter loads grpc, which then reads what this sets.
import silo.messaging.grpc_environment  # noqa: F401 # pyright: ignore[reportUnusedImport] - for what its loading does

# isort: split
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio

from silo.telemetry import Telemetry
from silo.telemetry.quick_otlp import QuickSpans


def observer(endpoint: str, ratio: float) -> tuple[Telemetry, Callable[[], None]]:
    """What reports to that endpoint, and what ends that, which blocks.

    Args:
        ratio: how much of the traces that begin here is sampled, as by OTEL_TRACES_SAMPLER=parentbased_traceidratio.
    """
    tracers = TracerProvider(shutdown_on_exit=False, sampler=ParentBasedTraceIdRatio(ratio) if ratio < 1.0 else None)
    tracers.add_span_processor(BatchSpanProcessor(QuickSpans(endpoint, insecure=True)))
    reader = PeriodicExportingMetricReader(OTLPMetricExporter(endpoint, insecure=True))
    meters = MeterProvider([reader], shutdown_on_exit=False)

    def stop() -> None:
        tracers.shutdown()
        meters.shutdown()

    return Telemetry(tracers, meters), stop
