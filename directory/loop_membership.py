"""A membership on the event loop itself: the same lease core, for simulations and for clusters within one process."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable

from silo.directory.addresses import SiloAddress
from silo.directory.errors import Closed, MembershipUnavailable, SiloError
from silo.directory.lease import LeaseCore
from silo.directory.lease_events import (
    AdvanceAsked,
    Answered,
    AskTable,
    Confirmed,
    CordonAsked,
    Event,
    Failed,
    GoodbyeAsked,
    Hinted,
    HoldRight,
    JoinAsked,
    Order,
    PeerSaid,
    ProcessEnded,
    ReadAsked,
    ResignRight,
    Tell,
    Ticked,
)
from silo.directory.lease_post import LeasePost
from silo.directory.lease_settings import LeaseSettings
from silo.directory.membership import MembershipTable, SiloInfo, SiloStatus, TableRequest, TurnRight, View
from silo.directory.membership_board import MembershipBoard
from silo.directory.turn_right import LeasedRight

AsyncHook = Callable[[TableRequest], Awaitable[None]]
Follow = Callable[[Callable[[int], None]], Callable[[], None]]
TICK_MIN_S = 0.001
"""Never sooner than this again, whatever rounding of a drifting clock says."""


async def _at_once(_: TableRequest) -> None:
    """No delay, no fault."""


class LoopMembership:
    """A `Membership` whose lease runs on the event loop that it serves.

    Not for production: a turn that blocks the loop would cost the silo its lease.

    Args:
        table: answers at once; time and faults are the hooks'.
        clock: this silo's own clock; None for the loop's. It may start anywhere and run a little fast or slow.
        post: carries what leases say to each other; without it this one talks to nobody.
        follow: where the table gives hints, what subscribes to them (`MemoryMembershipTable.follow`).
        before: awaited before a request is carried out; raises MembershipUnavailable to lose it.
        after: awaited afterwards; raises MembershipUnavailable to lose the answer.
    """

    def __init__(
        self,
        table: MembershipTable,
        *,
        settings: LeaseSettings | None = None,
        clock: Callable[[], float] | None = None,
        post: LeasePost | None = None,
        follow: Follow | None = None,
        before: AsyncHook = _at_once,
        after: AsyncHook = _at_once,
    ) -> None:
        self._table = table
        self._settings = settings or LeaseSettings()
        self._core = LeaseCore(self._settings)
        self._clock = clock or asyncio.get_running_loop().time
        self._post = post
        self._follow = follow
        self._before = before
        self._after = after
        self._board = MembershipBoard(LeasedRight(self._clock))
        self._asking: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._unfollow: Callable[[], None] | None = None
        self._unpost: Callable[[], None] | None = None
        self._closed = False

    @property
    def view(self) -> View:
        return self._board.view

    @property
    def right(self) -> TurnRight:
        return self._board.right

    def subscribe(self, on_view: Callable[[View], None]) -> Callable[[], None]:
        return self._board.subscribe(on_view)

    def silence_s(self, silo: SiloAddress) -> float:
        """For how long the silo had not renewed when the table last answered; see `LeaseSettings.eligible_within_s`."""
        return self._core.silence_s(silo)

    async def join(self, silo: SiloAddress, info: SiloInfo, *, bootstrap: bool = False) -> View:
        self._board.me = silo
        if self._follow is not None and self._unfollow is None:
            loop, context = asyncio.get_running_loop(), contextvars.copy_context()
            # a hint comes in the middle of some other silo's request, and is dealt with as this silo's own
            self._unfollow = self._follow(lambda version: _post_hint(loop, context, self._on, version))
        if self._post is not None and self._unpost is None:
            self._unpost = self._post.open(silo, lambda peer, message: self._on(PeerSaid(peer, message)))
        return await self._ask(lambda token: JoinAsked(token, silo, info, bootstrap))

    async def advance(self, status: SiloStatus) -> View:
        return await self._ask(lambda token: AdvanceAsked(token, status))

    async def cordon(self, cordoned: bool) -> View:
        return await self._ask(lambda token: CordonAsked(token, cordoned))

    async def refresh(self) -> View:
        return await self._ask(ReadAsked)

    def confirm(self, view: View) -> None:
        self._on(Confirmed(view.table.run))

    async def goodbye(self) -> None:
        await self._ask(GoodbyeAsked)

    async def declared_dead(self) -> None:
        await self._board.declared_dead()

    def process_ended(self, silo: SiloAddress) -> None:
        """Say, as an operating system would, that the process of this silo has ended."""
        self._on(ProcessEnded(silo))

    async def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for undo in (self._unfollow, self._unpost):
            if undo is not None:
                undo()
        self._unfollow = self._unpost = None  # a silo that is declared dead and killed is closed twice
        asking = list(self._asking)
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        self._board.close(Closed("this membership was closed"))

    async def _ask(self, event: Callable[[int], Event]) -> View:
        if self._closed:
            raise Closed("this membership was closed")
        token, concluded = self._board.await_token()
        self._on(event(token))
        await concluded
        return self._board.view

    def _on(self, event: Event) -> None:
        if self._closed:
            return
        now = self._clock()
        orders = self._core.on(event, now)
        self._carry_out(orders)
        self._board.post(orders)
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        wake_at = self._core.wake_at(now)
        self._timer = (
            loop.call_later(max(wake_at - now, TICK_MIN_S), self._on, Ticked()) if wake_at < float("inf") else None
        )

    def _carry_out(self, orders: list[Order]) -> None:
        for order in orders:
            match order:
                case AskTable(request):
                    task = asyncio.get_running_loop().create_task(self._ask_table(request))
                    self._asking.add(task)
                    task.add_done_callback(self._asked)
                case Tell(peer, message):
                    if self._post is not None and self._board.me is not None:
                        self._post.send(self._board.me, peer, message)
                case HoldRight(until):
                    self._board.right.deadline = until
                case ResignRight():
                    self._board.right.deadline = float("-inf")
                case _:
                    pass  # the board's; and processes are watched by whoever calls process_ended

    def _asked(self, task: asyncio.Task[None]) -> None:
        self._asking.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._board.fail(error)

    async def _ask_table(self, request: TableRequest) -> None:
        sent_at = self._clock()
        try:
            async with asyncio.timeout(self._settings.ask_timeout_s):
                await self._before(request)
                answer = self._table.ask(request, self._settings.ask_timeout_s)
                await self._after(request)
        except TimeoutError:
            self._on(Failed(request, sent_at, MembershipUnavailable("the membership table did not answer in time")))
        except SiloError as error:
            self._on(Failed(request, sent_at, error))
        else:
            self._on(Answered(request, sent_at, answer))


def _post_hint(
    loop: asyncio.AbstractEventLoop, context: contextvars.Context, on: Callable[[Event], None], version: int
) -> None:
    loop.call_soon(on, Hinted(version), context=context)
