"""One connection while it carries a link's session: reading and writing, acknowledgements, pings and silence."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from silo.eager import Driven
from silo.logs import get_logger
from silo.messaging.chunks import JoinFailed
from silo.messaging.envelope import EnvelopeTooLarge
from silo.messaging.greeting import Goodbye, Peer, RefusalCode, message_decoder, message_encoder, refusal_code
from silo.messaging.limits import REFUSAL_TEXT_MAX, LinkLimits
from silo.messaging.permissions import Role, refused
from silo.messaging.session import Gap, Session, SessionBroken
from silo.messaging.transport import Connection, ConnectionLost
from silo.wire.frames import Batch, Frame

log = get_logger(__name__)


class Ending(NamedTuple):
    """Why a connection no longer carries its session; without a code it is only lost, and another may come."""

    text: str
    code: RefusalCode | None = None
    by_peer: bool = False


class _Ended(Exception):
    def __init__(self, ending: Ending) -> None:
        super().__init__(ending.text)
        self.ending = ending


class Pace:
    """Whether calls come one by one at the moment, or many at once: what one link takes in, others send on."""

    __slots__ = ("frames_last",)

    def __init__(self) -> None:
        self.frames_last = 0
        """How many frames the last batch had that any link of this process read or wrote."""


class Carrier:
    """Carries one session over one connection: `run` until it ends, then `close`.

    Args:
        connection: greeted and agreed.
        session: the session that it carries from now on, and no other carrier does.
        peer: who is at the other end.
        opened: the challenge that the connection was opened with; both ends know it by that.
        dialler: the name of the end that dialled.
        view_version: the version that batches name.
        on_frame: called for each frame that arrives. It must not raise: the session ends if it does.
        on_batch: called after each batch, with the view version that it named.
        pace: of all links of this process.
    """

    def __init__(
        self,
        connection: Connection,
        session: Session,
        peer: Peer,
        limits: LinkLimits,
        *,
        opened: bytes,
        dialler: str,
        view_version: Callable[[], int],
        on_frame: Callable[[Frame], None],
        on_batch: Callable[[int], None],
        pace: Pace,
    ) -> None:
        self.opened = opened
        self.dialler = dialler
        self._connection = connection
        self._session = session
        self._peer = peer
        self._limits = limits
        self._view_version = view_version
        self._on_frame = on_frame
        self._on_batch = on_batch
        self._pace = pace
        self._loop = loop = asyncio.get_running_loop()
        self._stop: asyncio.Future[Ending] = loop.create_future()
        self._context = contextvars.copy_context()
        self._writing: Driven | None = None
        self._is_writing = False
        self._is_taking_in = False
        self._soon: asyncio.Handle | None = None
        self._empty_is_due = False
        self._last_word: bytes | None = None
        self._last_word_written: asyncio.Future[None] = loop.create_future()
        self._ack_timer: asyncio.TimerHandle | None = None
        self._tick_timer: asyncio.TimerHandle | None = None
        self._tick_due = self._heard = self._wrote = loop.time()
        self._reader: asyncio.Task[None] | None = None

    def wake(self) -> None:
        """Something was pushed into the session.

        It is written at once where calls come one by one, and nothing is on its way. Else all that come in a pass of
        the loop leave together.
        """
        if self._is_writing or self._is_taking_in or self._soon is not None:
            return  # it is looked at when that ends, or comes
        if self._pace.frames_last <= 1 and self._session.is_quiet:
            self._start_writing()
        else:
            self._soon = self._loop.call_soon(self._start_writing, context=self._context)

    def hurry(self) -> None:
        """Write what waits now, unless something is on its way."""
        if not self._is_writing and self._session.waits:
            self._start_writing()

    def stop(self, ending: Ending) -> None:
        """End this from outside; nothing more is delivered."""
        if not self._stop.done():
            self._stop.set_result(ending)

    async def run(self) -> Ending:
        """Carry frames both ways until something ends that."""
        reader = self._reader = self._loop.create_task(self._read())
        self._schedule_tick()
        self._start_writing()
        ends: list[asyncio.Future[Any]] = [reader, self._stop]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if not self._stop.done():
            self.stop(_ending(None if reader.cancelled() else reader.exception()))
        return self._stop.result()

    async def close(self, received: int) -> None:
        """Say goodbye where there is a reason to, and let go of the connection and of the tasks.

        Args:
            received: the number of the last frame received.
        """
        self.stop(Ending("cancelled"))
        for timer in (self._tick_timer, self._ack_timer, self._soon):
            if timer is not None:
                timer.cancel()
        try:
            ending = self._stop.result()
            if ending.code is not None and not ending.by_peer and self._reader is not None:
                await self._say_goodbye(ending, received)
        finally:
            if self._writing is not None:
                self._writing.close()
            if self._reader is not None:
                self._reader.cancel()
                await asyncio.gather(self._reader, return_exceptions=True)
                self._reader = None  # its error refers to this
            await self._connection.close()

    async def _say_goodbye(self, ending: Ending, received: int) -> None:
        code = RefusalCode.BROKEN if ending.code is None else ending.code
        self._last_word = message_encoder.encode(Goodbye(code, ending.text[:REFUSAL_TEXT_MAX], received))
        self._start_writing()
        await asyncio.wait([self._last_word_written], timeout=self._limits.goodbye_timeout_s)
        if self._last_word_written.done():
            # Closing in order lets the last word through, which cancelling a read might cut off.
            await self._connection.close()

    # -- writing ------------------------------------------------------------------------------------------------------

    def _start_writing(self) -> None:
        self._soon = None
        if not self._is_writing and not self._last_word_written.done():
            self._is_writing = True
            self._writing = Driven(self._write_all(), self._loop, self._context, self._on_written)

    def _on_written(self, error: BaseException | None) -> None:
        self._is_writing = False
        if error is not None:
            self._end_of_writing()
            self.stop(_ending(error))

    async def _write_all(self) -> None:
        """Write until nothing is left."""
        session, connection, stop, now = self._session, self._connection, self._stop, self._loop.time
        while self._last_word is None:
            # Once stopped it must take nothing: the session may be in another carrier's hands.
            stopped = stop.done()
            written = None if stopped else session.take(now())
            if written is None and (stopped or not self._empty_is_due):
                return
            self._empty_is_due = False
            if written is not None:
                self._pace.frames_last = len(written.frames)
            body = message_encoder.encode(session.batch(written, self._view_version()))
            if written is not None and written.on_written:
                for call in written.on_written:
                    call()
                written.on_written.clear()
            await connection.write(body)
            self._wrote = now()
        await connection.write(self._last_word)
        self._end_of_writing()

    def _end_of_writing(self) -> None:
        if not self._last_word_written.done():
            self._last_word_written.set_result(None)

    def _write_empty(self) -> None:
        self._empty_is_due = True
        self._start_writing()

    # -- reading ------------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        connection, decode = self._connection, message_decoder.decode
        while True:
            body = await connection.read()
            if body is None:
                raise ConnectionLost("the peer closed the connection")
            self._heard = self._loop.time()
            try:
                message = decode(body)
            except msgspec.DecodeError as error:
                raise _Ended(Ending(f"unreadable message: {error}", RefusalCode.BROKEN)) from None
            if type(message) is Batch:
                self._take_in(message, len(body))
                if message.frames:
                    await asyncio.sleep(0)  # who was answered goes on first: what follows here takes a while
                self._note(message)
            elif isinstance(message, Goodbye):
                self._part(message)
            else:
                raise _Ended(Ending(f"a {type(message).__name__} after the greeting", RefusalCode.BROKEN))

    def _take_in(self, batch: Batch, size: int) -> None:
        if self._stop.done():
            return  # not taken in, so not acknowledged: it comes again on the connection that took this one's place
        session = self._session
        try:
            frames = session.receive(batch, size, self._heard)
        except (SessionBroken, JoinFailed, EnvelopeTooLarge) as error:
            raise _Ended(Ending(str(error), RefusalCode.BROKEN)) from None
        if frames:
            self._pace.frames_last = len(frames)
        self._is_taking_in = len(frames) > 1
        try:
            self._deliver(frames)
        finally:
            self._is_taking_in = False
        if not self._is_writing and session.waits:
            self._start_writing()

    def _note(self, batch: Batch) -> None:
        """What a batch says beside its frames, and what is due for it."""
        if self._stop.done():
            return
        session = self._session
        self._on_batch(batch.view)
        if session.ack_is_due:
            self._write_empty()
        elif session.ack_waits and self._ack_timer is None:
            self._ack_timer = self._loop.call_later(self._limits.ack_after_s, self._ack_late)
        if session.waits:
            self._start_writing()

    def _deliver(self, frames: Sequence[Frame]) -> None:
        trusted, stop, on_frame = self._peer.role is Role.SILO, self._stop, self._on_frame
        for frame in frames:
            if stop.done():
                return
            if not trusted and (why := refused(self._peer.role, frame)):
                log.warning("link.frame_refused", peer=self._peer.name, why=why)
                raise _Ended(Ending(f"not permitted: {why}", RefusalCode.PERMISSION))
            try:
                on_frame(frame)
            except (Exception, asyncio.CancelledError) as error:
                # A CancelledError here was raised by the code called, which awaits nothing: it is an error like others.
                log.exception("link.frame_failed", peer=self._peer.name, frame=type(frame).__name__)
                raise _Ended(Ending(f"could not deal with a frame: {error!r}", RefusalCode.FAILED)) from None

    def _ack_late(self) -> None:
        self._ack_timer = None
        if self._session.ack_waits:
            self._write_empty()

    def _part(self, goodbye: Goodbye) -> None:
        try:
            self._session.acknowledged(goodbye.received)
        except SessionBroken as error:
            raise _Ended(Ending(str(error), RefusalCode.BROKEN)) from None
        raise _Ended(Ending(goodbye.text, refusal_code(goodbye.code), by_peer=True))

    # -- time ---------------------------------------------------------------------------------------------------------

    def _schedule_tick(self) -> None:
        self._tick_due = self._loop.time() + self._limits.link_ping_s / 2
        self._tick_timer = self._loop.call_at(self._tick_due, self._tick)

    def _tick(self) -> None:
        now, limits = self._loop.time(), self._limits
        if now - self._tick_due > limits.link_ping_s:
            self._heard = now  # it was this loop that stood still: what the peer sent meanwhile is yet to be read
        elif now - self._heard > limits.link_silence_s:
            self.stop(Ending(f"nothing heard for {limits.link_silence_s} s"))
            return
        if now - self._wrote >= limits.link_ping_s * 0.9:
            self._write_empty()
        self._schedule_tick()


def _ending(error: BaseException | None) -> Ending:
    match error:
        case _Ended():
            return error.ending
        case ConnectionLost() | Gap():
            return Ending(str(error))
        case None | asyncio.CancelledError():
            return Ending("the connection was closed")
        case _:
            log.error("link.failed", exc_info=error)
            return Ending(f"{error!r}", RefusalCode.FAILED)
