"""Where grains are that this silo knows no entry of: asked of the directory, else decided by placement.

Calls for a grain that is being looked for wait in one list, in order, and leave together. When it is looked for again,
where that failed, `silo.routing.waking` decides.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, assert_never

import msgspec

from silo.activation.catalog import Catalog
from silo.chronicle import Chronicle
from silo.directory.addresses import Entry, GrainId, SiloAddress
from silo.directory.errors import (
    DirectoryUnavailable,
    DirectoryUnsettled,
    GrainUnplaceable,
    MembershipUnavailable,
    NotExecuted,
    Overloaded,
    SiloError,
)
from silo.directory.lives import Lives
from silo.directory.membership import Membership, SiloStatus, View
from silo.directory.registrar import Registrar
from silo.eager import EagerTasks
from silo.grain_records import Fate, SearchReport
from silo.logs import get_logger
from silo.placement.decision import Placement
from silo.routing.call import Answer, Call, ValueCodec
from silo.routing.limits import RoutingLimits
from silo.routing.waking import (
    ASLEEP,
    Called,
    Chance,
    ChanceCame,
    Deserted,
    Failed,
    Ignore,
    LetGo,
    Settled,
    Signal,
    StartedOver,
    State,
    TimeCame,
    Try,
    Trying,
    Waiting,
    WakeAt,
    step,
)
from silo.tasks import is_being_cancelled
from silo.wire.frames import Outcome

log = get_logger(__name__)

_SETTLED: Final = Settled()


class Destination(msgspec.Struct, frozen=True):
    """Where calls for one grain go now.

    Args:
        entry: the entry to go by, where there is one.
        place_on: else the silo to activate the grain on, in place of `expected`.
    """

    entry: Entry | None = None
    place_on: SiloAddress | None = None
    expected: Entry | None = None


class Sought:
    """One grain that is being looked for, and the calls that wait until it is found or placed."""

    __slots__ = (
        "bytes",
        "calls",
        "destination",
        "failure",
        "gives_back",
        "grain",
        "loss_noted",
        "lost",
        "state",
        "timer",
    )

    def __init__(self, grain: GrainId) -> None:
        self.grain = grain
        self.calls: list[Call] = []
        self.bytes = 0
        self.state: State = ASLEEP
        self.timer: asyncio.TimerHandle | None = None
        self.destination: Destination | None = None
        self.failure: NotExecuted | None = None
        """What became of it: where its calls go; without that, how they fail. Neither where nobody waited any more."""
        self.lost: Entry | None = None
        """The entry that was found, where it names a silo that is dead."""
        self.loss_noted = False
        self.gives_back = False
        """Whether calls of other silos go back to those."""

    def add(self, call: Call) -> None:
        self.calls.append(call)
        self.bytes += call.size

    def drop_overdue(self, now: float) -> None:
        """Those whose deadline has passed take nobody's place. Calls of other silos have no timer here."""
        for call in self.calls:
            if call.origin is not None and not call.answered and call.deadline is not None and now >= call.deadline:
                call.on_answer(call, Answer.failed(call.overdue()))
        self.calls = [call for call in self.calls if not call.answered]
        self.bytes = sum(call.size for call in self.calls)

    def still_wanted(self, now: float) -> list[Call]:
        """Those still waited for, ordinary calls first: they may activate the grain, control calls may not."""
        wanted = [call for call in self.calls if not call.answered and (call.deadline is None or now < call.deadline)]
        if len(wanted) > 1:
            wanted.sort(key=lambda call: call.is_control)
        return wanted


