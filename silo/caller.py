"""Where the calls of references go: into the call book of this process, as calls of whoever makes them."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

from silo.activation.turn_context import current_turn
from silo.class_checks import DEFAULT_TIMEOUT, MethodSpec
from silo.directory.addresses import GrainId, SiloAddress
from silo.directory.errors import CallExpired, Closed
from silo.directory.membership import TurnRight
from silo.home import Home
from silo.kinds import GrainKind, OnBusy, kind_of
from silo.messaging.permissions import CODEC_PLAIN
from silo.migration.outcome import MigrationOutcome
from silo.reference import CallAtOnce, CallOptions, make_reference
from silo.routing.book import CallBook
from silo.routing.call import Call
from silo.wire.frames import Flag

if TYPE_CHECKING:
    from silo.telemetry import Telemetry

G = TypeVar("G")


Move = Callable[[GrainId, str | SiloAddress | None, str, bool, OnBusy | None], Awaitable[MigrationOutcome]]


CallIds = Callable[[], int]
"""Numbers for calls: ever larger in this process, and never the same in two."""


def call_ids(rng: random.Random) -> CallIds:
    return itertools.count(rng.getrandbits(61)).__next__


class Caller:
    """Makes calls. Inside a turn they belong to its grain, its chain and its deadline; elsewhere to this process.

    Args:
        name: who calls where no grain does: the client, or the silo itself.
        right: of a silo, which lets nothing take effect while it is fenced; None in a client.
        home: where a client may be used; None in a silo.
    """

    def __init__(
        self,
        name: str,
        book: CallBook,
        ids: CallIds,
        *,
        call_timeout_s: float,
        right: TurnRight | None,
        telemetry: Telemetry | None,
        move: Move,
        home: Home | None = None,
    ) -> None:
        self.name = name
        self.move = move
        """Moves a grain: (grain, target, reason, force, on_busy)."""
        self.at_once: CallAtOnce | None = None
        """What runs calls at once that can be; None while there is nothing that may."""
        self._at_once: CallAtOnce | None = None
        self._closed = ""
        self._book = book
        self._ids = ids
        self._call_timeout_s = call_timeout_s
        self._right = right
        self._telemetry = telemetry
        self._home = home
        self._held_back = 0
        """How many calls wait until what is done here may take effect; those made later stand behind them."""
        self._turnstile = asyncio.Lock()
        """Lets those through one by one, in the order in which they came."""

    @property
    def closed(self) -> str:
        """Why no calls can be made any more; empty while they can."""
        return self._closed

    @closed.setter
    def closed(self, why: str) -> None:
        self._closed = why
        self._bar()

    def run_at_once(self, at_once: CallAtOnce) -> None:
        """In a silo: learn what runs the calls at once that can be."""
        self._at_once = at_once
        self._bar()

    def _bar(self) -> None:
        """Let calls be run at once, or not: those that cannot be made, or stand behind others, are not."""
        self.at_once = None if self._closed or self._held_back else self._at_once

    def reference(self, kind: type[G], key: str) -> G:
        """A reference whose calls are made here; raises InvalidIdentity or InvalidGrain."""
        return cast("G", make_reference(kind_of(kind), key, self))

    def call(
        self,
        grain: GrainId,
        kind: GrainKind,
        method: MethodSpec,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: CallOptions,
    ) -> Awaitable[Any]:
        del kind
        timeout_s = options.timeout_s if options.timeout_s is not DEFAULT_TIMEOUT else method.timeout_s
        call = self._make(
            grain,
            method.name,
            self._call_timeout_s if timeout_s is DEFAULT_TIMEOUT else timeout_s,
            Flag.ONE_WAY if method.one_way else 0,
            args,
            kwargs,
            method,
        )
        if options.hint is not None:
            call.hint = str(options.hint)
        if self._telemetry is not None:
            answer = self._telemetry.called(call, self._begin)
        elif self.closed or method.one_way or self._held_back or not (self._right is None or self._right.is_held()):
            answer = self._send(call)
        elif not call.flags & Flag.INNER or not _in_hook():
            return self._book.begin(call)
        else:
            answer = self._book.wait_for(call)
        return _while_waiting(answer) if call.flags & Flag.INNER else answer

    def _make(
        self,
        grain: GrainId,
        method: str,
        timeout_s: float | None,
        flags: int,
        args: tuple[Any, ...] | None = None,
        kwargs: dict[str, Any] | None = None,
        spec: MethodSpec | None = None,
    ) -> Call:
        """A call of whoever runs here, not yet sent.

        Raises:
            GrainMoved: what runs here was left behind by an activation that is gone.
            CallExpired: the turn that makes it had to be over by now.
            ClientMisused: the client lives elsewhere.
        """
        if self._home is not None:
            self._home.check()
        now = self._book.time()
        deadline = None if timeout_s is None else now + timeout_s
        turn = current_turn.get()
        caller = self.name
        path: tuple[tuple[str, int], ...] = ()
        if turn is not None:
            turn.activation.check_alive()
            flags |= Flag.INNER
            caller = str(turn.activation.id)
            if not flags & Flag.ONE_WAY:  # nobody waits for those, so they close no circle
                path = turn.path
            if turn.deadline is not None and (deadline is None or turn.deadline < deadline):
                deadline = turn.deadline
                if deadline <= now:
                    raise CallExpired(f"{grain}.{method}: the deadline had passed before the call was made")
        answered = self._book.answered
        return Call(  # by position: by name takes twice the time
            self._ids(), grain, method, caller, deadline, answered, args, kwargs, None, 0, 0, spec, path, flags
        )

    def _begin(self, call: Call) -> Awaitable[Any]:
        """As `_send`; a call that nothing keeps here is on its way when this returns."""
        is_kept = self.closed or self._held_back or not (self._right is None or self._right.is_held())
        if is_kept or call.is_one_way or (call.flags & Flag.INNER and _in_hook()):
            return self._send(call)
        return self._book.begin(call)

    async def _send(self, call: Call) -> Any:
        if self.closed:
            raise Closed(self.closed)
        if self._right is not None and (self._held_back or not self._right.is_held()):
            await self._until_allowed(self._right, call)
        if call.is_one_way:
            self._book.place(call)
            return None
        return await self._book.wait_for(call)

    async def _until_allowed(self, right: TurnRight, call: Call) -> None:
        """Wait, no longer than the call may take, until what is done here may take effect; then go on without a pause.

        The lock is fair, so calls go on in the order in which they came here.
        """
        self._held_back += 1
        self._bar()
        try:
            async with asyncio.timeout_at(call.deadline), self._turnstile:
                await right.held()
        except TimeoutError:
            why = "this silo's lease has not been renewed in time, so it could not make the call"
            raise CallExpired(f"{call.grain}.{call.method}: {why}") from None
        finally:
            self._held_back -= 1
            self._bar()

    async def control(self, grain: GrainId, verb: str, payload: bytes, timeout_s: float) -> Any:
        """A control call to the runtime at the grain's silo; activates nothing."""
        call = self._make(grain, verb, timeout_s, Flag.CONTROL)
        call.encoded = payload
        call.codec = CODEC_PLAIN
        answer = self._send(call) if self._telemetry is None else self._telemetry.called(call, self._send)
        return await (_while_waiting(answer) if call.flags & Flag.INNER else answer)


def _in_hook() -> bool:
    """Whether what runs here is a grain's hook, and no turn."""
    turn = current_turn.get()
    return turn is not None and turn.call is None


def _while_waiting(answer: Awaitable[Any]) -> Awaitable[Any]:
    """The answer to a call that a grain makes: in `on_activate`, others may be activated while it waits."""
    turn = current_turn.get()
    return turn.activation.waits_for(answer) if turn is not None and turn.call is None else answer
