"""How applications write grains: `@grain`, `Grain`, the method decorators, and `current_grain()`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, Unpack, overload

from silo.class_checks import MARKS, MethodMarks, require_coroutine_function
from silo.directory.addresses import GrainId, SiloAddress
from silo.directory.errors import InvalidGrain
from silo.grain_context import GrainContext, MoveRequest, OutsideGrain, current_activation
from silo.kinds import KIND, GrainOptions, OnBusy, make_kind, require_on_busy
from silo.migration.outcome import MoveReason
from silo.migration.participants import Participant
from silo.reference import require_seconds
from silo.soft_state import soft_state

if TYPE_CHECKING:
    from silo.activation.timers import GrainTimer

__all__ = ["Grain", "always_interleave", "current_grain", "grain", "one_way", "read_only", "soft_state", "timeout"]

T = TypeVar("T")
ClassT = TypeVar("ClassT", bound=type)
MethodT = TypeVar("MethodT", bound=Callable[..., Coroutine[Any, Any, Any]])
SilentMethodT = TypeVar("SilentMethodT", bound=Callable[..., Coroutine[Any, Any, None]])


class Grain:
    """The base of grain classes: what a grain may ask of the runtime. All of it is there from `__init__` on.

    Lifecycle hooks are methods that a subclass may have; `silo.class_checks.Hooks` lists their forms. Public methods of
    a grain are async; what begins with an underscore is its own affair. Where a process is killed no hook runs:
    what must survive that is stored when it changes, never in `on_deactivate`.
    """

    __silo_base__: ClassVar[bool] = True
    _silo_context: GrainContext | None = None

    @property
    def id(self) -> GrainId:
        """The grain's identity: its kind and its key."""
        return _context(self).id

    @property
    def key(self) -> str:
        """The grain's key."""
        return _context(self).id.key

    @property
    def silo(self) -> str:
        """The name of the silo that hosts the grain now. For logs: the grain may be elsewhere a moment later."""
        return _context(self).silo_name

    def grain(self, kind: type[T], key: str) -> T:
        """A reference to the grain of that class and key. Activates nothing."""
        return _context(self).reference(kind, key)

    def migrate(
        self,
        *,
        to: str | SiloAddress | None = None,
        reason: str = MoveReason.SELF,
        force: bool = False,
        on_busy: OnBusy | None = None,
    ) -> MoveRequest:
        """Move this grain to another silo once the current turn has ended.

        Returns at once. The result may be awaited for the outcome, though not in a turn of this grain: it would wait
        for itself.

        Args:
            to: the name or address of a silo; without one, placement decides.
            force: move the grain even if its kind says `migratable=False`.
            on_busy: how to treat calls that run, for this move: see `@grain`; what the kind says if left out.

        Raises:
            ValueError: `on_busy` is none of the ways there are.
        """
        require_on_busy(on_busy)
        return _context(self).request_move(to, reason, force, on_busy)

    def create_task(self, coroutine: Coroutine[Any, Any, T], *, name: str | None = None) -> asyncio.Task[T]:
        """Run a coroutine beside the grain's turns, no longer than this activation lives.

        It runs between the turns' own steps, as any task does, and acts for the grain: what it calls comes from here.
        When the grain is deactivated or moved it is cancelled before `on_deactivate`, or waited for first where the
        kind says `drain_tasks=True`. A task made with `asyncio.create_task` is not known to the runtime: it runs on,
        and what it does through the runtime then raises GrainMoved.

        Raises:
            InvalidGrain: as many tasks run as a grain may have.
        """
        return _context(self).create_task(coroutine, name)

    def register_timer(
        self,
        callback: Callable[[], Coroutine[Any, Any, object]] | str,
        due_s: float,
        period_s: float | None = None,
        *,
        name: str | None = None,
        interleave: bool = False,
        keep_alive: bool = False,
    ) -> GrainTimer:
        """Call an async method of this grain in a while, and again and again, as turns of the grain.

        A tick waits for its turn like a call; the period counts from the end of one tick to the next. What it raises is
        logged, and the timer goes on. A move takes the timer along, with the time that is left; a crash does not, nor
        the end of the activation.

        Args:
            callback: a method of this grain, or its name. Any other async callable does as well, but stays behind when
                the grain moves.
            due_s: seconds until the first tick.
            period_s: seconds between ticks; None for a single one.
            name: tells the timer from others; the method's name if left out. A timer of that name which is there
                already is replaced; in hooks and constructor, one that arrived with a move goes on with the time it
                has left.
            interleave: whether a tick may start while other turns run.
            keep_alive: whether ticks count as use, so that the grain is not collected as idle.

        Raises:
            InvalidGrain: the callback is no async method, or the grain has too many timers.
            ValueError: a time is not finite, or not above 0 (0 will do for `due_s`).
        """
        return _context(self).register_timer(
            callback, due_s, period_s, name=name, interleave=interleave, keep_alive=keep_alive
        )

    def block_migration(self, why: str = "the grain asked not to be moved") -> AbstractContextManager[None]:
        """A scope in which this grain is not moved: `with self.block_migration("a transaction is open"):`.

        It may span turns, where an exit stack holds it. A move waits for its end, with calls going on, no longer than
        the `drain_timeout`, and then is aborted with `why`. A silo that must stop waits no longer than it can.
        """
        return _context(self).block_migration(why)

    def deactivate(self) -> None:
        """End this activation once the current turn has ended; the next call makes a new one, anywhere."""
        _context(self).request_deactivation()

    def add_participant(self, participant: Participant) -> None:
        """Let an object hand over soft state when this grain moves. To be done in `__init__`; raises InvalidGrain."""
        _context(self).add_participant(participant)

    def remove_participant(self, participant: Participant) -> None:
        """No longer let it take part."""
        _context(self).remove_participant(participant)


