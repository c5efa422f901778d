"""One activation: a live grain on this silo, its turns, and its way from registration to its end."""

from __future__ import annotations

import asyncio
import contextvars
import enum
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, cast

from silo.activation.queue_part import QueuePart
from silo.activation.timers import GrainTimer, Tick, TimerCallback
from silo.activation.turn_context import TurnContext, current_turn
from silo.activation.turns import Admission, TurnQueue
from silo.activation.work import GrainWork
from silo.chronicle import Chronicle
from silo.directory.addresses import Entry, GrainId, SiloAddress
from silo.directory.errors import (
    ActivationFailed,
    CallCycle,
    CallExpired,
    GrainMoved,
    MigrationRefused,
    NestedCallFailed,
    NotExecuted,
    OutcomeUnknown,
    Overloaded,
    SerializationError,
    SiloError,
    SiloFenced,
)
from silo.directory.membership import TurnRight
from silo.eager import EagerTasks
from silo.grain_records import Fate
from silo.kinds import GrainKind, OnBusy
from silo.logs import get_logger
from silo.migration.lifecycle import DeactivationReason
from silo.migration.outcome import MigrationOutcome
from silo.migration.participants import Participant, ParticipantSet
from silo.persistence.grain_states import GrainStates, StorageParts
from silo.routing.call import Answer, Call, ValueCodec
from silo.routing.forwarded_calls import ForwardedCalls, Key
from silo.wire.frames import Flag, Outcome

if TYPE_CHECKING:
    from silo.telemetry import Telemetry

log = get_logger(__name__)

G = TypeVar("G")
T = TypeVar("T")
THE_PROCESS_ENDS = (KeyboardInterrupt, GeneratorExit)
"""What grain code may raise, or have raised in it, that is not an answer to anybody: the process, or its loop, ends."""
NO_CALLS: frozenset[Key] = frozenset()
"""One for all activations: Python makes an empty frozenset anew each time."""
BUSY_NAMED_MAX = 5
"""How many methods that run are named where a move is refused or given up for them."""
THE_PROCESS_ENDS_OR_A_TASK = (*THE_PROCESS_ENDS, asyncio.CancelledError)


class State(enum.Enum):
    """Where an activation stands. Turns start only while it is OPEN (and, for what they wait for, DRAINING)."""

    REGISTERING = "registering"
    STARTING = "starting"
    OPEN = "open"
    DRAINING = "draining"
    """Running turns finish; new calls are held."""
    CLOSED = "closed"
    """No turn runs: it is being deactivated, handed over, or has just been built."""
    GONE = "gone"
    """It serves no more; what it left behind may use the runtime no more."""


@dataclass(frozen=True, slots=True)
class ActivationLimits:
    """The bounds of each activation here; see the settings of the same names."""

    queue_calls_max: int = 1000
    queue_bytes_max: int = 64 * 1024 * 1024
    activation_timeout_s: float = 30.0
    deactivation_timeout_s: float = 30.0
    activate_tries_max: int = 2


@dataclass(frozen=True, slots=True)
class Premises:
    """What every activation of one silo shares."""

    codec: ValueCodec
    right: TurnRight
    limits: ActivationLimits
    silo_name: str
    reroute: Callable[[Iterable[Call]], None]
    """Sends calls on, in order, to wherever their grain is."""
    on_forwarded_start: Callable[[Call], None]
    """Told when the turn of a call that came by way of another silo starts."""
    reference: Callable[[type[Any], str], Any]
    begin_move: Callable[
        [Activation, str | SiloAddress | None, str, bool, OnBusy | None], asyncio.Future[MigrationOutcome]
    ]
    begin_deactivation: Callable[[Activation], object]
    telemetry: Telemetry | None = None
    storage: StorageParts | None = None
    """Where persistent state lies; None where no kind here has any."""
    base_context: contextvars.Context = field(default_factory=contextvars.copy_context)
    """Turns run in copies of it: nothing of a caller's context reaches a grain, here as little as from afar."""
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    """The loop of this silo. Asking for it takes a system call, and turns need it several times each."""
    running: EagerTasks = field(default_factory=lambda: EagerTasks("turn"))
    """The turns that run, of whichever activation, and the tasks of grains."""
    new_call_id: Callable[[], int] = field(default_factory=lambda: itertools.count(1).__next__)
    """Numbers for the calls that timers make."""
    chronicle: Chronicle = field(default_factory=Chronicle)
    """What this silo remembers of grains that were in trouble."""
    forwarded: ForwardedCalls = field(default_factory=lambda: ForwardedCalls(0))
    """What is known of forwarded calls here."""
    hasten: Callable[[Activation], None] = lambda _: None
    """Told when a grain calls one that waits for a place among those that are begun at a time."""
    lend_place: Callable[[Activation], None] = lambda _: None
    """Told when `on_activate` begins to wait for another grain."""
    take_place_back: Callable[[Activation], None] = lambda _: None
    """Told when it waits no more."""


