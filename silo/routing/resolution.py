"""Where grains are that this silo knows no entry of: asked of the directory, else decided by placement.

Calls for a grain that is being looked for wait in one list, in order, and leave together.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import msgspec

from silo.activation.catalog import Catalog
from silo.directory.addresses import Entry, GrainId, SiloAddress
from silo.directory.errors import (
    DirectoryUnavailable,
    GrainUnplaceable,
    MembershipUnavailable,
    NotExecuted,
    Overloaded,
    SiloError,
)
from silo.directory.membership import Membership, SiloStatus
from silo.directory.registrar import Registrar
from silo.logs import get_logger
from silo.placement.decision import Placement
from silo.routing.call import Answer, Call, ValueCodec
from silo.routing.limits import RoutingLimits, retry_pause_s
from silo.tasks import Tasks
from silo.wire.frames import Outcome

log = get_logger(__name__)


class Destination(msgspec.Struct, frozen=True):
    """Where calls for one grain go now.

    Args:
        entry: the entry to go by, where there is one.
        place_on: else the silo to activate the grain on, in place of `expected`.
    """

    entry: Entry | None = None
    place_on: SiloAddress | None = None
    expected: Entry | None = None


class Waiting:
    """The calls that wait until one grain is found or placed."""

    __slots__ = ("bytes", "calls")

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.bytes = 0

    def add(self, call: Call) -> None:
        self.calls.append(call)
        self.bytes += call.size

    def drop_overdue(self) -> None:
        """Those whose deadline has passed take nobody's place. Calls of other silos have no timer here."""
        now = asyncio.get_running_loop().time()
        for call in self.calls:
            if call.origin is not None and not call.answered and call.deadline is not None and now >= call.deadline:
                call.on_answer(call, Answer.failed(call.overdue()))
        self.calls = [call for call in self.calls if not call.answered]
        self.bytes = sum(call.size for call in self.calls)

    def still_wanted(self) -> list[Call]:
        """Those still waited for, ordinary calls first: they may activate the grain, control calls may not."""
        now = asyncio.get_running_loop().time()
        wanted = [call for call in self.calls if not call.answered and (call.deadline is None or now < call.deadline)]
        wanted.sort(key=lambda call: call.is_control)
        return wanted