def current_grain() -> Grain:
    """The grain whose turn, hook or constructor runs here, with all that `Grain` gives.

    For grain classes without that base, and for libraries.

    Raises:
        OutsideGrain: no grain runs in this task.
    """
    context = current_activation()
    if context is None:
        raise OutsideGrain("current_grain() was called where no grain runs")
    return bound(Grain(), context)


def bound(instance: T, context: GrainContext) -> T:
    """The instance, given its way to the runtime, if it is of a class that asks for one."""
    if isinstance(instance, Grain):
        instance._silo_context = context  # pyright: ignore[reportPrivateUsage] - this module's own class
    return instance


@overload
def grain(cls: ClassT, /) -> ClassT: ...
@overload
def grain(**options: Unpack[GrainOptions]) -> Callable[[ClassT], ClassT]: ...
def grain(cls: type | None = None, /, **options: Any) -> Any:
    """Make a class a grain kind: `@grain`, or `@grain(option=…)`.

    Args:
        kind: the kind's name in identities; the class name if left out.
        placement: the name of a placement policy, a policy object, or a list of filters (`Require`, `Prefer`) and at
            most one of these: `[Require(zone="north"), "prefer-local"]`.
        reentrant: True to admit calls while others wait; `"call_chain"` only for calls that its own turn led to.
        migratable: False if automatic movers shall leave the kind alone; an explicit move then needs `force`.
        collect_after: seconds or timedelta without calls after which an activation ends; `math.inf` for never.
        version: the kind's version, from 1 on.
        on_busy: when a move finds running calls: `"wait"` for them; let the grain `"stay"` if any is left after
            `on_migrating`; or `"interrupt"` (cancel) them. An order to move may say otherwise.
        queue_calls_max: calls that may wait at one grain; more are refused with `Overloaded`.
        queue_bytes_max: bytes of the calls that may wait at one grain, likewise.
        drain_timeout: seconds or timedelta that a move waits for running calls.
        drain_tasks: True if a move, or a deactivation, waits for the tasks that the grain has started with
            `self.create_task`, as it does for calls; otherwise they are cancelled.
        on_participant_error: `"abort"` a move if a part of the soft state cannot be handed over, or `"skip"` that part.

    Raises:
        InvalidGrain: the class or an option is not as it must be.
    """

    def declare(cls: type) -> type:
        if not isinstance(cls, type):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
            raise InvalidGrain(f"@grain goes on a class, not on {cls!r}; its options are given by name")
        setattr(cls, KIND, make_kind(cls, options))
        return cls

    return declare if cls is None else declare(cls)


def read_only(method: MethodT) -> MethodT:
    """This method changes nothing: calls of such methods may run at the same time."""
    return _marked(method, "read_only", read_only=True)


def always_interleave(method: MethodT) -> MethodT:
    """This method may start at any time, whatever else runs in the grain."""
    return _marked(method, "always_interleave", always_interleave=True)


def one_way(method: SilentMethodT) -> SilentMethodT:
    """Callers of this method wait until it is sent, not until it has run, and never learn how it ended."""
    return _marked(method, "one_way", one_way=True)


def timeout(seconds: float | None) -> Callable[[MethodT], MethodT]:
    """The deadline of calls of this method, in seconds; None for none: the call lives as long as the callee's silo.

    Raises:
        InvalidGrain: the seconds are not a finite number above 0.
    """
    if seconds is not None:
        try:
            require_seconds(seconds, "@timeout")
        except (TypeError, ValueError) as error:
            raise InvalidGrain(f"@timeout({seconds!r}): {error}") from None
    return lambda method: _marked(method, "timeout", timeout_s=seconds)


def _marked(method: MethodT, decorator: str, **marks: Any) -> MethodT:
    require_coroutine_function(method, f"what @{decorator} is written on, {getattr(method, '__qualname__', method)!s},")
    setattr(method, MARKS, replace(getattr(method, MARKS, MethodMarks()), **marks))
    return method


def _context(instance: Grain) -> GrainContext:
    context = instance._silo_context  # pyright: ignore[reportPrivateUsage] - this module's own class
    if context is None:
        raise OutsideGrain(
            f"this {type(instance).__name__} was made by hand; only a grain that a silo made can reach the runtime"
        )
    return context
