"""A membership whose lease runs on a thread of its own, so that a long computation does not cost the silo its life.

The thread owns its connections and sockets. It shares with the event loop nothing but two queues, one each way, and one
number: the deadline until which turns may start. It waits for what comes first: a word from the loop, an answer of the
table (which a thread of its own asks), what another silo's lease says, a hint, the end of a neighbour's process, or the
time of the next renewal.

Limit: code that holds the interpreter's lock for longer than the lease stops renewals too.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import selectors
import threading
from collections import deque
from collections.abc import Callable, Generator
from types import FrameType
from typing import Any

import msgspec

from silo.directory.addresses import SiloAddress
from silo.directory.errors import Closed
from silo.directory.lease import LeaseCore
from silo.directory.lease_asker import TableAsker
from silo.directory.lease_events import (
    AdoptView,
    AdvanceAsked,
    AskTable,
    Confirmed,
    CordonAsked,
    Event,
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
    UnwatchProcess,
    WatchProcess,
)
from silo.directory.lease_messages import LeaseMessage
from silo.directory.lease_settings import LeaseSettings
from silo.directory.lease_wire import LeaseWire
from silo.directory.logs import get_logger
from silo.directory.loop_watch import LoopWatch, end_process
from silo.directory.membership import (
    MembershipTable,
    ProcessIdentity,
    SiloInfo,
    SiloStatus,
    TurnRight,
    View,
)
from silo.directory.membership_board import MembershipBoard
from silo.directory.process_identity import ProcessWatch
from silo.directory.redis_hints import Hints
from silo.directory.turn_right import LeasedRight, boot_clock

_log = get_logger("silo.membership")


class ThreadedMembership:
    """The `Membership` of a silo process. Its thread starts with the first request and ends with `close`.

    Args:
        table: asked by a thread of the lease's alone, and closed by it.
        wire: by which it talks to the leases of other silos; without it they neither acknowledge nor assent.
        hints: what tells of changes at once; without it they are seen with the next renewal.
        loop_stuck_after_s: how long the event loop may be silent before the silo gives up.
        on_loop_stuck: what giving up means, called on the thread with the seconds of silence, after the last renewal.
        clock: must go on while the process is stopped and the machine suspended.
        name_work: says what a frame works at, where the log tells of a loop that is slow.
    """

    def __init__(
        self,
        table: MembershipTable,
        *,
        settings: LeaseSettings | None = None,
        wire: LeaseWire | None = None,
        hints: Hints | None = None,
        loop_stuck_after_s: float = 120.0,
        on_loop_stuck: Callable[[float], None] = end_process,
        clock: Callable[[], float] = boot_clock,
        name_work: Callable[[FrameType | None], str] = lambda _: "",
    ) -> None:
        settings = settings or LeaseSettings()
        self._right = LeasedRight(clock)
        self._board = MembershipBoard(self._right)
        self._watch = LoopWatch(loop_stuck_after_s, on_loop_stuck, clock, name_work)
        self._core = LeaseCore(settings)
        self._table = table
        self._wire = wire
        self._hints = hints
        self._clock = clock
        self._thread: _LeaseThread | None = None
        self._ended: asyncio.Future[None] | None = None
        self._closed = False

    @property
    def view(self) -> View:
        return self._board.view

    @property
    def right(self) -> TurnRight:
        return self._right

    @property
    def loop_lag_s(self) -> float:
        """How late the event loop is, by its latest timer or by the one that is overdue."""
        return self._watch.lag_s

    def silence_s(self, silo: SiloAddress) -> float:
        """For how long the silo had not renewed when the table last answered; see `LeaseSettings.eligible_within_s`."""
        return self._core.silence_s(silo)

    def subscribe(self, on_view: Callable[[View], None]) -> Callable[[], None]:
        return self._board.subscribe(on_view)

    async def join(self, silo: SiloAddress, info: SiloInfo, *, bootstrap: bool = False) -> View:
        self._board.me = silo
        if self._wire is not None:
            info = msgspec.structs.replace(info, lease_endpoint=self._wire.endpoint)
        return await self._ask(lambda token: JoinAsked(token, silo, info, bootstrap))

    async def advance(self, status: SiloStatus) -> View:
        return await self._ask(lambda token: AdvanceAsked(token, status))

    async def cordon(self, cordoned: bool) -> View:
        return await self._ask(lambda token: CordonAsked(token, cordoned))

    async def refresh(self) -> View:
        return await self._ask(ReadAsked)

    def confirm(self, view: View) -> None:
        if self._thread is not None and not self._closed:
            self._thread.post(Confirmed(view.table.run))

    async def goodbye(self) -> None:
        await self._ask(GoodbyeAsked)

    async def declared_dead(self) -> None:
        await self._board.declared_dead()

    async def close(self) -> None:
        self._closed = True
        self._watch.stop()
        if self._thread is not None and self._ended is not None:
            self._thread.stop()
            await asyncio.shield(self._ended)
            self._thread.reap()
            self._thread = None
        elif self._wire is not None:
            self._wire.close()
        self._board.close(Closed("this membership was closed"))

    async def _ask(self, event: Callable[[int], Event]) -> View:
        if self._closed:
            raise Closed("this membership was closed")
        if self._ended is not None and self._ended.done():
            raise Closed("the lease of this silo has ended")
        if self._thread is None:
            loop = asyncio.get_running_loop()
            self._ended = loop.create_future()
            self._ended.add_done_callback(lambda _: self._board.close(Closed("the lease of this silo has ended")))
            self._thread = _LeaseThread(
                loop,
                self._board,
                self._core,
                self._table,
                self._wire,
                self._hints,
                self._watch,
                self._clock,
                self._ended,
            )
            self._watch.start()
            self._thread.start()
        token, concluded = self._board.await_token()
        self._thread.post(event(token))
        await concluded
        return self._board.view


class _LeaseThread(threading.Thread):
    """Runs a lease core: carries its orders out, and brings it what happens."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        board: MembershipBoard,
        core: LeaseCore,
        table: MembershipTable,
        wire: LeaseWire | None,
        hints: Hints | None,
        watch: LoopWatch,
        clock: Callable[[], float],
        ended: asyncio.Future[None],
    ) -> None:
        super().__init__(name="silo-lease", daemon=True)  # must not keep a process alive whose loop is gone
        self._loop = loop
        self._board = board
        self._core = core
        self._wire = wire
        self._wire_started = False
        self._hints = hints
        self._watch = watch
        self._clock = clock
        self._ended = ended
        self._inbox: deque[Event] = deque()
        self._asker = TableAsker(table, core.settings.ask_timeout_s, clock, self.post, self._fail)
        self._failure: BaseException | None = None  # of the asker
        self._endpoints: dict[SiloAddress, str] = {}
        self._orders: list[Order] = []  # for the loop
        self._stopping = False
        self._selector = selectors.DefaultSelector()
        self._wake_reader, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_reader, False)
        os.set_blocking(self._wake_writer, False)
        self._hints_fd: int | None = None
        self._watches: dict[SiloAddress, ProcessWatch] = {}
        self._step_s_max = core.settings.renew_every_s

    # ---- from other threads

    def post(self, event: Event) -> None:
        self._inbox.append(event)
        self._wake()

    def stop(self) -> None:
        self._stopping = True
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError, BrokenPipeError):  # full: it is awake already; broken: it has ended
            os.write(self._wake_writer, b"w")

    def _fail(self, error: BaseException) -> None:
        self._failure = error
        self._wake()

    def reap(self) -> None:
        """Let go of what only the loop's thread may; once the thread has ended."""
        self.join()
        os.close(self._wake_writer)

    # ---- the thread

    def run(self) -> None:
        try:
            self._selector.register(self._wake_reader, selectors.EVENT_READ, self._drain_wakes)
            self._asker.start()
            while not self._stopping:
                self._step()
                if not self._watch.look(2 * self._step_s_max):
                    raise RuntimeError("the event loop is stuck")
        except BaseException as error:  # nobody is above this frame; the loop is told, and treats it as fatal
            self._board.right.deadline = -math.inf  # before anybody hears of it
            _log.critical("membership.lease_failed", exc_info=True)
            self._tell(self._board.fail, error)
        finally:
            self._board.right.deadline = -math.inf
            self._let_go()
            self._tell(_conclude, self._ended)

    def _step(self) -> None:
        now = self._clock()
        timeout_s = min(max(self._core.wake_at(now) - now, 0.0), self._step_s_max)
        for key, _ in self._selector.select(timeout_s):
            key.data()
        if self._failure is not None:
            raise self._failure
        while self._inbox:
            self._on(self._inbox.popleft())
        now = self._clock()
        if now >= self._core.wake_at(now):
            self._on(Ticked())
        self._publish()
        self._tend_hints()

    def _on(self, event: Event) -> None:
        if self._wire is not None and isinstance(event, JoinAsked) and not self._wire_started:
            self._wire_started = True
            self._wire.start(event.silo, self._selector, lambda peer, message: self._on(PeerSaid(peer, message)))
        for order in self._core.on(event, self._clock()):
            match order:
                case AskTable(request):
                    self._asker.ask(request)
                case Tell(peer, message):
                    self._tell_peer(peer, message)
                case AdoptView(view):
                    self._learn_endpoints(view)
                    self._orders.append(order)
                case HoldRight(until):
                    self._board.right.deadline = until
                    self._orders.append(order)
                case ResignRight():
                    self._board.right.deadline = -math.inf  # before any request that this order stands in front of
                    self._orders.append(order)
                case WatchProcess(silo, process):
                    self._watch_process(silo, process)
                case UnwatchProcess(silo):
                    self._unwatch_process(silo)
                case _:
                    self._orders.append(order)

    def _tell_peer(self, peer: SiloAddress, message: LeaseMessage) -> None:
        endpoint = self._endpoints.get(peer)
        if self._wire is not None and endpoint:
            self._wire.send(peer, endpoint, message, self._clock())

    def _learn_endpoints(self, view: View) -> None:
        """Where the members listen; also those who died lately, whom a view that somebody still holds may name."""
        self._endpoints = {row.silo: row.info.lease_endpoint for row in view.table.rows}
        if self._wire is not None:
            self._wire.forget_all_but({row.silo for row in view.living()})

    def _publish(self) -> None:
        if self._orders:
            orders, self._orders = self._orders, []
            self._tell(self._board.post, orders)

    def _tell(self, what: Callable[[Any], None], value: object) -> None:
        try:
            self._loop.call_soon_threadsafe(what, value)
        except RuntimeError:  # the loop is closed: this silo is over, whether it said so or not
            self._stopping = True

    # ---- what it waits for

    def _drain_wakes(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._wake_reader, 4096):
                pass

    def _tend_hints(self) -> None:
        if self._hints is None or self._asker.is_failing:
            return
        with self._hints_apart(self._hints):
            self._hints.tend(self._clock())

    def _read_hints(self) -> None:
        if self._hints is not None:
            with self._hints_apart(self._hints):
                version = self._hints.read()
            if version:
                self._on(Hinted(version))

    @contextlib.contextmanager
    def _hints_apart(self, hints: Hints) -> Generator[None]:
        """Takes the hints' socket out of the selector while it may be closed, and replaced under the same number."""
        if self._hints_fd is not None:
            self._selector.unregister(self._hints_fd)
        yield
        self._hints_fd = hints.fileno()
        if self._hints_fd is not None:
            self._selector.register(self._hints_fd, selectors.EVENT_READ, self._read_hints)

    def _watch_process(self, silo: SiloAddress, process: ProcessIdentity) -> None:
        watch = ProcessWatch(process)
        fd = watch.fileno()
        if watch.has_ended:
            self._inbox.append(ProcessEnded(silo))
            self._wake()
        elif fd is not None:
            self._watches[silo] = watch
            self._selector.register(fd, selectors.EVENT_READ, lambda: self._process_ended(silo))

    def _process_ended(self, silo: SiloAddress) -> None:
        self._unwatch_process(silo)
        _log.warning("membership.process_ended", silo=str(silo))
        self._on(ProcessEnded(silo))

    def _unwatch_process(self, silo: SiloAddress) -> None:
        watch = self._watches.pop(silo, None)
        if watch is not None:
            fd = watch.fileno()
            if fd is not None:
                self._selector.unregister(fd)
            watch.close()

    def _let_go(self) -> None:
        self._asker.stop()
        if self._asker.ident is not None:
            self._asker.join()
        for silo in list(self._watches):
            self._unwatch_process(silo)
        if self._hints is not None:
            self._hints.close()
        if self._wire is not None:
            self._wire.close()
        self._selector.close()
        os.close(self._wake_reader)


def _conclude(ended: asyncio.Future[None]) -> None:
    if not ended.done():
        ended.set_result(None)