class Activation:
    """The one live instance of a grain, seen from the runtime."""

    __slots__ = (
        "_drained",
        "_holds",
        "_opened",
        "_premises",
        "activation_id",
        "entry",
        "has_left_behind",
        "id",
        "instance",
        "kind",
        "last_used",
        "left_waiting",
        "move",
        "opened_at",
        "participants",
        "started_at",
        "state",
        "states",
        "turns",
        "wants_deactivation",
        "work",
    )

    def __init__(self, grain: GrainId, kind: GrainKind, activation_id: str, premises: Premises) -> None:
        self.id = grain
        self.kind = kind
        self.activation_id = activation_id
        self.entry: Entry | None = None
        self.instance: Any = None
        self.state = State.REGISTERING
        self.turns: TurnQueue[Call] = TurnQueue(
            kind.reentrant,
            kind.queue_calls_max or premises.limits.queue_calls_max,
            kind.queue_bytes_max or premises.limits.queue_bytes_max,
        )
        self.last_used = self.started_at = premises.loop.time()
        self.opened_at: float | None = None
        """Since when, without a break, it starts turns; None before that."""
        self.left_waiting = NO_CALLS
        """The calls that stood in the queue at the place that it has moved here from."""
        self.participants: ParticipantSet | None = None
        self.states: GrainStates | None = None
        """Its persistent states, where its kind has any."""
        self.move: Any = None
        """The move under way, where there is one."""
        self.wants_deactivation: DeactivationReason | None = None
        """Why it is to end as soon as that can be done."""
        self.work: GrainWork | None = None
        """What it has under way beside its turns, where there is anything."""
        self.has_left_behind = False
        """Whether turns still run here that count no more."""
        self._opened: asyncio.Future[None] | None = None
        self._drained: asyncio.Future[None] | None = None
        self._holds = 0
        """How often it was held: who waits for the end of one drain is not served by that of the next."""
        self._premises = premises

    def __repr__(self) -> str:
        return f"<activation {self.activation_id} of {self.id}, {self.state.value}>"

    # ------------------------------------------------------------------------------------------------------------ turns

    def admit(self, call: Call, *, forced: bool = False) -> None:
        """Take a call in: it runs now, waits for its turn, or is answered with why it does neither."""
        call.spec = self.kind.methods.get(call.method)  # its caller may know another class of this kind: an interface
        if call.spec is None:
            call.on_answer(call, Answer.failed(self.kind.unknown_method(call.method)))
            return
        admission = self.turns.admit(call, forced=forced)
        if admission is Admission.START:
            self._start(call)
            return
        match admission:
            case Admission.WAIT:
                call.queued_at = self._premises.loop.time()
                if call.flags & Flag.INNER and self.state in (State.REGISTERING, State.STARTING):
                    self._premises.hasten(self)
            case Admission.CYCLE:
                call.on_answer(call, Answer.failed(cycle(call)))
            case Admission.FULL:
                what = f"{self.id} has {self.turns.waiting_count} calls waiting, as many as it may"
                self._refuse(call, what, "queue_calls_max")
            case Admission.FULL_BYTES:
                what = f"{self.id} has calls of {self.turns.waiting_bytes} bytes waiting; {call.size} more are too many"
                self._refuse(call, what, "queue_bytes_max")

    def begin(self, call: Call) -> bool:
        """Count a call as running, where nothing else runs or waits here; else False, with nothing done.

        It is run by `run_begun`, right after.
        """
        spec = self.kind.methods.get(call.method)
        if spec is None or not self.turns.begin(call):
            return False
        call.spec = spec
        return True

    def run_begun(self, call: Call) -> None:
        """Run a call of somebody in this process, which `begin` has begun."""
        try:
            call.isolate(self._premises.codec)
        except SerializationError as error:
            self._ended(call, Answer.failed(error), 0.0)
            return
        self._start(call)

    def admit_tick(self, tick: Tick) -> None:
        """Take in what a timer of this activation calls."""
        if self.turns.admit(tick, forced=True) is Admission.START:
            self._start(tick)
        else:
            tick.queued_at = self._premises.loop.time()

    def _refuse(self, call: Call, what: str, limit: str) -> None:
        if self._premises.telemetry is not None:
            self._premises.telemetry.rejected(limit)
        call.on_answer(call, Answer.failed(Overloaded(what, limit)))

    def cancel(self, call: Call) -> bool:
        """The caller no longer waits. True if the call had not started, and now never will."""
        if self.turns.discard(call):
            self._start_all(self.turns.startable())  # it may have stood before readers that can join the running ones
            return True
        call.cancelled = True
        if call.task is not None:
            call.task.cancel()
        return False

    def newer_entry(self, call: Call) -> Entry | None:
        """The entry to tell the caller's silo of, where it went by another one."""
        entry = self.entry
        return entry if entry is not None and entry.epoch != call.sender_epoch else None

    def _start(self, call: Call) -> None:
        premises = self._premises
        if call.flags & Flag.FORWARDED:
            call.flags &= ~Flag.FORWARDED
            premises.on_forwarded_start(call)
        premises.running.start(self.turn(call), premises.base_context.copy())

    def _start_all(self, calls: Iterable[Call]) -> None:
        for call in calls:
            self._start(call)

    async def turn(self, call: Call, begun: Awaitable[Any] | None = None) -> None:
        """Run a turn to its end, whatever that is: in one coroutine, since to make and to step each takes time.

        Args:
            begun: the rest of what the grain does, where that was begun already.
        """
        premises = self._premises
        right = premises.right
        call.task = asyncio.current_task(premises.loop)
        answer: Answer | None = None
        started = 0.0
        try:
            if begun is None and not right.is_held():
                await right.held()
            started = premises.loop.time()
            deadline = call.deadline
            if begun is None and (
                call.cancelled or call.interrupted or call.left_behind or (deadline is not None and started >= deadline)
            ):
                answer = self._refused_at_start(call)
            elif begun is None and (refusal := self._read_arguments(call)) is not None:
                answer = refusal
            else:
                if begun is None:
                    current_turn.set(TurnContext(self, call, deadline))
                args, kwargs, spec = call.args, call.kwargs, call.spec
                assert args is not None
                assert spec is not None
                telemetry = premises.telemetry
                try:
                    if begun is not None:
                        value = await begun
                    elif telemetry is not None:
                        with telemetry.turn(self, call):
                            value = await spec.function(self.instance, *args, **(kwargs or {}))
                    elif kwargs:
                        value = await spec.function(self.instance, *args, **kwargs)
                    else:
                        value = await spec.function(self.instance, *args)
                except asyncio.CancelledError as error:
                    if call.is_called_off:
                        raise
                    answer = Answer(Outcome.APPLICATION_ERROR, error=error, entry=self.newer_entry(call))
                except Exception as error:
                    failure = seen_from_outside(error)
                    answer = Answer(Outcome.APPLICATION_ERROR, error=failure, entry=self.newer_entry(call))
                except THE_PROCESS_ENDS:
                    raise
                except BaseException as error:  # SystemExit of a library, say: the end of the turn, not of the silo
                    answer = Answer(Outcome.APPLICATION_ERROR, error=error, entry=self.newer_entry(call))
                else:
                    answer = self._returned(call, value)
            if not right.is_held():
                await right.held()  # nothing of a fenced silo takes effect
        except SiloFenced:
            # Declared dead. What has not begun never will, and is told so when everything here is given up.
            if answer is not None and answer.outcome != Outcome.NOT_EXECUTED:
                what = f"{self.id}.{call.method} has run, and its silo was declared dead before it could answer"
                answer = Answer.failed(OutcomeUnknown(what))
            else:
                answer = None
        except asyncio.CancelledError:
            if call.cancelled:
                return
            if not call.interrupted:
                raise
            what = f"{self.id}.{call.method} was interrupted, since the grain had to move"
            answer = Answer.failed(OutcomeUnknown(what))
        finally:
            call.task = None
            if call.left_behind:
                answer = None  # its caller has been told
            self._ended(call, answer, started)

    def _refused_at_start(self, call: Call) -> Answer:
        if call.cancelled:
            return Answer.failed(NotExecuted("its caller has gone"))
        if call.interrupted:
            return Answer.failed(NotExecuted(f"{self.id}.{call.method} was not begun, since the grain had to move"))
        if call.left_behind:
            return Answer.failed(OutcomeUnknown(f"{self.id}.{call.method} was left behind before it was begun"))
        return Answer.failed(CallExpired(f"{self.id}.{call.method}: the deadline passed while the call was queued"))

    def _read_arguments(self, call: Call) -> Answer | None:
        """Have the arguments as values; the answer where that cannot be."""
        if call.args is None:
            try:
                call.arguments(self._premises.codec)
            except SerializationError as error:
                return Answer(Outcome.NOT_EXECUTED, error=error)
        return None

    def _returned(self, call: Call, value: object) -> Answer:
        """The answer of a turn that has returned this."""
        if call.is_from_here:
            try:
                value = self._premises.codec.isolate(value)
            except SerializationError as error:
                return Answer(Outcome.APPLICATION_ERROR, error=error)
        return Answer(Outcome.VALUE, value, None, None, 0, self.newer_entry(call))

    def _ended(self, call: Call, answer: Answer | None, started: float) -> None:
        premises = self._premises
        now = premises.loop.time()
        if not isinstance(call, Tick) or call.keep_alive:
            self.last_used = now
        telemetry = premises.telemetry
        if telemetry is not None and answer is not None:
            telemetry.turn_ended(call, answer, started, now)
        try:
            if answer is not None:
                if answer.error is not None and call.is_one_way:
                    log.warning("call.one_way_failed", grain=str(self.id), method=call.method, exc_info=answer.error)
                call.on_answer(call, answer)
        finally:
            next_ones = self.turns.end(call)
            if next_ones:
                self._start_all(next_ones)
        if self._drained is not None and self.turns.running_count == 0:
            self._wake_drained()

    def leave_behind(self) -> int:
        """What still runs counts no more: its callers hear that the outcome is unknown. Returns how many turns it was.

        It is not killed; whatever it does through the runtime from here on raises GrainMoved.
        """
        running = self.turns.running
        self.has_left_behind = self.has_left_behind or bool(running)
        for call in running:
            what = f"{self.id}.{call.method} was still running when the grain had to move, and was left behind"
            call.on_answer(call, Answer.failed(OutcomeUnknown(what)))
            call.left_behind = True
            for _ in self.turns.end(call):
                raise AssertionError("a turn started while the grain drains")
        if self.work is not None:
            self.work.cancel_tasks()
        self._wake_drained()
        return len(running)

    # -------------------------------------------------------------------------------------------------------- lifecycle

    def open(self) -> None:
        """Start turns, those that waited first. One that is gone stays so."""
        if self.state is State.GONE:
            return
        self.state = State.OPEN
        premises = self._premises
        self.last_used = self.opened_at = premises.loop.time()
        if self.id in premises.chronicle:
            premises.chronicle.note(self.id, Fate.ACTIVE, f"under epoch {self.epoch}", self.last_used)
        self._wake_opened()
        self._wake_drained()
        if self.states is not None and self.states.stale:
            self.end_if_wanted()  # nobody is served with what has been given up: those that wait go to a new activation
            return
        if self.work is not None:
            self.work.timers.resume()
        self._start_all(self.turns.release())
        self.end_if_wanted()  # what has just started still ends here

    def end_if_wanted(self) -> None:
        """Begin to deactivate, where that was asked for while it could not be done: too early, or during a move."""
        if self.wants_deactivation and self.state is State.OPEN:
            self._premises.begin_deactivation(self)

    def hold(self) -> None:
        """Start no new turns; those that run go on."""
        self._holds += 1
        self.state = State.DRAINING
        self.turns.hold()
        if self.work is not None:
            self.work.timers.rest()

    async def drained(self) -> bool:
        """Wait, while it is held, until no turn runs; then end the grain's tasks, or first wait for them too, as its
        kind says. False if it was opened again, or has gone, before that.
        """
        hold = self._holds
        while self.state is State.DRAINING and self._holds == hold and self.busy_count:
            if self._drained is None or self._drained.done():
                self._drained = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._drained)
        if self.state is not State.DRAINING or self._holds != hold:
            return False
        self.state = State.CLOSED
        if self.work is None:
            return True
        await self.work.end_tasks()
        return self.state is State.CLOSED

    def closes_at_once(self) -> bool:
        """As `drained`, where it is held and nothing has to be waited for; whether that is so."""
        if self.state is not State.DRAINING or self.work is not None or self.turns.running_count:
            return False
        self.state = State.CLOSED
        return True

    @property
    def busy_count(self) -> int:
        """What a drain waits for: the running turns, and the grain's tasks where its kind says so."""
        tasks = self.work.task_count if self.work is not None and self.kind.drain_tasks else 0
        return self.turns.running_count + tasks

    @property
    def busy_with(self) -> str:
        """The same by name, for people: the methods that run, and how many tasks."""
        methods = Counter(call.method for call in self.turns.running)
        named = [method if times == 1 else f"{times} times {method}" for method, times in methods.most_common()]
        tasks = self.busy_count - self.turns.running_count
        if len(named) > BUSY_NAMED_MAX:
            named[BUSY_NAMED_MAX:] = ["and others"]
        return ", ".join([*named, f"{tasks} tasks"] if tasks else named)

    @property
    def is_open(self) -> bool:
        """Whether its turns run: those that wait for their turn, or the last ones."""
        return self.state in (State.OPEN, State.DRAINING)

    @property
    def starts_turns(self) -> bool:
        return self.state is State.OPEN

    def work_ended(self) -> None:
        if not self.busy_count:
            self._wake_drained()

    def _wake_drained(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def _wake_opened(self) -> None:
        if self._opened is not None and not self._opened.done():
            self._opened.set_result(None)
        self._opened = None

    async def opened(self) -> None:
        """Wait until it is open for the first time; raises GrainMoved where it ends before that."""
        while self.state in (State.REGISTERING, State.STARTING):
            if self._opened is None:
                self._opened = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._opened)
        self.check_alive()

    def interrupt(self) -> None:
        """Cancel the running turns; their callers hear that the outcome is unknown."""
        for call in self.turns.running:
            call.interrupted = True
            if call.task is not None:
                call.task.cancel()
        if self.work is not None:
            self.work.cancel_tasks()

    @property
    def right(self) -> TurnRight:
        return self._premises.right

    def revive(self) -> None:
        """A move was given back: this instance, frozen since, is the grain's again."""
        self.state = State.CLOSED

    def abandon(self) -> list[Call]:
        """It serves no more. Returns the calls that wait for it, in order."""
        self.state = State.GONE
        self.turns.hold()
        self._wake_opened()
        self._wake_drained()
        waiting = self.turns.take_waiting()
        return waiting if self.work is None else self.work.abandon(waiting)

    def check_alive(self) -> None:
        """Raises GrainMoved for code that an activation has left behind."""
        if self.state is State.GONE or (self.has_left_behind and self._is_left_behind()):
            raise GrainMoved(f"{self.id} is no longer served by this activation: what it left running may not act")

    @staticmethod
    def _is_left_behind() -> bool:
        """Whether what runs now is a turn that counts no more."""
        turn = current_turn.get()
        return turn is not None and turn.call is not None and turn.call.left_behind

    async def in_hook(
        self, hook: Callable[[], Awaitable[None]], timeout_s: float, awaited_by: Call | None = None
    ) -> None:
        """Run a lifecycle hook of the grain, as its own code, within a time.

        Most never wait for anything: a task and a timer for each would be most of what they cost.
        """
        premises = self._premises
        if not premises.right.is_held():
            await premises.right.held()
        loop, limit, has_begun = premises.loop, cast("asyncio.Timeout | None", None), True

        async def run() -> None:
            nonlocal limit
            self._enter(loop.time() + timeout_s, awaited_by)
            try:
                async with asyncio.timeout(None if has_begun else timeout_s) as limit:
                    await hook()
            except BaseException as error:
                self._raise_failure(error, THE_PROCESS_ENDS_OR_A_TASK)
                raise
            finally:
                limit = None

        try:
            task = premises.running.step(run(), premises.base_context.copy())
        except asyncio.CancelledError:  # raised by the hook itself: nobody can have been cancelled meanwhile
            raise SiloError(f"a lifecycle hook of {self.id} ended with CancelledError") from None
        if task is None:
            return
        if limit is not None:
            limit.reschedule(loop.time() + timeout_s)
        else:
            has_begun = False
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():  # not whoever waits for the hook was cancelled, but something that the hook waited for
                raise SiloError(f"a lifecycle hook of {self.id} ended with CancelledError") from None
            task.cancel()
            await asyncio.wait([task])
            raise

    def run_sync(self, hook: Callable[[], Any]) -> Any:
        """Run a synchronous part of the grain's code as its own."""
        context = self._premises.base_context.copy()

        def run() -> Any:
            self._enter(None)
            try:
                return hook()
            except BaseException as error:
                self._raise_failure(error, THE_PROCESS_ENDS)
                raise

        return context.run(run)

    def _raise_failure(self, error: BaseException, passed: tuple[type[BaseException], ...]) -> None:
        """What a hook raises beside Exceptions is its failure all the same: who waits for the hook shall hear of it."""
        if not isinstance(error, (Exception, *passed)):
            raise SiloError(f"a lifecycle hook of {self.id} ended with {type(error).__name__}: {error}") from error

    def _enter(self, deadline: float | None, awaited_by: Call | None = None) -> None:
        """From here on, in this context, code acts for this activation beside any turn; `_run` does so for a turn."""
        current_turn.set(TurnContext(self, None, deadline, awaited_by))
        if self._premises.telemetry is not None:
            self._premises.telemetry.enter_hook(self)

    # ------------------------------------------------------------------------- what the grain may ask (GrainContext)

    @property
    def epoch(self) -> int:
        return self.entry.epoch if self.entry is not None else 0

    @property
    def silo_name(self) -> str:
        return self._premises.silo_name

    def reference(self, kind: type[G], key: str) -> G:
        return cast("G", self._premises.reference(kind, key))

    async def waits_for(self, answer: Awaitable[T]) -> T:
        """Wait for a grain that is called beside any turn; while this one starts, others may use its place."""
        if self.state is not State.STARTING:
            return await answer
        self._premises.lend_place(self)
        try:
            return await answer
        finally:
            self._premises.take_place_back(self)

    def request_move(
        self, to: str | SiloAddress | None, reason: str, force: bool, on_busy: OnBusy | None
    ) -> PendingMove:
        self.check_alive()
        return PendingMove(self, self._premises.begin_move(self, to, reason, force, on_busy))

    def request_deactivation(self) -> None:
        self.check_alive()
        self.end_when_possible(DeactivationReason.APPLICATION)

    def end_when_possible(self, reason: DeactivationReason) -> None:
        """Begin to deactivate, now or as soon as it is open and does not move any more."""
        self.wants_deactivation = self.wants_deactivation or reason
        self.end_if_wanted()

    def create_task(self, coroutine: Coroutine[Any, Any, T], name: str | None) -> asyncio.Task[T]:
        try:
            self.check_alive()
        except GrainMoved:
            coroutine.close()
            raise
        return self._working().spawn(coroutine, name)

    def own_task(self, coroutine: Coroutine[Any, Any, T], name: str | None) -> asyncio.Task[T]:
        """A task in which code acts for this activation; it ends when the silo does."""
        premises = self._premises

        async def run() -> T:
            self._enter(None)
            return await coroutine

        context = premises.base_context.copy()
        task = premises.loop.create_task(run(), name=name or f"task of {self.id}", context=context)
        premises.running.own(task)
        return task

    def register_timer(
        self,
        callback: TimerCallback | str,
        due_s: float,
        period_s: float | None,
        *,
        name: str | None,
        interleave: bool,
        keep_alive: bool,
    ) -> GrainTimer:
        self.check_alive()
        timers = self._working().timers
        return timers.register(callback, due_s, period_s, name=name, interleave=interleave, keep_alive=keep_alive)

    def block_migration(self, why: str) -> AbstractContextManager[None]:
        self.check_alive()
        return self._working().blocked(why)

    def _working(self) -> GrainWork:
        if self.work is None:
            self.work = GrainWork(self)
        return self.work

    @property
    def system_participants(self) -> tuple[Participant, ...]:
        """The runtime's own parts of this activation that hand over soft state."""
        parts: list[Participant] = []
        if self.work is not None and len(self.work.timers):
            parts.append(self.work.timers)
        if not (queue := self._queue_part()).is_empty:
            parts.append(queue)
        return tuple(parts)

    @property
    def arriving_parts(self) -> tuple[Participant, ...]:
        """All of those parts that there can be, for what arrives."""
        return (self._working().timers, self._queue_part())

    def _queue_part(self) -> QueuePart:
        return QueuePart(self, self._premises.forwarded)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._premises.loop

    def new_call_id(self) -> int:
        return self._premises.new_call_id()

    def add_participant(self, participant: Participant) -> None:
        if self.participants is None:
            self.participants = ParticipantSet()
        self.participants.add(participant)

    def remove_participant(self, participant: Participant) -> None:
        if self.participants is not None:
            self.participants.remove(participant)


