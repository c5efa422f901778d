"""What the runtime tells of its calls, activations and moves, and how that becomes spans and metrics."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from time import monotonic, time_ns
from typing import TYPE_CHECKING, Any

from opentelemetry import metrics
from opentelemetry.context import Context, attach, detach, get_current
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, TracerProvider, set_span_in_context

from silo.directory.addresses import GrainId, SiloAddress
from silo.directory.contract import GrainDirectory
from silo.directory.errors import OutcomeUnknown, Overloaded
from silo.directory.membership import SiloStatus
from silo.persistence.contract import GrainStorage
from silo.routing.call import Call
from silo.telemetry.instruments import Instruments, Labels
from silo.telemetry.later import Later
from silo.telemetry.methods import Method, Methods
from silo.telemetry.moves import MoveRecord
from silo.telemetry.observed_directory import ObservedDirectory
from silo.telemetry.observed_storage import ObservedStorage
from silo.telemetry.spans import SCOPE, Attributes, Named, Spans
from silo.telemetry.traces import NOWHERE, parent_of, traceparent

if TYPE_CHECKING:
    from silo.activation.activation import Activation
    from silo.routing.call import Answer

HERE = "here"


class Telemetry:
    """Produces the spans and metrics of one silo or client.

    Those of calls come a few at a time, up to 50 ms late; none are left when the silo or client has been closed. So an
    application closes those first, and shuts its providers down after them.

    Args:
        tracer_provider, meter_provider: where they go; the application's own (global) providers where none are given.
    """

    def __init__(
        self, tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None
    ) -> None:
        self._spans = Spans(tracer_provider)
        self._instruments = Instruments(metrics.get_meter(SCOPE, meter_provider=meter_provider))
        self._name = ""
        self._silo: dict[str, str] = {}
        self._methods = Methods(self._instruments, self._silo)
        self._hook_spans: dict[Activation, Span] = {}
        self._around = NOWHERE
        """What is current around the silo, and so around each of its turns."""

    def at(self, silo: SiloAddress, name: str) -> Telemetry:
        """The same for one incarnation of a silo, whose address every span then bears, or all of them together."""
        own = copy.copy(self)
        own._name = name
        own._silo = self._spans.beside({"silo.address": str(silo), "silo.name": name})
        own._methods = Methods(own._instruments, own._silo)
        own._hook_spans = {}
        own._around = get_current()
        return own

    def settle(self) -> None:
        """Tell at once what is to be told a little later, as at the end of a silo or a client."""
        self._instruments.later.tell_figures()
        self._instruments.later.tell_spans()

    # ------------------------------------------------------------------------------------------------------------ calls

    async def called(self, call: Call, send: Callable[[Call], Awaitable[Any]]) -> Any:
        """Send a call and wait for its end: the caller's span, whose context travels with the call.

        Args:
            send: has the call on its way when it returns, or as soon as what it returns is awaited.
        """
        method, key = self._methods.of(call), call.grain.key
        started = self._spans.named() or self._spans.start(
            method.span_name, {**method.attributes, "silo.grain.key": key}, kind=SpanKind.CLIENT
        )
        call.trace = started[0] if isinstance(started, tuple) else traceparent(started)
        began_ns, began = time_ns(), monotonic()
        later, instruments = self._instruments.later, self._instruments
        answer: Awaitable[Any] | None = None
        try:
            answer = send(call)
            value = await answer
        except BaseException as error:
            took_s, ended_ns = monotonic() - began, time_ns()
            if isinstance(error, asyncio.CancelledError):
                _abandon(answer)
            labels = method.called_here if call.target == HERE else method.called_there
            span = self._span_of_call(method, key, started, labels, began_ns)
            later.record((instruments.call_duration, took_s, self._failed(error, span, labels)))
            later.end(span.end, ended_ns)
            raise
        labels = method.called_here if call.target == HERE else method.called_there
        later.record((instruments.call_duration, monotonic() - began, labels))
        if not isinstance(started, tuple) or started[2]:
            later.end(self._end_call, method, key, started, labels, began_ns, time_ns())
        return value

    def _span_of_call(self, method: Method, key: str, started: Named | Span, labels: Labels, began_ns: int) -> Span:
        if isinstance(started, tuple):
            attributes: Attributes = {**method.attributes, "silo.grain.key": key}
            span = self._spans.started(started, method.span_name, attributes, SpanKind.CLIENT, began_ns)
        else:
            span = started
        span.set_attribute("silo.scope", labels["scope"])
        return span

    def _end_call(
        self, method: Method, key: str, started: Named | Span, labels: Labels, began_ns: int, ended_ns: int
    ) -> None:
        self._span_of_call(method, key, started, labels, began_ns).end(ended_ns)

    def _failed(self, failure: BaseException, span: Span, labels: Labels) -> Labels:
        instruments, name = self._instruments, type(failure).__name__
        error = instruments.error(name)
        span.set_attribute("error.type", name)
        span.set_status(Status(StatusCode.ERROR, f"{name}: {failure}"))
        if isinstance(failure, OutcomeUnknown):
            instruments.unknown.add(1, {"reason": error})
        elif isinstance(failure, Overloaded):
            instruments.rejected.add(1, {"reason": instruments.reason(failure.limit), "seen_by": "caller"})
        return {**labels, "error.type": error}

    def turn(self, activation: Activation, call: Call) -> AbstractContextManager[None]:
        """The turn's own span; what the grain calls within it is its child."""
        method, grain = self._methods.of(call), activation.id
        attributes: Attributes = {**method.attributes, "silo.grain.key": grain.key, "silo.epoch": activation.epoch}
        span = self._spans.start_under(call.trace, method.span_name, attributes, SpanKind.SERVER)
        return _Current(span, self._around, self._instruments.later)

    def turn_ended(self, call: Call, answer: Answer, started: float, now: float) -> None:
        """A turn has ended, or was not begun after all."""
        instruments, method = self._instruments, self._methods.of(call)
        queued_s = max(0.0, started - call.queued_at) if call.queued_at else 0.0
        instruments.later.record(
            (instruments.queue_duration, queued_s, method.labels),
            (instruments.turn_duration, now - started, method.ended[answer.outcome]),
        )

    def rejected(self, limit: str) -> None:
        """A call was refused here, since this limit was reached."""
        self._instruments.rejected.add(1, {"reason": self._instruments.reason(limit), "seen_by": "silo"})

    def forwarded(self) -> None:
        """A call of another silo was sent on."""
        self._instruments.forwarded.add(1)

    def retried(self) -> None:
        """A call of this process is sent again, since it did not run."""
        self._instruments.retried.add(1)

    def answered_late(self) -> None:
        """An answer came for which nobody waits any more."""
        self._instruments.late.add(1)

    # ------------------------------------------------------------------------------------------------------ activations

    @contextmanager
    def activation(self, activation: Activation, trace_parent: str) -> Generator[None]:
        """An activation from its registration to its opening; a child of what the call that wanted it belongs to."""
        kind = activation.id.kind
        span = self._spans.start(f"activate {kind}", self._grain(activation.id), parent_of(trace_parent))
        self._hook_spans[activation] = span
        began = asyncio.get_running_loop().time()
        result = "error"
        try:
            yield
            result = "ok" if activation.entry is not None else "elsewhere"
        except Exception as error:
            span.record_exception(error)
            span.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"))
            raise
        finally:
            self._hook_spans.pop(activation, None)
            labels = {"type": self._instruments.kind(kind), "result": result, "via": "call"}
            self._instruments.activation_duration.record(asyncio.get_running_loop().time() - began, labels)
            span.set_attributes({"silo.epoch": activation.epoch, "silo.activation.result": result})
            span.end()

    def enter_hook(self, activation: Activation) -> None:
        """From here on, in this context, a hook of the grain runs: what it does belongs to what it runs for."""
        span = self._hook_spans.get(activation)
        if span is not None:
            attach(set_span_in_context(span))

    def counted(self, grain: GrainId, change: int) -> None:
        """The silo has an activation of such a grain more, or one less."""
        self._instruments.counted(grain.kind, change)

    def deactivated(self, grain: GrainId, reason: str, took_s: float, failed: bool) -> None:
        """A grain was deactivated."""
        labels = {"type": self._instruments.kind(grain.kind), "via": reason, "result": "error" if failed else "ok"}
        self._instruments.deactivation_duration.record(took_s, labels)

    # ------------------------------------------------------------------------------------------------------------ moves

    def leaving(self, activation: Activation, reason: str, target: str, trace_parent: str | None) -> MoveRecord:
        """A move away from here begins.

        Args:
            trace_parent: what asked for it; None for whatever runs now.
        """
        attributes = {"silo.migration.reason": reason, "silo.migration.to": target}
        self._instruments.moves_started.add(
            1,
            {
                "reason": self._instruments.reason(reason),
                "type": self._instruments.kind(activation.id.kind),
            },
        )
        return self._move("migrate", activation, attributes, trace_parent)

    def arriving(self, activation: Activation, reason: str, source: str, trace_parent: str) -> MoveRecord:
        """A grain was offered to this silo: its side of the move continues the source's trace."""
        attributes = {"silo.migration.reason": reason, "silo.migration.from": source}
        return self._move("take in", activation, attributes, trace_parent)

    def _move(
        self, what: str, activation: Activation, attributes: dict[str, str], trace_parent: str | None
    ) -> MoveRecord:
        if self._name:
            attributes.setdefault("silo.migration.from", self._name)
            attributes.setdefault("silo.migration.to", self._name)
        span = self._spans.start(
            f"{what} {activation.id.kind}",
            {**self._grain(activation.id), **attributes},
            None if trace_parent is None else parent_of(trace_parent),
        )
        return MoveRecord(self._spans, self._instruments, span, activation, self._hook_spans)

    def move_refused(self, grain: GrainId, reason: str) -> None:
        """A move was refused before anything of it began."""
        instruments = self._instruments
        instruments.moves_failed.add(
            1,
            {
                "reason": instruments.reason(reason),
                "type": instruments.kind(grain.kind),
                "stage": "before",
                "status": "refused",
            },
        )

    # --------------------------------------------------------------------------------------------- the silo as a whole

    def observed(self, directory: GrainDirectory) -> GrainDirectory:
        """The directory, reporting what it is asked and how long that takes."""
        return ObservedDirectory(directory, self._instruments)

    def observed_storage(self, storage: GrainStorage) -> GrainStorage:
        """The storage of persistent state, likewise."""
        return ObservedStorage(storage, self._instruments)

    def sampled(
        self,
        *,
        lag_s: float,
        members: Mapping[SiloStatus, int],
        spread: float,
        calls_open: int,
        moves_out: int,
        moves_in: int,
        activations_in_flight: int,
        activations_waiting: int,
    ) -> None:
        """What the silo measures of itself, once per load period."""
        instruments = self._instruments
        instruments.loop_lag.record(lag_s)
        instruments.spread.set(spread)
        instruments.calls_open_here = calls_open
        instruments.activations_in_flight.set(activations_in_flight)
        instruments.activations_waiting.set(activations_waiting)
        instruments.moves_in_flight.set(moves_out, {"direction": "out"})
        instruments.moves_in_flight.set(moves_in, {"direction": "in"})
        for status in SiloStatus:
            instruments.members.set(members.get(status, 0), {"state": status.name.lower()})

    # ------------------------------------------------------------------------------------------------------- attributes

    def _grain(self, grain: GrainId) -> Attributes:
        return {"silo.grain.kind": grain.kind, "silo.grain.key": grain.key, **self._silo}


async def outcome_of(answer: Awaitable[Any]) -> Any:
    """Wait for the answer of a call; whoever is cancelled meanwhile abandons it."""
    try:
        return await answer
    except asyncio.CancelledError:
        _abandon(answer)
        raise


def _abandon(answer: Awaitable[Any] | None) -> None:
    if isinstance(answer, Call):
        answer.abandon()


class _Current:
    """Has a span be the current one during a block; an exception that leaves the block is its failure.

    Args:
        around: what else is current then.
        later: what ends the span, as of the end of the block.
    """

    __slots__ = ("_around", "_later", "_span", "_token")

    def __init__(self, span: Span, around: Context, later: Later) -> None:
        self._span = span
        self._around = around
        self._later = later

    def __enter__(self) -> None:
        self._token = attach(set_span_in_context(self._span, self._around))

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        detach(self._token)
        if isinstance(error, Exception):
            self._span.record_exception(error)
            self._span.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"))
        self._later.end(self._span.end, time_ns())