class Resolver:
    """Finds out where grains are or shall be, one question for each, and holds the calls that wait to know.

    Args:
        is_going: whether a silo has said that it will leave.
        depart: sends a call to where its grain was found to be.
    """

    def __init__(
        self,
        me: SiloAddress,
        *,
        codec: ValueCodec,
        catalog: Catalog,
        registrar: Registrar,
        membership: Membership,
        placement: Placement,
        limits: RoutingLimits,
        rng: random.Random,
        is_going: Callable[[SiloAddress], bool],
        learn: Callable[[Entry], object],
        depart: Callable[[Call, Destination], None],
    ) -> None:
        self._me = me
        self._codec = codec
        self._catalog = catalog
        self._registrar = registrar
        self._membership = membership
        self._placement = placement
        self._limits = limits
        self._rng = rng
        self._is_going = is_going
        self._learn = learn
        self._depart = depart
        self._waiting: dict[GrainId, Waiting] = {}
        self._view_changed = asyncio.Event()
        self._tasks = Tasks("resolver")

    async def close(self) -> None:
        await self._tasks.close()

    def is_resolving(self, grain: GrainId) -> bool:
        return grain in self._waiting

    def on_view(self) -> None:
        """The members have changed: what could not be placed may be placed now."""
        self._view_changed.set()

    def wait(self, call: Call) -> None:
        """Have the call wait until its grain is found or placed."""
        waiting = self._waiting.get(call.grain)
        if waiting is None:
            waiting = self._waiting[call.grain] = Waiting()
            self._tasks.spawn(self._resolve(call.grain, waiting), f"resolve {call.grain}")
        if call.is_from_here and not call.is_control:
            try:
                call.payload(self._codec)
            except SiloError as error:
                call.on_answer(call, Answer.failed(error))
                return
        refusal = self._refusal(call, waiting)
        if refusal is None:
            waiting.add(call)
        else:
            call.on_answer(call, Answer.failed(refusal))

    def _refusal(self, call: Call, waiting: Waiting) -> Overloaded | None:
        """Why there is no room for the call; None where there is, as always for one that was admitted elsewhere."""
        if self._lacks_room(call, waiting):
            waiting.drop_overdue()
        limit = self._lacks_room(call, waiting)
        if not limit or call.hops > 0:
            return None
        return Overloaded(f"{len(waiting.calls)} calls wait until {call.grain} is found or placed", limit)

    def _lacks_room(self, call: Call, waiting: Waiting) -> str:
        """The bound that leaves no room for the call, by its name; empty where there is room."""
        if len(waiting.calls) >= self._limits.resolving_calls_max:
            return "queue_calls_max"
        if waiting.calls and waiting.bytes + call.size > self._limits.resolving_bytes_max:
            return "queue_bytes_max"
        return ""

    async def _resolve(self, grain: GrainId, waiting: Waiting) -> None:
        """Find out where the grain is or shall be, while anybody waits to know; then send the calls there, in order."""
        attempt = 0
        failure: SiloError | None = None
        destination: Destination | None = None
        gives_back = False
        try:
            while destination is None and failure is None and (open_calls := waiting.still_wanted()):
                self._view_changed.clear()
                try:
                    destination = await self._find(grain, open_calls[0])
                except (DirectoryUnavailable, MembershipUnavailable, GrainUnplaceable) as obstacle:
                    if self._is_leaving():  # what cannot be placed now must not wait here: others may place it later
                        failure, gives_back = obstacle, True
                        break
                    for call in waiting.calls:
                        call.obstacle = obstacle
                    attempt += 1
                    await self._pause(retry_pause_s(attempt, self._limits, self._rng))
                except NotExecuted as error:
                    failure = error
        except Exception as error:
            log.exception("router.resolve_failed", grain=str(grain))
            failure = NotExecuted(f"{grain} could not be located: {type(error).__name__}: {error}")
        finally:
            del self._waiting[grain]
        waiting.calls.sort(key=lambda call: call.id)  # one that had been held back may have joined after one made later
        for call in waiting.calls:
            if call.answered or call.cancelled:
                continue
            if gives_back and not call.is_from_here:
                call.on_answer(call, Answer(Outcome.MOVED))
            elif failure is not None or destination is None:
                call.on_answer(call, Answer.failed(failure or NotExecuted("nobody waited any more")))
            else:
                self._depart(call, destination)

    def _is_leaving(self) -> bool:
        row = self._membership.view.row(self._me)
        return row is not None and row.status is SiloStatus.LEAVING

    async def _pause(self, pause_s: float) -> None:
        """Wait for the pause, or for a change of the view, whichever comes first."""
        try:
            async with asyncio.timeout(pause_s):
                await self._view_changed.wait()
        except TimeoutError:
            return

    async def _find(self, grain: GrainId, call: Call) -> Destination:
        """Ask the directory, and place the grain where it has no living silo.

        Raises:
            NotExecuted: nobody hosts such a grain.
            DirectoryUnavailable, MembershipUnavailable, GrainUnplaceable: not now; try again.
        """
        entry = await self._registrar.lookup(grain)
        if self._catalog.get(grain) is not None:
            return Destination(place_on=self._me)
        if entry is None:
            return self._placed(grain, call, None)
        if self._catalog.is_given_back(entry):
            raise GrainUnplaceable(f"{grain} is on its way back to {self._me}, where its move began")
        if entry.silo != self._me:
            view = self._membership.view
            if not view.is_alive(entry.silo):
                # read after the entry: a silo that this view does not know is dead and forgotten
                view = await self._membership.refresh()
            if view.is_alive(entry.silo):
                if self._is_going(entry.silo):
                    raise GrainUnplaceable(f"{entry.silo}, which serves {grain}, is leaving")
                self._learn(entry)
                return Destination(entry)
        return self._placed(grain, call, entry)

    def _placed(self, grain: GrainId, call: Call, expected: Entry | None) -> Destination:
        if self._catalog.is_taking_back(grain):
            raise GrainUnplaceable(f"{grain} may come back to {self._me}, whence it had moved to a silo that died")
        if call.is_control:
            return Destination(expected=expected)  # nothing to control: it is not active
        view = self._membership.view
        hinted = view.named(call.hint) if call.hint else None
        decision = self._placement.choose(grain, view, hint=hinted.silo if hinted is not None else None)
        return Destination(place_on=decision.silo, expected=expected)