class PendingMove:
    """A move that a grain has asked for itself; see MoveRequest."""

    __slots__ = ("_activation", "_outcome")

    def __init__(self, activation: Activation, outcome: asyncio.Future[MigrationOutcome]) -> None:
        self._activation = activation
        self._outcome = outcome

    def __await__(self) -> Generator[Any, None, MigrationOutcome]:
        turn = current_turn.get()
        if turn is not None and turn.activation is self._activation:
            raise MigrationRefused(
                f"a turn of {self._activation.id} awaits the move of its own grain, which waits for that turn to end:"
                " leave out the await; the move begins when the turn ends"
            )
        return asyncio.shield(self._outcome).__await__()


def seen_from_outside(error: Exception) -> BaseException:
    """What the caller of a turn may see of its failure.

    The failure of a call that the turn itself made says nothing about the turn, which did run.
    """
    if isinstance(error, (NotExecuted, OutcomeUnknown)):
        wrapped = NestedCallFailed(f"a call made inside failed with {type(error).__name__}: {error}")
        wrapped.__cause__ = error
        return wrapped.with_traceback(error.__traceback__)
    return error


def cycle(call: Call) -> CallCycle:
    chain = (*(grain for grain, _ in call.path), str(call.grain))
    way = " -> ".join(chain)
    return CallCycle(f"the call waits for its own chain: {way}; make it reentrant or call after the turn", chain)


def activation_failed(grain: GrainId, error: BaseException) -> ActivationFailed:
    failed = ActivationFailed(f"{grain} could not be activated: {type(error).__name__}: {error}")
    failed.__cause__ = error
    return failed
