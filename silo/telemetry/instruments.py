"""The metrics of a silo or client: their names, units and labels.

No label ever holds a grain's key, and every set of labels is bounded: what comes beyond is counted under `other`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from opentelemetry.metrics import CallbackOptions, Histogram, Meter, Observation

from silo.telemetry.later import Later

KINDS_MAX: Final = 200
METHODS_MAX: Final = 2000
REASONS_MAX: Final = 50
ERRORS_MAX: Final = 100
"""How many values of a label are told apart."""
OTHER: Final = "other"

SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
BYTES: Final = (256.0, 1024.0, 4096.0, 16384.0, 65536.0, 262144.0, 1048576.0, 4194304.0, 16777216.0)
CALLS: Final = (0.0, 1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 1000.0)

Labels = dict[str, str]


class BoundedLabel:
    """The first so many values that a label takes; `other` stands for all that come later."""

    def __init__(self, values_max: int) -> None:
        self._values_max = values_max
        self._values: set[str] = set()

    def __call__(self, value: str) -> str:
        if value in self._values:
            return value
        if len(self._values) >= self._values_max:
            return OTHER
        self._values.add(value)
        return value


class Instruments:
    """All instruments of one meter, with the bounds of their labels."""

    def __init__(self, meter: Meter) -> None:
        def seconds(name: str, description: str) -> Histogram:
            return meter.create_histogram(
                name, unit="s", description=description, explicit_bucket_boundaries_advisory=SECONDS
            )

        self.later = Later()
        """Where the figures of calls go, which are many, and their spans."""
        self.kind = BoundedLabel(KINDS_MAX)
        self.error = BoundedLabel(ERRORS_MAX)
        self.reason = BoundedLabel(REASONS_MAX)
        self._method = BoundedLabel(METHODS_MAX)

        self.call_duration = seconds("silo.calls.duration", "From making a call to its end, as its caller sees it.")
        self.queue_duration = seconds("silo.calls.queue.duration", "What calls waited for their turn.")
        self.turn_duration = seconds("silo.calls.turn.duration", "What turns took.")
        self.forwarded = meter.create_counter("silo.calls.forwarded", description="Calls sent on to another silo.")
        self.retried = meter.create_counter("silo.calls.retried", description="Calls sent again that had not run.")
        self.late = meter.create_counter("silo.calls.late", description="Answers for which nobody waited any more.")
        self.rejected = meter.create_counter("silo.calls.rejected", description="Calls that a full queue refused.")
        self.unknown = meter.create_counter("silo.calls.outcome_unknown", description="Calls that may have run.")
        self.calls_open_here: int | None = None
        """As last told; None while nobody tells."""
        meter.create_observable_gauge(
            "silo.calls.open", [self._calls_open], description="Calls made here and not yet answered."
        )

        self._activations: dict[str, int] = {}
        meter.create_observable_up_down_counter(
            "silo.grain.activations", [self._activations_here], unit="{grain}", description="Activations on this silo."
        )
        self.activations_in_flight = meter.create_gauge(
            "silo.grain.activations.in_flight", unit="{grain}", description="Activations that are being made."
        )
        self.activations_waiting = meter.create_gauge(
            "silo.grain.activations.waiting", unit="{grain}", description="Activations that wait to be begun."
        )
        self.activation_duration = seconds("silo.grain.activation.duration", "What it took to activate a grain.")
        self.deactivation_duration = seconds("silo.grain.deactivation.duration", "What it took to deactivate one.")

        self.directory_operations = meter.create_counter(
            "silo.directory.operations", unit="{grain}", description="What the directory was asked, by grain."
        )
        self.directory_duration = seconds("silo.directory.duration", "What one batch took the directory.")

        self.storage_duration = seconds("silo.storage.duration", "What reads and writes of persistent state took.")

        self.moves_started = meter.create_counter("silo.migration.started", description="Moves begun at this silo.")
        self.moves_completed = meter.create_counter("silo.migration.completed", description="Grains moved away.")
        self.moves_failed = meter.create_counter("silo.migration.failed", description="Moves that did not happen.")
        self.move_duration = seconds("silo.migration.duration", "From the wish to move a grain to the outcome.")
        self.move_pause = seconds("silo.migration.pause", "How long a grain that moved ran no turn.")
        self.stage_duration = seconds("silo.migration.stage.duration", "What each stage of a move took.")
        self.moves_in_flight = meter.create_gauge("silo.migration.in_flight", description="Moves under way.")
        self.payload_size = meter.create_histogram(
            "silo.migration.context.size",
            unit="By",
            description="Soft state that travelled.",
            explicit_bucket_boundaries_advisory=BYTES,
        )
        self.held_calls = meter.create_histogram(
            "silo.migration.held_calls",
            unit="{call}",
            description="Calls that waited while a grain moved.",
            explicit_bucket_boundaries_advisory=CALLS,
        )

        self.loop_lag = seconds("silo.runtime.loop.lag", "How late the event loop ran a timer.")
        self.members = meter.create_gauge("silo.membership.members", unit="{silo}", description="Silos, by state.")
        self.spread = meter.create_gauge(
            "silo.placement.ownership.spread", unit="1", description="Most activations of a silo over their mean."
        )

    def counted(self, kind: str, change: int) -> None:
        """There is an activation of this kind more, or one less."""
        kind = self.kind(kind)
        self._activations[kind] = self._activations.get(kind, 0) + change

    def method(self, kind: str, method: str) -> Labels:
        """Which method of which kind."""
        kind = self.kind(kind)
        if kind != OTHER and self._method(f"{kind}/{method}") == OTHER:
            method = OTHER
        return {"rpc.system": "silo", "rpc.service": kind, "rpc.method": OTHER if kind == OTHER else method}

    # What is asked for whenever the metrics are read, before the histograms are, and maybe from another thread.

    def _calls_open(self, _: CallbackOptions) -> Iterable[Observation]:
        self.later.tell_figures()
        return () if self.calls_open_here is None else (Observation(self.calls_open_here),)

    def _activations_here(self, _: CallbackOptions) -> Iterable[Observation]:
        return [Observation(count, {"type": kind}) for kind, count in list(self._activations.items())]
