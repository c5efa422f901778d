"""What is told a little later: whoever reads the metrics has all of them, and no span waits for long."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from opentelemetry.sdk.metrics import AlwaysOnExemplarFilter, MeterProvider
from opentelemetry.sdk.metrics.export import (
    InMemoryMetricReader,
    MetricExporter,
    MetricExportResult,
    MetricsData,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.trace import TracerProvider

from silo.telemetry.instruments import Instruments
from silo.telemetry.later import AT_A_TIME, WAITING_MAX, Later
from tests.support.waiting import until

LABELS = {"rpc.method": "enter"}


def points_of(data: MetricsData | None, name: str) -> list[Any]:
    return [
        point
        for resource in (data.resource_metrics if data is not None else ())
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == name
        for point in metric.data.data_points
    ]


def noted(instruments: Instruments, count: int) -> None:
    for number in range(count):
        instruments.later.record((instruments.turn_duration, number / 1000, LABELS))


async def test_whoever_reads_the_metrics_has_what_was_noted_until_then() -> None:
    reader = InMemoryMetricReader()
    instruments = Instruments(MeterProvider([reader], shutdown_on_exit=False).get_meter("silo"))
    total = 0
    for count in (1, 3, AT_A_TIME + 1, WAITING_MAX + 1):
        noted(instruments, count)
        total += count
        (point,) = points_of(reader.get_metrics_data(), "silo.calls.turn.duration")
        assert point.count == total
        assert point.max == (count - 1) / 1000


async def test_what_waits_is_recorded_in_a_pass_of_the_loop_or_at_once_where_too_much_waits() -> None:
    instruments = Instruments(MeterProvider(shutdown_on_exit=False).get_meter("silo"))
    recorded: list[float] = []
    waits = instruments.later

    class Recorder:
        def record(self, value: float, labels: object, context: object) -> None:
            recorded.append(value)

    recorder: Any = Recorder()
    for number in range(AT_A_TIME):
        waits.record((recorder, number, LABELS))
    assert not recorded
    await asyncio.sleep(0)
    assert recorded == list(range(AT_A_TIME))
    for number in range(WAITING_MAX):
        waits.record((recorder, number, LABELS))
    assert len(recorded) == AT_A_TIME + WAITING_MAX


async def test_nothing_is_lost_or_counted_twice_while_another_thread_reads() -> None:
    reader = InMemoryMetricReader()
    instruments = Instruments(MeterProvider([reader], shutdown_on_exit=False).get_meter("silo"))
    over = threading.Event()

    def read() -> None:
        while not over.is_set():
            reader.get_metrics_data()

    reading = threading.Thread(target=read)
    reading.start()
    try:
        for _ in range(200):
            noted(instruments, AT_A_TIME + 1)
            await asyncio.sleep(0)
    finally:
        over.set()
        reading.join()
    (point,) = points_of(reader.get_metrics_data(), "silo.calls.turn.duration")
    assert point.count == 200 * (AT_A_TIME + 1)


class Kept(MetricExporter):
    """Keeps what is exported."""

    def __init__(self) -> None:
        super().__init__()
        self.exported: list[MetricsData] = []

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **_: Any) -> MetricExportResult:
        self.exported.append(metrics_data)
        return MetricExportResult.SUCCESS

    def shutdown(self, timeout_millis: float = 30_000, **_: Any) -> None: ...

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        return True


async def test_what_waits_at_the_end_is_exported() -> None:
    kept = Kept()
    provider = MeterProvider([PeriodicExportingMetricReader(kept)], shutdown_on_exit=False)
    noted(Instruments(provider.get_meter("silo")), 3)
    provider.shutdown()
    (point,) = points_of(kept.exported[-1], "silo.calls.turn.duration")
    assert point.count == 3


async def test_figures_are_no_examples_of_what_runs_when_they_are_recorded() -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False, exemplar_filter=AlwaysOnExemplarFilter())
    instruments = Instruments(provider.get_meter("silo"))
    noted(instruments, 1)
    with TracerProvider(shutdown_on_exit=False).get_tracer("an application").start_as_current_span("a report"):
        (point,) = points_of(reader.get_metrics_data(), "silo.calls.turn.duration")
    assert {example.trace_id for example in point.exemplars} == {None}


async def test_activations_are_counted_and_open_calls_as_last_told() -> None:
    reader = InMemoryMetricReader()
    instruments = Instruments(MeterProvider([reader], shutdown_on_exit=False).get_meter("silo"))
    assert not points_of(reader.get_metrics_data(), "silo.calls.open")
    for change in (1, 1, -1):
        instruments.counted("room", change)
    instruments.calls_open_here = 4
    data = reader.get_metrics_data()
    (activations,), (calls,) = points_of(data, "silo.grain.activations"), points_of(data, "silo.calls.open")
    assert (dict(activations.attributes), activations.value, calls.value) == ({"type": "room"}, 1, 4)


async def test_a_span_waits_for_others_but_not_for_long() -> None:
    told: list[int] = []
    later = Later()
    for number in range(AT_A_TIME):
        later.end(told.append, number)
    assert not told
    await asyncio.sleep(0)
    assert told == list(range(AT_A_TIME))
    later.end(told.append, AT_A_TIME)
    await until(lambda: len(told) == AT_A_TIME + 1)
