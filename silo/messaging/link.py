"""A link: what this process has to say to one peer, and hears from it, over one connection after another.

A link is one session with one peer incarnation. When the session is over, so is the link, and the handler gets back
what it held; whoever has more to say asks for a new one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Protocol

from silo.messaging.carrier import Carrier, Ending, Pace
from silo.messaging.greeting import ORDERS, Peer, RefusalCode
from silo.messaging.limits import LinkLimits
from silo.messaging.session import Outgoing, Session, SessionBroken
from silo.messaging.transport import Connection
from silo.wire.frames import Frame


class LinkHandler(Protocol):
    """Who is told what happens on links. The calls come from the loop, must return quickly, and must not raise."""

    def on_frame(self, link: Link, frame: Frame) -> None:
        """A frame arrived; those of one link come in order."""
        ...

    def on_lost(self, link: Link, unsent: list[Frame], unknown: list[Frame], because: str) -> None:
        """The session ended: frames that were never written, and those written and not acknowledged."""
        ...

    def on_peer_view(self, link: Link, version: int) -> None:
        """The peer names a newer view than it did before on this link."""
        ...

    def on_attached(self, link: Link) -> None:
        """A connection carries the link, where none did before."""
        ...

    def on_detached(self, link: Link) -> None:
        """The connection is lost, and the link has not ended: another may come in time."""
        ...


class Link:
    """A link to one peer. `Links` makes them.

    Attributes:
        peer: who is at the other end.
        endpoint: where to dial it; empty if only it can dial.
        peer_view: the newest view version that the peer has named.
        connections: how many connections have carried the link.
    """

    def __init__(
        self,
        peer: Peer,
        session: Session,
        handler: LinkHandler,
        limits: LinkLimits,
        *,
        endpoint: str,
        view_version: Callable[[], int],
        on_ended: Callable[[Link], None],
        pace: Pace,
    ) -> None:
        self.peer = peer
        self.endpoint = endpoint
        self.session = session
        self.peer_view = 0
        self.connections = 0
        self.opened = b""
        self._handler = handler
        self._limits = limits
        self._view_version = view_version
        self._on_ended = on_ended
        self._pace = pace
        self._loop = asyncio.get_running_loop()
        self._carrier: Carrier | None = None
        self._detached = asyncio.Event()
        self._detached.set()
        self._ending: Ending | None = None
        self._drained: asyncio.Future[None] | None = None
        self._expiry: asyncio.TimerHandle | None = self._loop.call_later(limits.link_resume_s, self._expire)

    def __repr__(self) -> str:
        state = f"ended: {self._ending.text}" if self._ending else "attached" if self.attached else "detached"
        return f"<Link to {self.peer.name}, {state}>"

    # -- what its users call ------------------------------------------------------------------------------------------

    @property
    def attached(self) -> bool:
        """A connection carries the link now."""
        return self._carrier is not None and self._ending is None

    @property
    def ending(self) -> Ending | None:
        """Why the link is over, with the code that either side gave; None while it is not."""
        return self._ending

    def send(
        self,
        frame: Frame,
        deadline: float | None = None,
        on_written: Callable[[], None] | None = None,
        force: bool = False,
    ) -> Outgoing | None:
        """Queue a frame, which belongs to the link from now on; never waits.

        On a link that has ended the frame comes back through `on_lost`, soon. Else the answer is what `withdraw` takes.

        Args:
            frame: goes out with all else that waits, before requests unless it is one.
            deadline: of a request, by the loop's clock: its `left_s` is set whenever it is written, and it is dropped
                if it has none left.
            on_written: called when the frame, or its last piece, is handed to a connection for the first time.
            force: take a request even if the queue is full.

        Raises:
            Overloaded: a request beyond `queue_requests_max` or `queue_bytes_max`.
            PayloadTooLarge: the payload is larger than `frame_bytes_max`.
        """
        if self._ending is not None:
            unsent, unknown = [frame], list[Frame]()
            self._loop.call_soon(self._handler.on_lost, self, unsent, unknown, self._ending.text)
            return None
        outgoing = self.session.push(frame, deadline, on_written, force)
        if self._carrier is not None:
            self._carrier.wake()
        return outgoing

    def hurry(self) -> None:
        """Write what waits now, and not when all is dealt with that has come in: that takes a while yet."""
        if self._carrier is not None:
            self._carrier.hurry()

    def withdraw(self, outgoing: Outgoing | None) -> bool:
        """Take back a request that was given to this link. True: it had not been written whole, and never will be."""
        return outgoing is not None and self.session.withdraw(outgoing)

    # -- what Links calls ---------------------------------------------------------------------------------------------

    def prefers(self, dialler: str, last: bytes) -> bool:
        """Whether a new connection shall take the place of the present one.

        Of two that crossed both ends keep the one that the smaller name dialled. A connection whose dialler knew the
        present one has lost it, and one by the same dialler is newer.

        Args:
            dialler: the name of the end that dialled the new one.
            last: the connection that its dialler had before, as its Hello said.
        """
        present = self._carrier
        return present is None or present.dialler == dialler or present.opened == last or dialler < present.dialler

    async def carry(
        self, connection: Connection, *, opened: bytes, dialler: str, peer_nonce: bytes, peer_received: int
    ) -> None:
        """Run the session over this connection, in place of the present one, until that is lost or the link ends."""
        was_attached = self._carrier is not None
        if self._carrier is not None:
            self._carrier.stop(Ending("another connection took its place"))
        try:
            self.session.connected(peer_nonce, peer_received)
        except SessionBroken as error:
            self.end(Ending(str(error), RefusalCode.BROKEN))
        if self._ending is not None:
            await connection.close()
            return
        self.session.puts_orders_together = ORDERS in self.peer.features
        carrier = self._carrier = Carrier(
            connection,
            self.session,
            self.peer,
            self._limits,
            opened=opened,
            dialler=dialler,
            view_version=self._view_version,
            on_frame=partial(self._handler.on_frame, self),
            on_batch=self._on_batch,
            pace=self._pace,
        )
        self.opened = opened
        self.connections += 1
        self._detached.clear()
        self._cancel_expiry()
        try:
            if not was_attached:
                self._handler.on_attached(self)
            ending = await carrier.run()
            if ending.code is not None:
                self.end(ending)
        finally:
            if self._carrier is carrier and self._ending is None:
                self._detach()
            try:
                await carrier.close(self.session.received)
            finally:
                if self._carrier is carrier:
                    self._detach()

    def end(self, ending: Ending) -> None:
        """The session is over, at once; the handler is told what it held."""
        if self._ending is not None:
            return
        self._ending = ending
        self._cancel_expiry()
        left = self.session.end()
        if self._carrier is not None:
            self._carrier.stop(ending)
        self._wake_drained()
        self._on_ended(self)
        self._handler.on_lost(self, left.unsent, left.unknown, ending.text)

    def never_began(self, ending: Ending) -> None:
        """Mark a link that nobody was told of as over."""
        self._ending = ending
        self._cancel_expiry()

    async def detached(self) -> None:
        """Wait until no connection carries the link."""
        await self._detached.wait()

    async def drained(self) -> None:
        """Wait until all that was queued is acknowledged, or the link has ended."""
        while self._ending is None and not self.session.idle:
            self._drained = self._loop.create_future()
            await self._drained

    # -- events -------------------------------------------------------------------------------------------------------

    def _on_batch(self, view: int) -> None:
        if view > self.peer_view:
            self.peer_view = view
            self._handler.on_peer_view(self, view)
        if self._drained is not None and self.session.idle:
            self._wake_drained()

    def _wake_drained(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def _detach(self) -> None:
        self._carrier = None
        self._detached.set()
        if self._ending is None:
            self._expiry = self._loop.call_later(self._limits.link_resume_s, self._expire)
            self._handler.on_detached(self)

    def _expire(self) -> None:
        self._expiry = None
        self.end(Ending(f"no connection to {self.peer.name} for {self._limits.link_resume_s} s", RefusalCode.CLOSING))

    def _cancel_expiry(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
