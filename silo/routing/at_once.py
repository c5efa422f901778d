"""What can be run at once: a call made in this silo, of a grain that is here and has nothing else to do.

Its turn is run within the caller's own step, and most are over then. So nothing is made for it that only those need
that wait: no future, no task, no entry in the book, and not even the call. Whoever asks meanwhile for what runs gets
the call made for that; and whatever is not over with its first step, or does not end with a value, goes on from there
like any other turn.
"""

from __future__ import annotations

import asyncio
import contextvars
import types
from collections.abc import Awaitable, Callable, Collection, Generator
from sys import getrefcount
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar, cast
from weakref import getweakrefcount

from silo.activation.activation import Premises, State
from silo.activation.turn_context import QuickTurn, TurnContext, current_turn
from silo.class_checks import DEFAULT_TIMEOUT, MethodSpec
from silo.directory.addresses import GrainId
from silo.directory.errors import SerializationError
from silo.eager import OVER, Carrier, Later, Ready, current_tasks, swap_current_task
from silo.kinds import GrainKind
from silo.reference import CallOptions
from silo.routing.book import ANSWERED_AT_ONCE_MAX, CallBook
from silo.routing.call import HERE, Call, keep
from silo.serialization.tags import SCALARS
from silo.wire.frames import Flag

if TYPE_CHECKING:
    from silo.activation.catalog import Catalog

F = TypeVar("F", bound=Callable[..., Generator[Any, Any, Any]])
NOT_AT_ONCE: Final = Later(None)
COROUTINE: Any = types.CoroutineType  # else checkers would take whatever may be awaited for less than it is


