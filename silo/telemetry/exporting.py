"""Where traces and metrics go: providers of OpenTelemetry's SDK, with the exporters that the OTEL_… variables name."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

# The exporter loads grpc, which then reads what this sets.
import silo.messaging.grpc_environment  # noqa: F401 # pyright: ignore[reportUnusedImport] - for what its loading does

# isort: split
from opentelemetry import metrics, trace

from silo.directory.addresses import SiloAddress
from silo.directory.errors import InvalidSettings
from silo.logs import get_logger
from silo.telemetry.telemetry import Telemetry

try:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
except ImportError as missing:
    raise InvalidSettings(
        "telemetry.otel needs OpenTelemetry's SDK: install grain-silo with its extra, grain-silo[otel]"
    ) from missing

log = get_logger(__name__)

FLUSH_TIMEOUT_S: Final = 5.0
"""How long the end of a silo waits for what was not exported yet."""
SERVICE_NAME_DEFAULT: Final = "silo"
TRACES: Final = "traces"
METRICS: Final = "metrics"
OTLP_GRPC: Final = "opentelemetry.exporter.otlp.proto.grpc.trace_exporter"
OTLP_BY_PROTOCOL: Final = {"grpc": "otlp_proto_grpc", "http/protobuf": "otlp_proto_http"}


class Exporting:
    """The providers of one silo process. The first of a process are its global ones too, so that what grains report
    by OpenTelemetry's API goes the same way."""

    def __init__(self, *, silo: SiloAddress, name: str, cluster: str, app_version: str) -> None:
        resource = resource_of(silo=silo, name=name, cluster=cluster, app_version=app_version)
        spans = [BatchSpanProcessor(quick(made)()) for made in exporters(TRACES, os.environ)]
        readers = [_reader(made()) for made in exporters(METRICS, os.environ)]
        self._tracers = TracerProvider(resource=resource, shutdown_on_exit=False)
        for processor in spans:
            self._tracers.add_span_processor(processor)
        self._meters = MeterProvider(readers, resource=resource, shutdown_on_exit=False)
        if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
            trace.set_tracer_provider(self._tracers)
            metrics.set_meter_provider(self._meters)
        self.telemetry = Telemetry(self._tracers, self._meters)

    async def stop(self) -> None:
        """Export what is left, and stop; bounded by FLUSH_TIMEOUT_S, since nobody may be listening any more."""
        loop = asyncio.get_running_loop()
        stopped = asyncio.Event()

        def stop() -> None:
            try:
                self._tracers.shutdown()
                self._meters.shutdown()
            finally:
                loop.call_soon_threadsafe(stopped.set)

        threading.Thread(target=stop, name="silo telemetry flush", daemon=True).start()
        try:
            async with asyncio.timeout(FLUSH_TIMEOUT_S):
                await stopped.wait()
        except TimeoutError:
            log.warning("telemetry.flush_unfinished", after_s=FLUSH_TIMEOUT_S)


def resource_of(*, silo: SiloAddress, name: str, cluster: str, app_version: str) -> Resource:
    """Who reports. OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES have the last word."""
    own = {
        "service.name": SERVICE_NAME_DEFAULT,
        "service.instance.id": str(silo),
        "silo.address": str(silo),
        "silo.cluster": cluster,
        "silo.name": name,
    }
    if app_version:
        own["service.version"] = app_version
    return Resource.create({**own, **OTELResourceDetector().detect().attributes})


def exporters(signal: str, environment: Mapping[str, str]) -> list[Any]:
    """The exporter classes for `traces` or `metrics`, by OTEL_TRACES_EXPORTER and OTEL_METRICS_EXPORTER.

    Raises:
        InvalidSettings: one is named that is not installed.
    """
    variable = f"OTEL_{signal.upper()}_EXPORTER"
    names = [name.strip() for name in environment.get(variable, "").split(",") if name.strip()] or ["otlp"]
    if "none" in names:
        return []
    found: list[Any] = []
    for name in names:
        wanted = _otlp(signal, environment) if name == "otlp" else name
        entries: dict[str, EntryPoint] = {
            each.name: each for each in entry_points(group=f"opentelemetry_{signal}_exporter")
        }
        if wanted not in entries:
            known = ", ".join(["none", "otlp", *sorted(entries)])
            raise InvalidSettings(f"{variable}: no exporter {wanted!r} is installed (known: {known})")
        found.append(entries[wanted].load())
    return found


def quick(exporter: Any) -> Any:
    """The exporter class that does the same as this one in less time, or this one."""
    if exporter.__module__ != OTLP_GRPC:
        return exporter
    from silo.telemetry.quick_otlp import QuickSpans  # which needs what that exporter has brought along

    return QuickSpans if exporter is QuickSpans.__base__ else exporter


def _otlp(signal: str, environment: Mapping[str, str]) -> str:
    variables = (f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
    protocol = next((value for each in variables if (value := environment.get(each))), "grpc")
    return OTLP_BY_PROTOCOL.get(protocol, protocol)


def _reader(made: Any) -> MetricReader:
    """What pulls is a reader itself; what pushes does so once per OTEL_METRIC_EXPORT_INTERVAL."""
    return made if isinstance(made, MetricReader) else PeriodicExportingMetricReader(made)