class Resolver:
    """Finds out where grains are or shall be, one question for each, and holds the calls that wait to know.

    Args:
        chronicle: is told of grains that could not be found or placed, and of what became of them.
        is_going: whether a silo has said that it will leave.
        lives: whether the directory is whole.
        seek: asks the members who serves a grain.
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
        chronicle: Chronicle,
        limits: RoutingLimits,
        rng: random.Random,
        is_going: Callable[[SiloAddress], bool],
        lives: Lives,
        seek: Callable[[GrainId], Awaitable[Entry | None]],
        learn: Callable[[Entry], object],
        depart: Callable[[Call, Destination], None],
    ) -> None:
        self._me = me
        self._codec = codec
        self._catalog = catalog
        self._registrar = registrar
        self._membership = membership
        self._placement = placement
        self._chronicle = chronicle
        self._limits = limits
        self._rng = rng
        self._is_going = is_going
        self._lives = lives
        self._seek = seek
        self._learn = learn
        self._depart = depart
        self._sought: dict[GrainId, Sought] = {}
        self.sought = self._sought.keys()
        """The grains of which calls wait here."""
        self.is_resolving = self._sought.__contains__
        """Whether calls for this grain wait here until it is found or placed."""
        self._loop = asyncio.get_running_loop()
        self._tries = EagerTasks("resolver: look for a grain")
        self._context = contextvars.copy_context()
        """Tries run in copies of it: they are nobody's own."""
        self._closed = False

    async def close(self) -> None:
        self._closed = True
        for sought in self._sought.values():
            self._disarm(sought)
        await self._tries.close()

    def on_chance(self, why: Chance) -> None:
        """What could not be placed may be placed now."""
        for sought in list(self._sought.values()):
            now = self._loop.time()
            if sought.still_wanted(now):
                self._tell(sought, ChanceCame(why, now))
            else:
                self._tell(sought, Deserted())

    def start_over(self, grain: GrainId) -> None:
        """Forget the tries that have failed, and try at once on behalf of those that wait."""
        sought = self._sought.get(grain)
        if sought is not None:
            now = self._loop.time()
            self._tell(sought, StartedOver(now) if sought.still_wanted(now) else Deserted())

    def search(self, grain: GrainId) -> SearchReport | None:
        """How the search for a grain stands; None where nobody waits for it, or only since a moment ago."""
        sought = self._sought.get(grain)
        retry_in_s: float | None = None
        match sought.state if sought is not None else ASLEEP:
            case Waiting(failures=failures) as waiting:
                retry_in_s = max(0.0, waiting.wakes_at - self._loop.time())
            case Trying(failures=failures):
                pass
            case _:
                return None
        assert sought is not None
        return SearchReport(len(sought.still_wanted(self._loop.time())), failures, retry_in_s)

    def wait(self, call: Call) -> None:
        """Have the call wait until its grain is found or placed."""
        sought = self._sought.get(call.grain)
        if sought is None:
            sought = self._sought[call.grain] = Sought(call.grain)
        if call.is_from_here and not call.is_control:
            try:
                call.payload(self._codec)
            except SiloError as error:
                call.on_answer(call, Answer.failed(error))
                self._tell(sought, Called(self._loop.time()))  # it may be the first, and others may join
                return
        refusal = self._refusal(call, sought)
        if refusal is None:
            sought.add(call)
            self._tell(sought, Called(self._loop.time()))
        else:
            call.on_answer(call, Answer.failed(refusal))

    def _refusal(self, call: Call, sought: Sought) -> Overloaded | None:
        """Why there is no room for the call; None where there is, as always for one that was admitted elsewhere."""
        if self._lacks_room(call, sought):
            sought.drop_overdue(self._loop.time())
        limit = self._lacks_room(call, sought)
        if not limit or call.hops > 0 or call.tries > 0:
            return None
        return Overloaded(f"{len(sought.calls)} calls wait until {call.grain} is found or placed", limit)

    def _lacks_room(self, call: Call, sought: Sought) -> str:
        """The bound that leaves no room for the call, by its name; empty where there is room."""
        if len(sought.calls) >= self._limits.resolving_calls_max:
            return "queue_calls_max"
        if sought.calls and sought.bytes + call.size > self._limits.resolving_bytes_max:
            return "queue_bytes_max"
        return ""

    # ----------------------------------------------------------------------------------------------- signals and orders

    def _tell(self, sought: Sought, signal: Signal) -> None:
        """Carry out what a signal leads to."""
        before = sought.state
        sought.state, orders = step(before, signal, self._limits)
        for order in orders:
            match order:
                case Try():
                    self._disarm(sought)
                    self._begin_try(sought)
                case WakeAt(at):
                    self._disarm(sought)
                    sought.timer = self._loop.call_at(at, self._time_came, sought)
                case LetGo():
                    self._disarm(sought)
                    self._let_go(sought)
                case Ignore(why):
                    log.info(
                        "resolver.signal_ignored",
                        grain=str(sought.grain),
                        state=type(before).__name__,
                        signal=type(signal).__name__,
                        why=why,
                    )
                case _:
                    assert_never(order)

    @staticmethod
    def _disarm(sought: Sought) -> None:
        if sought.timer is not None:
            sought.timer.cancel()
            sought.timer = None

    def _time_came(self, sought: Sought) -> None:
        sought.timer = None
        now = self._loop.time()
        self._tell(sought, TimeCame(now) if sought.still_wanted(now) else Deserted())

    def _begin_try(self, sought: Sought) -> None:
        """Ask the directory first. What follows most often waits for nothing more, and then takes no task."""
        try:
            self._registrar.look_up(sought.grain, partial(self._on_row, sought))
        except NotExecuted as error:  # too much is being asked already, or nothing any more
            self._on_row(sought, error)

    def _on_row(self, sought: Sought, row: Entry | Exception | None) -> None:
        """The directory has said what it knows. What follows most often waits for nothing, and then takes no task."""
        if self._closed:
            return
        wanted = sought.still_wanted(self._loop.time())
        if wanted:
            if self._takes_asking(sought.grain, row):
                self._tries.start(self._try(sought, row), self._context.copy())
                return
            try:
                if isinstance(row, Exception):
                    raise row
                sought.destination = self._found_or_placed(sought, wanted[0], row, self._membership.view)
            except (Exception, asyncio.CancelledError) as error:
                if self._fails(sought, error):
                    return
        self._end(sought)

    async def _try(self, sought: Sought, row: Entry | Exception | None) -> None:
        """A try that the directory's word is not enough for, for the sake of those that still wait."""
        wanted = sought.still_wanted(self._loop.time())
        try:
            if wanted:
                sought.destination = await self._find(sought, wanted[0], row)
        except (Exception, asyncio.CancelledError) as error:
            if not isinstance(error, SiloError) and is_being_cancelled():
                raise  # this silo ends
            if self._fails(sought, error):
                return
        self._end(sought)

    def _end(self, sought: Sought) -> None:
        if sought.grain in self._chronicle:
            self._note_end(sought)
        self._tell(sought, _SETTLED)

    def _fails(self, sought: Sought, error: BaseException) -> bool:
        """A try has failed: whether its calls wait for another one. If not, they are told why."""
        if isinstance(error, (DirectoryUnavailable, MembershipUnavailable, GrainUnplaceable)):
            if not self._is_leaving():
                self._failed(sought, error)
                return True
            # what cannot be placed now must not wait here: others may place it later
            sought.gives_back = True
            sought.failure = error if isinstance(error, NotExecuted) else NotExecuted(str(error))
        elif isinstance(error, NotExecuted):
            sought.failure = error
        else:
            log.error("router.resolve_failed", grain=str(sought.grain), exc_info=error)
            sought.failure = NotExecuted(f"{sought.grain} could not be located: {type(error).__name__}: {error}")
        return False

    def _failed(self, sought: Sought, obstacle: SiloError) -> None:
        for call in sought.calls:
            call.obstacle = obstacle
        now = self._loop.time()
        self._note_failure(sought, obstacle, now)
        self._tell(sought, Failed(now, self._rng.random()))
        if isinstance(obstacle, GrainUnplaceable) and sought.timer is not None:
            obstacle.retry_after_s = sought.timer.when() - now

    def _note_failure(self, sought: Sought, obstacle: SiloError, now: float) -> None:
        grain, lost = sought.grain, sought.lost
        if lost is not None and not sought.loss_noted:
            sought.loss_noted = True
            if grain not in self._chronicle:
                self._chronicle.note(grain, Fate.SERVED, f"by {lost.silo} under epoch {lost.epoch}", None)
            why = f"{lost.silo}, which served it under epoch {lost.epoch}, is dead"
            self._chronicle.note(grain, Fate.LOST, why, now)
        fate = Fate.NOT_PLACED if isinstance(obstacle, GrainUnplaceable) else Fate.NOT_FOUND
        self._chronicle.note(grain, fate, str(obstacle), now)

    def _note_end(self, sought: Sought) -> None:
        """Of a search that had failed before: what is found at once is nothing to remember."""
        destination = sought.destination
        silo = None
        if destination is not None:
            silo = destination.entry.silo if destination.entry is not None else destination.place_on
        if silo is not None:
            self._chronicle.go_on(sought.grain, Fate.FOUND, f"on {silo}", self._loop.time())

    def _let_go(self, sought: Sought) -> None:
        """Send the calls to where their grain is, in order; or tell them why not."""
        del self._sought[sought.grain]
        if sought.destination is None:
            why = str(sought.failure or "nobody waited any more")
            self._chronicle.go_on(sought.grain, Fate.GIVEN_UP, why, self._loop.time())
        if len(sought.calls) > 1:  # one that had been held back may have joined after one made later
            sought.calls.sort(key=lambda call: call.id)
        for call in sought.calls:
            if call.answered or call.cancelled:
                continue
            if sought.gives_back and not call.is_from_here:
                call.on_answer(call, Answer(Outcome.MOVED))
            elif sought.destination is None:
                call.on_answer(call, Answer.failed(sought.failure or call.overdue()))
            else:
                self._depart(call, sought.destination)

    def _is_leaving(self) -> bool:
        row = self._membership.view.row(self._me)
        return row is not None and row.status is SiloStatus.LEAVING

    def _takes_asking(self, grain: GrainId, row: Entry | Exception | None) -> bool:
        """Whether what the directory has said is to be understood only once others have been asked."""
        if isinstance(row, Exception):
            return isinstance(row, DirectoryUnavailable)
        return not self._lives.is_settled(grain) or (row is not None and self._is_unknown(row.silo))

    def _is_unknown(self, silo: SiloAddress) -> bool:
        """Whether the view has nothing of this silo: it has joined just now, or is dead and forgotten."""
        return silo != self._me and self._membership.view.row(silo) is None

    async def _find(self, sought: Sought, call: Call, row: Entry | Exception | None) -> Destination:
        """Go by what the directory has said and others say, and place the grain where it has no living silo.

        Raises:
            NotExecuted: nobody hosts such a grain.
            DirectoryUnavailable, MembershipUnavailable, GrainUnplaceable: not now; try again.
        """
        grain = sought.grain
        if not isinstance(row, Exception):
            entry = row
        elif isinstance(row, DirectoryUnavailable) and (served := await self._seek(grain)) is not None:
            entry = served
        else:
            raise row
        view = await self._view_with(entry)
        if self._lives.is_settled(grain) or self._catalog.get(grain) is not None:
            return self._found_or_placed(sought, call, entry, view)
        found = self._found(grain, entry, view) if entry is not None else None
        if found is None:
            served = await self._seek(grain)  # a row that is missing, or is of before, says nothing now
            found = self._found(grain, served, await self._view_with(served)) if served is not None else None
        if found is None:
            raise DirectoryUnsettled(f"nobody has said that {grain} is served there: {self._lives.why_unsettled}")
        return found

    async def _view_with(self, entry: Entry | None) -> View:
        """A view that is not older than the entry: a silo that it does not know is dead and forgotten."""
        if entry is None or not self._is_unknown(entry.silo):
            return self._membership.view
        return await self._membership.refresh()

    def _found_or_placed(self, sought: Sought, call: Call, entry: Entry | None, view: View) -> Destination:
        """Where the grain is by this entry, which is the directory's; where it is nowhere, the place that it gets."""
        grain = sought.grain
        if self._catalog.get(grain) is not None:
            return Destination(place_on=self._me)
        found = self._found(grain, entry, view) if entry is not None else None
        if found is not None:
            return found
        if entry is not None and entry.silo != self._me:
            sought.lost = entry
        return self._placed(grain, call, entry)

    def _found(self, grain: GrainId, entry: Entry, view: View) -> Destination | None:
        """Where the grain is by this entry; None if its silo is dead, or is this one and has nothing of it."""
        if self._catalog.is_given_back(entry):
            raise GrainUnplaceable(f"{grain} is on its way back to {self._me}, where its move began")
        if entry.silo == self._me or not view.is_alive(entry.silo):
            return None
        if self._is_going(entry.silo):
            raise GrainUnplaceable(f"{entry.silo}, which serves {grain}, is leaving")
        self._learn(entry)
        return Destination(entry)

    def _placed(self, grain: GrainId, call: Call, expected: Entry | None) -> Destination:
        if self._catalog.is_taking_back(grain):
            raise GrainUnplaceable(f"{grain} may come back to {self._me}, whence it had moved to a silo that died")
        if call.is_control:
            return Destination(expected=expected)  # nothing to control: it is not active
        view = self._membership.view
        hinted = view.named(call.hint) if call.hint else None
        silo = self._placement.place(grain, view, hint=hinted.silo if hinted is not None else None)
        return Destination(place_on=silo, expected=expected)