class AtOnce:
    """Runs the calls of one silo that can be run at once.

    Args:
        name: who calls where no grain does.
        sought: the grains of which calls wait until they are found or placed.
    """

    def __init__(
        self,
        premises: Premises,
        catalog: Catalog,
        book: CallBook,
        *,
        name: str,
        call_timeout_s: float,
        sought: Collection[GrainId],
    ) -> None:
        self._name = name
        self._call_timeout_s = call_timeout_s
        self._sought = sought
        self._activation_of = catalog.get
        self._book = book
        self._lanes = book.lanes.out
        self._right = premises.right
        self._clock = premises.right.clock
        self._codec = premises.codec
        self._loop = premises.loop
        self._time = premises.loop.time
        self._new_context = premises.base_context.copy
        self._running = premises.running
        self._places = premises.running.places
        self._new_call_id = premises.new_call_id
        self._call_of = self._make_call

    def call(
        self,
        grain: GrainId,
        kind: GrainKind,
        method: MethodSpec,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: CallOptions,
    ) -> object:
        """Make a call to a method that is not one-way, if it can be run at once.

        Returns:
            Its value; or a `Later`, with the answer where it has to wait, without one where it has yet to be made. What
            it raises is raised here.
        """
        activation = self._activation_of(grain)
        if activation is None:
            return NOT_AT_ONCE
        turns = activation.turns
        if turns.quick is not None or not self._places or (self._sought and grain in self._sought):
            return NOT_AT_ONCE
        # Its caller may know another class of this kind: an interface.
        spec = method if kind is activation.kind else activation.kind.methods.get(method.name)
        if spec is None:
            return NOT_AT_ONCE
        timeout_s = options.timeout_s
        if timeout_s is DEFAULT_TIMEOUT:
            timeout_s = method.timeout_s
            if timeout_s is DEFAULT_TIMEOUT:
                timeout_s = self._call_timeout_s
        now = self._time()
        outer = current_turn.get()
        if outer is not None:
            caller = outer.activation
            if caller.state is State.GONE or caller.has_left_behind or (type(outer) is TurnContext and not outer.call):
                return NOT_AT_ONCE
            if (deadline := outer.deadline) is not None and deadline <= now:  # it is refused where it is made
                return NOT_AT_ONCE
        book, right = self._book, self._right
        if (
            (self._lanes and (self._name if outer is None else str(outer.activation.id), grain) in self._lanes)
            or (book.open_calls and not book.has_room_for(args, kwargs))
            or self._clock() >= right.deadline
        ):
            return NOT_AT_ONCE
        is_plain = not kwargs
        for arg in args:
            if type(arg) not in SCALARS:
                is_plain = False
                break
        if not is_plain:
            args, kwargs = self._codec.isolate_call(args, kwargs)
            if not turns.is_free:  # code of the application was asked for what is in them
                return NOT_AT_ONCE
        turn = QuickTurn(activation, now, spec, args, kwargs, timeout_s, outer, self._call_of)
        turns.quick = turn
        context, steps = self._new_context(), _steps(turn, spec.function, activation.instance, args)
        # From here on as in `EagerTasks.begin`: to call that would take as long as a twentieth of all this.
        loop, places = self._loop, self._places
        carrier = places.pop() or self._running.new_carrier(context)
        task = carrier.task
        if current_tasks is None:
            outer_task = swap_current_task(loop, task)
        else:
            outer_task = current_tasks.get(loop)
            current_tasks[loop] = task
        waits_for = OVER
        try:
            try:
                waits_for = context.run(next, steps, OVER)
            finally:
                if current_tasks is None or outer_task is None:
                    swap_current_task(loop, outer_task)
                else:
                    current_tasks[loop] = outer_task
                if (
                    waits_for is OVER
                    and getrefcount(task) == carrier.references
                    and getweakrefcount(task) == carrier.weak_references
                    and not task.cancelling()
                ):
                    places.append(carrier)
                else:
                    self._running.free_place(task, waits_for)
        except BaseException as error:
            return self._end_otherwise(turn, _raised(error))
        if waits_for is not OVER:
            return self._wait(turn, steps, context, carrier, waits_for)
        value = turn.value
        if turns.quick is not turn or self._clock() >= right.deadline:
            return self._end_otherwise(turn, Ready(value))
        if type(value) not in SCALARS:
            try:
                value = self._codec.isolate(value)
            except SerializationError:
                return self._end_otherwise(turn, Ready(turn.value))
        turns.quick = None
        activation.last_used = now
        book.answered_in_a_row += 1
        if book.answered_in_a_row >= ANSWERED_AT_ONCE_MAX:
            book.answered_in_a_row = 0
            return Later(_after_others(value))
        return value

    def _make_call(self, turn: QuickTurn) -> Call:
        outer = turn.outer
        return Call(
            self._new_call_id(),
            turn.activation.id,
            turn.method.name,
            self._name if outer is None else str(outer.activation.id),
            turn.deadline,
            keep,
            turn.args,
            turn.kwargs,
            spec=turn.method,
            path=() if outer is None else outer.path,
            flags=0 if outer is None else Flag.INNER,
            target=HERE,
            book=self._book,
        )

    def _wait(
        self,
        turn: QuickTurn,
        steps: Generator[Any, Any, None],
        context: contextvars.Context,
        carrier: Carrier,
        waits_for: object,
    ) -> Later:
        """Have the turn go on in a task, and its caller wait."""
        call = self._counted(turn)
        rest = turn.activation.turn(call, cast("Awaitable[Any]", _resumed(turn, steps, waits_for)))
        carrier.carry_on(rest, context, rest.send(None))
        call.task = carrier.task
        if call.is_called_off:
            carrier.task.cancel()
        self._book.adopt(call)
        return Later(call)

    def _end_otherwise(self, turn: QuickTurn, end: Awaitable[Any]) -> object:
        """The turn is over, and ends like any other: it has failed, or somebody has asked for it, say."""
        call = self._counted(turn)
        self._running.start(turn.activation.turn(call, end), self._new_context())
        if call.kept is None:
            self._book.adopt(call)
            return Later(call)
        answer = self._book.answer_of(call)
        return answer.value if type(answer) is Ready else Later(answer)

    @staticmethod
    def _counted(turn: QuickTurn) -> Call:
        turn.activation.turns.recount()
        return turn.call


def _awaiting(steps: F) -> F:
    """Let a generator await, and keep its type."""
    return cast("F", types.coroutine(steps))


@_awaiting
def _steps(
    turn: QuickTurn, function: Callable[..., Awaitable[Any]], instance: object, args: tuple[Any, ...]
) -> Generator[Any, Any, None]:
    """What the grain does in this turn, which keeps the value. It returns none: that would be raised, at the cost of
    the whole rest."""
    current_turn.set(turn)
    made: Any = function(instance, *args, **turn.kwargs) if turn.kwargs else function(instance, *args)
    if type(made) is not COROUTINE:
        made = cast("Any", _awaited(made))
    turn.value = yield from made


@_awaiting
def _resumed(turn: QuickTurn, steps: Generator[Any, Any, None], waits_for: object) -> Generator[Any, Any, Any]:
    """What awaits the rest of these steps, of which the first ended with waiting for this."""
    while True:
        try:
            yield waits_for
        except GeneratorExit:
            steps.close()
            raise
        except BaseException as error:
            try:
                waits_for = steps.throw(error)
            except StopIteration:
                return turn.value
        else:
            yield from steps
            return turn.value


async def _awaited(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


async def _raised(error: BaseException) -> NoReturn:
    raise error


async def _after_others(value: object) -> object:
    await asyncio.sleep(0)
    return value
