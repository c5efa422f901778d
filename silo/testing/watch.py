"""The watch: what the runtime tells of itself, as it tells its telemetry, made into events for the witness.

So any grain can be checked, not only those that were written to be. A call is known by the trace context that travels
with it, through every silo on its way.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.trace import INVALID_SPAN, NoOpTracerProvider

from silo.activation.activation import State
from silo.directory.addresses import GrainId, SiloAddress
from silo.directory.errors import NestedCallFailed, NotExecuted, OutcomeUnknown
from silo.migration import handover
from silo.migration.outcome import MigrationOutcome
from silo.telemetry import Telemetry
from silo.telemetry.instruments import Instruments
from silo.telemetry.moves import MoveRecord
from silo.telemetry.spans import Spans
from silo.telemetry.telemetry import outcome_of
from silo.testing.steps import Place, Step, Steps, step_of
from silo.testing.witness import Ended, ListWitness, What

if TYPE_CHECKING:
    from silo.activation.activation import Activation
    from silo.directory.contract import GrainDirectory
    from silo.routing.call import Answer, Call

VERSION: Final = "00"
"""Of the W3C trace context in whose form calls are numbered."""


@dataclass(slots=True)
class Notes:
    """What all watches of one run share.

    Args:
        witness: takes the events.
        steps: are told of what is reached.
    """

    witness: ListWitness
    steps: Steps
    calls: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    sent: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    """How many calls each caller has made to each grain."""


class Watch(Telemetry):
    """The telemetry of one silo or client that is watched; each tells the witness, none exports anything."""

    def __init__(self, notes: Notes) -> None:
        super().__init__(NoOpTracerProvider(), NoOpMeterProvider())
        self._notes = notes
        self._address = ""
        self._name = ""

    def at(self, silo: SiloAddress, name: str) -> Watch:
        own = copy.copy(self)
        own._address = str(silo)
        own._name = name
        return own

    # ------------------------------------------------------------------------------------------------------------ calls

    async def called(self, call: Call, send: Callable[[Call], Awaitable[Any]]) -> Any:
        """Send a call and wait for its end, both witnessed. Orders to the runtime are no grain's business."""
        if call.is_control:
            return await outcome_of(send(call))
        notes, witness = self._notes, self._notes.witness
        number = next(notes.calls)
        call.trace = f"{VERSION}-{number:032x}-{number:016x}-00"
        name, caller, grain = call_name(call), call.caller, str(call.grain)
        notes.sent[caller, grain] += 1
        witness(
            What.CALL_SENT,
            call=name,
            caller=caller,
            grain=grain,
            method=call.method,
            silo=self._address,
            number=notes.sent[caller, grain],
            deadline_s=None if call.deadline is None else call.deadline - asyncio.get_running_loop().time(),
        )
        outcome, because = Ended.CANCELLED, ""
        try:
            value = await outcome_of(send(call))
            outcome = Ended.SENT if call.is_one_way else Ended.VALUE
        except NestedCallFailed as error:  # it did run: what failed is a call that it made
            outcome, because = Ended.APPLICATION_ERROR, repr(error)
            raise
        except NotExecuted as error:
            outcome, because = Ended.NOT_EXECUTED, repr(error)
            raise
        except OutcomeUnknown as error:
            outcome, because = Ended.OUTCOME_UNKNOWN, repr(error)
            raise
        except Exception as error:
            outcome, because = Ended.APPLICATION_ERROR, repr(error)
            raise
        finally:
            witness(What.CALL_ENDED, call=name, caller=caller, grain=grain, outcome=outcome, because=because)
        return value

    @contextmanager
    def turn(self, activation: Activation, call: Call) -> Generator[None]:
        self._turn(What.TURN_STARTED, activation, call)
        try:
            yield
        finally:
            self._turn(What.TURN_ENDED, activation, call)

    def _turn(self, what: What, activation: Activation, call: Call) -> None:
        if not call.trace:  # nobody was watched who made it
            return
        reentrant = activation.kind.reentrant
        own_chain = any(grain == str(activation.id) for grain, _ in call.path)
        anywhere = reentrant is True or call.always_interleave or own_chain
        self._notes.witness(
            what,
            grain=str(activation.id),
            activation=activation.activation_id,
            silo=self._address,
            call=call_name(call),
            method=call.method,
            interleaves=call.read_only or anywhere,
            anywhere=anywhere,
        )

    def turn_ended(self, call: Call, answer: Answer, started: float, now: float) -> None:
        """`turn` has told it."""

    # ------------------------------------------------------------------------------------------------------ activations

    @contextmanager
    def activation(self, activation: Activation, trace_parent: str) -> Generator[None]:
        steps = self._notes.steps
        steps.reach(Place(Step.START, activation.id, self._name, self._name, self._name), activation)
        try:
            yield
        finally:
            steps.leave(activation)
        if activation.state is State.OPEN:
            self.tell_open(activation, "call")

    def tell_open(self, activation: Activation, because: str) -> None:
        """An activation has opened, and no turn of it has started."""
        self._notes.witness(
            What.OPENED,
            grain=str(activation.id),
            activation=activation.activation_id,
            silo=self._address,
            because=because,
        )

    def enter_hook(self, activation: Activation) -> None:
        self._notes.steps.enter_code(activation)

    def deactivated(self, grain: GrainId, reason: str, took_s: float, failed: bool) -> None:
        self._notes.witness(What.CLOSED, grain=str(grain), silo=self._address, because=str(reason))

    # ------------------------------------------------------------------------------------------------------------ moves

    def leaving(self, activation: Activation, reason: str, target: str, trace_parent: str | None) -> WatchedMove:
        return WatchedMove(self, self._spans, self._instruments, activation, self._name, target)

    def arriving(self, activation: Activation, reason: str, source: str, trace_parent: str) -> WatchedMove:
        return WatchedMove(self, self._spans, self._instruments, activation, source, self._name)

    def reach(self, step: Step, activation: Activation, source: str, target: str) -> None:
        """A move has come to a step, at this silo."""
        self._notes.steps.reach(Place(step, activation.id, self._name, source, target), activation)

    def leave(self, activation: Activation) -> None:
        """A move has ended, at this silo."""
        self._notes.steps.leave(activation)

    def observed(self, directory: GrainDirectory) -> GrainDirectory:
        return directory


class WatchedMove(MoveRecord):
    """One move as one of its silos sees it."""

    def __init__(
        self, watch: Watch, spans: Spans, instruments: Instruments, activation: Activation, source: str, target: str
    ) -> None:
        super().__init__(spans, instruments, INVALID_SPAN, activation, {})
        self._watch = watch
        self._source = source
        self._target = target

    def on(self, order: handover.Order) -> None:
        step = step_of(order)
        if step is not None:
            self._watch.reach(step, self._activation, self._source, self._target)
        if isinstance(order, handover.Resume):  # it may follow a target that had opened, and died
            self._watch.tell_open(self._activation, "migration_aborted")

    def held(self, traces: Iterable[str]) -> None:
        """Each call's own end tells what became of it."""

    def ended(self, outcome: MigrationOutcome) -> None:
        self._watch.leave(self._activation)

    def opened(self, epoch: int) -> None:
        self._watch.leave(self._activation)
        self._watch.tell_open(self._activation, "migration")

    def failed(self, why: str) -> None:
        self._watch.leave(self._activation)

    def discarded(self, why: str) -> None:
        self._watch.leave(self._activation)


def call_name(call: Call) -> str:
    """What a watched call is called in the witness's events, wherever it is."""
    return f"call-{int(call.trace.split('-')[1], 16)}"
