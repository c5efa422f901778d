"""The calls that were made here and are not answered yet: their deadlines, their cancellation, their end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

from silo.directory.addresses import SiloAddress
from silo.directory.errors import CallExpired, NotExecuted, OutcomeUnknown, Overloaded, SiloError, SiloUnavailable
from silo.eager import Ready
from silo.logs import get_logger
from silo.routing.call import Answer, Call, ValueCodec, error_of, resolve, size_of
from silo.routing.deadlines import Deadlines
from silo.routing.lanes import Lanes
from silo.wire.frames import Outcome, Reply, Request

if TYPE_CHECKING:
    from silo.messaging.link import Link

log = get_logger(__name__)

ANSWERED_AT_ONCE_MAX = 96
"""How many calls in a row may be answered at once, by grains in this process, before a caller lets others run: for
turns that do little, less than half a millisecond, in which one pass of the loop takes no more than a thirtieth."""
NOT_RUN = (Outcome.NOT_EXECUTED, Outcome.OUTCOME_UNKNOWN)
"""How a call ends whose grain cannot be trusted to have seen it."""


class CallBook:
    """Owns each call that this process waits for, from when it is made until its one answer.

    Args:
        calls_max: how many may be open at once; more are refused as Overloaded.
        bytes_max: how large they may be together, likewise.
        lane_calls_max: how many calls of one caller to one grain may be held back to keep their order.
        large_bytes: payloads from this size on are written in pieces, so that their lane waits for the last one.
        limit_names: what Overloaded calls the two bounds.
        answer_grace_s: how long past its deadline a call that is out waits for the peer's own verdict on it, which
            knows more.
        recalls_first: whether the call is called back for that, so that the peer says what became of it; else the peer
            keeps the time itself.
    """

    def __init__(
        self,
        codec: ValueCodec,
        *,
        calls_max: int,
        bytes_max: int,
        lane_calls_max: int,
        large_bytes: int,
        limit_names: tuple[str, str] = ("calls_max", "calls_bytes_max"),
        answer_grace_s: float = 0.0,
        recalls_first: bool = False,
    ) -> None:
        self.lanes: Lanes
        self.large_bytes = large_bytes
        self._codec = codec
        self._calls_max = calls_max
        self._bytes_max = bytes_max
        self._calls_limit, self._bytes_limit = limit_names
        self._lane_calls_max = lane_calls_max
        self._answer_grace_s = answer_grace_s
        self._recalls_first = recalls_first
        self._open: dict[int, Call] = {}
        self.open_calls: Mapping[int, Call] = self._open
        """The same, to be looked at: by number."""
        self.get = self._open.get
        """The open call of a number, or None."""
        self._open_bytes = 0
        self.answered_in_a_row = 0
        """How many calls have been answered without a pass of the loop since a caller last left one to others."""
        self._deadlines = Deadlines(self._open, self._overdue)
        self._empty: asyncio.Future[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.time: Callable[[], float] = self._first_time
        """Now, by the clock that deadlines go by."""
        self._route: Callable[[Call], None]
        self._recall: Callable[[Call], bool]

    def attach(self, route: Callable[[Call], None], recall: Callable[[Call], bool]) -> None:
        """Learn how calls are sent, and called back."""
        self._route = route
        self._recall = recall
        self.lanes = Lanes(route, self._lane_calls_max)

    def __len__(self) -> int:
        return len(self._open)

    def _find_loop(self) -> asyncio.AbstractEventLoop:
        """This process's loop, asked for once: asking takes a system call, and each call needs it several times."""
        self._loop = asyncio.get_running_loop()
        return self._loop

    def _first_time(self) -> float:
        self.time = self._find_loop().time
        return self.time()

    def sent_to(self, peer: str) -> list[Call]:
        return [call for call in self._open.values() if call.target == peer]

    def forwarded_by(self, silos: frozenset[SiloAddress]) -> list[Call]:
        """Those that these silos have sent on, to somebody who has not been heard of since."""
        return [call for call in self._open.values() if call.forwarder in silos]

    def place(self, call: Call) -> None:
        """Take a call in and send it on its way.

        Raises:
            Overloaded: too many are open, or too large ones.
        """
        if len(self._open) >= self._calls_max:
            raise Overloaded(f"{len(self._open)} calls are open, as many as may be", self._calls_limit)
        size = call.measure()
        if self._open and self._open_bytes + size > self._bytes_max:
            what = f"calls of {self._open_bytes} bytes are open; {size} more are too many"
            raise Overloaded(what, self._bytes_limit)
        self._enter(call)
        self._route(call)

    def _enter(self, call: Call) -> None:
        self._open[call.id] = call
        self._open_bytes += call.size
        if call.deadline is not None:
            self._deadlines.watch(call.id, call.deadline, self._loop or self._find_loop())

    def has_room_for(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether a call with these arguments would be taken in now."""
        if not self._open:
            return True
        return len(self._open) < self._calls_max and self._open_bytes + size_of(args, kwargs) <= self._bytes_max

    def may_go_on(self) -> bool:
        """Whether the caller of a call that was answered at once, and counted, may go on without letting others run.

        Others run not before a call but after one that was answered at once: calls leave in the order they are made in.
        """
        if self.answered_in_a_row < ANSWERED_AT_ONCE_MAX:
            return True
        self.answered_in_a_row = 0
        return False

    def adopt(self, call: Call) -> None:
        """Take in a call that was begun without the book, and has to wait now."""
        call.sink = (self._loop or self._find_loop()).create_future()
        call.on_answer = self.answered
        call.measure()
        self._enter(call)

    def answer_of(self, call: Call) -> Awaitable[Any]:
        """What its caller gets of a call that was run at once: its value, or the error, raised here."""
        kept = call.kept
        if kept is None:
            return call
        self.answered_in_a_row += 1
        if not self.may_go_on():
            future: asyncio.Future[Any] = (self._loop or self._find_loop()).create_future()
            resolve(future, kept, self._codec)
            return _after_others(future)
        if kept.outcome is not Outcome.VALUE:
            raise error_of(kept, self._codec)
        return Ready(kept.value)

    def begin(self, call: Call) -> Awaitable[Any]:
        """Place a call that is made in this process; returns what its answer is awaited from.

        Whoever is cancelled while awaiting it abandons the call, where what was returned is that.
        """
        future: asyncio.Future[Any] = (self._loop or self._find_loop()).create_future()
        call.sink = future
        call.book = self
        self.place(call)
        if future.done():
            self.answered_in_a_row += 1
            if not self.may_go_on():
                return _after_others(future)
        return call

    async def wait_for(self, call: Call) -> Any:
        """Place a call that is made in this process, and wait for its answer; a caller that is cancelled cancels it."""
        answer = self.begin(call)
        try:
            return await answer
        except asyncio.CancelledError:
            self.abandon(call)
            raise

    def answered(self, call: Call, answer: Answer) -> None:
        """The end of a call: its `on_answer`."""
        if not self._close(call):
            return
        sink = call.sink
        if isinstance(sink, asyncio.Future):
            resolve(sink, answer, self._codec)
        elif sink is not None:
            link, call_id = sink
            answer.send_on(link, call_id, self._codec)
        elif call.is_one_way and answer.outcome in NOT_RUN and not call.cancelled:
            self._report_one_way(call, answer)

    def returned(self, call: Call, reply: Reply) -> None:
        """The end of a call by the value that a reply brings, which is how nearly all end: as `answered`."""
        sink = call.sink
        if not isinstance(sink, asyncio.Future):
            call.on_answer(call, Answer(Outcome.VALUE, None, None, reply.payload, reply.codec, reply.entry))
        elif self._close(call) and not sink.done():
            try:
                sink.set_result(self._codec.decode(reply.payload, reply.codec))
            except SiloError as unreadable:
                sink.set_exception(unreadable)

    def _close(self, call: Call) -> bool:
        """Take a call off the book; False if it is not there any more."""
        if self._open.pop(call.id, None) is None:
            return False
        self._open_bytes -= call.size
        call.answered = True
        if call.timer is not None:
            call.timer.cancel()
            call.timer = None
        if call.lane is not None:
            self.lanes.leave(call)
        if self._empty is not None and not self._open and not self._empty.done():
            self._empty.set_result(None)
        return True

    def _report_one_way(self, call: Call, answer: Answer) -> None:
        """Nobody waits for a one-way call: that it was not run, or may not have been, is said here or nowhere."""
        error = answer.error if answer.payload is None else self._codec.decode_error(answer.payload, answer.codec)
        log.warning(
            "call.one_way_not_run", grain=str(call.grain), method=call.method, caller=call.caller, why=str(error)
        )

    def abandon(self, call: Call) -> None:
        """Nobody waits for its answer any more, should it not have come."""
        if not call.answered:
            self.cancel(call)

    def cancel(self, call: Call) -> None:
        """The caller has gone."""
        call.cancelled = True
        self._recall(call)
        call.sink = None
        self.answered(call, Answer.failed(NotExecuted("its caller has gone")))

    def unknown(self, call: Call, peer: str, because: str) -> None:
        """The silo that had the call is lost."""
        error = SiloUnavailable(f"{call.grain}.{call.method}: {peer} was lost before it answered: {because}")
        call.on_answer(call, Answer.failed(error))

    def unknown_reply(self, request: Request, because: str) -> Reply:
        """The same for a call of another silo."""
        error = SiloUnavailable(f"{request.grain}.{request.method}: lost on its way: {because}")
        return Answer.failed(error).as_reply(request.id, self._codec)

    def fail_all(self, error: NotExecuted) -> None:
        """End every open call: with this error where it has not started, as of unknown outcome where it may have."""
        for call in list(self._open.values()):
            has_not_started = self._recall(call)
            call.cancelled = True
            unknown = OutcomeUnknown(f"{call.grain}.{call.method}: {error}")
            call.on_answer(call, Answer.failed(error if has_not_started else unknown))
        self._deadlines.settle()

    async def emptied(self) -> None:
        """Wait until no call is open."""
        while self._open:
            if self._empty is None or self._empty.done():
                self._empty = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._empty)

    def of_link(self, link: Link) -> Iterator[Call]:
        """The calls of one client."""
        for call in list(self._open.values()):
            if isinstance(call.sink, tuple) and sink_of(call)[0] is link:
                yield call

    def _overdue(self, call: Call) -> None:
        if call.target is None or not self._answer_grace_s:
            self._give_up(call)
        elif not self._recalls_first:
            self._wait_for_verdict(call, self._give_up)
        elif self._recall(call):
            self._expire(call, has_not_started=True)
        elif call.task is not None:  # it runs here
            self._expire(call)
        else:
            self._wait_for_verdict(call, self._expire)

    def _wait_for_verdict(self, call: Call, otherwise: Callable[[Call], None]) -> None:
        call.timer = asyncio.get_running_loop().call_later(self._answer_grace_s, otherwise, call)

    def _give_up(self, call: Call) -> None:
        was_out = call.target is not None
        self._expire(call, has_not_started=self._recall(call) and was_out)

    def _expire(self, call: Call, *, has_not_started: bool = False) -> None:
        """End it; where it is not known to have not started, by what else is known of it."""
        call.timer = None
        because = f": {call.obstacle}" if call.obstacle is not None else ""
        what = f"{call.grain}.{call.method}: the deadline passed before the call was started{because}"
        call.cancelled = True
        call.on_answer(call, Answer.failed(CallExpired(what) if has_not_started else call.overdue()))


async def _after_others(future: asyncio.Future[Any]) -> Any:
    future.exception()  # has been seen to, should the caller be cancelled meanwhile
    await asyncio.sleep(0)
    return future.result()


def sink_of(call: Call) -> tuple[Link, int]:
    """The client's link and the client's own number of the call."""
    return cast("tuple[Link, int]", call.sink)
