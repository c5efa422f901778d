"""A link session: numbered frames between two peers, kept until acknowledged, so that they outlive a connection.

Plain code without I/O, clock or chance. The link pushes frames in, takes batches out and writes them, and feeds in
what it reads. A session begins with two nonces, one of each side, and lasts as long as both remember the other's.

Frames are numbered when a batch takes them, from 1. The acknowledgement in every batch is cumulative. After a new
connection whatever the peer has not received is written again in the same batches, and the peer drops what it has
already: nothing is lost, repeated or reordered while the session lasts. When it ends, `end` sorts what is left into
never written and unknown.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from silo.directory.errors import Overloaded, PayloadTooLarge
from silo.messaging.chunks import LARGE, Joiner, Splitter
from silo.messaging.envelope import Envelope, requests_of
from silo.messaging.limits import LinkLimits
from silo.wire.frames import Batch, Cancel, Chunk, Flag, Frame, Order, Orders, Request

FRAME_OVERHEAD_BYTES = 160
"""What a frame is reckoned to take beside its payload."""
BATCHES_UNDER_WAY = 2
"""Into so many batches the requests that are under way are shared out: one to be run while the next is made. With 64
in flight that makes 1.6 times the calls of one batch; three or more bring no more, and cost more messages."""
SHARED_REQUESTS_MIN = 8
"""Fewer requests than these go into one batch: another message would take longer than what it saves."""


class SessionBroken(Exception):
    """The peer's numbers or acknowledgements cannot be right: the session is not to be saved."""


class Gap(ConnectionError):
    """Frames are missing on this connection: another one may bring them."""


class Leftovers(NamedTuple):
    """What a session held when it ended."""

    unsent: list[Frame]
    """Never written whole, so the peer cannot have acted on it."""
    unknown: list[Frame]
    """Written and not acknowledged."""


class Outgoing(msgspec.Struct):
    """A frame that waits to be written; whoever pushed it can withdraw it by this."""

    frame: Frame | None
    """None once it was written whole, withdrawn, or given back."""
    size: int
    deadline: float | None = None
    on_written: Callable[[], None] | None = None


class _Stream(msgspec.Struct):
    """A large frame of which some pieces have been taken."""

    outgoing: Outgoing
    pieces: Splitter


class Written(msgspec.Struct):
    """Consecutive frames as they were taken for one batch; the same ones again after a reconnect."""

    first: int
    frames: tuple[Frame, ...]
    size: int
    timed: list[tuple[Request | Order, float]]
    """Requests and their deadlines, for the time left whenever they are written."""
    on_written: list[Callable[[], None]]
    """To be called when the batch is handed to the connection for the first time."""
    whole: Frame | None = None
    """The large frame whose last piece is in this batch."""


class Session:
    """One side of a link session.

    Args:
        nonce: names this side's session; the peer remembers it.
        limits: the bounds of the link.
    """

    def __init__(self, nonce: bytes, limits: LinkLimits) -> None:
        self.nonce = nonce
        self.peer_nonce = b""
        """The peer's nonce, once the two have met."""
        self.received = 0
        """The number of the last frame received."""
        self.last = 0
        """The number of the last frame written."""
        self.puts_orders_together = False
        """Whether the peer takes orders for many grains in one frame."""
        self._limits = limits
        self._urgent: deque[Outgoing] = deque()
        self._requests: deque[Outgoing] = deque()
        self._large: deque[Outgoing] = deque()
        self._streams: deque[_Stream] = deque()
        self._streams_begun = 0
        self._queued_requests = 0
        self._queued_bytes = 0
        self._unacked: deque[Written] = deque()
        self._unacked_bytes = 0
        self._resend: deque[Written] = deque()
        self._acked_out = 0
        self._received_bytes = 0
        self._joiner = Joiner(limits)

    # -- sending ------------------------------------------------------------------------------------------------------

    def push(
        self,
        frame: Frame,
        deadline: float | None = None,
        on_written: Callable[[], None] | None = None,
        force: bool = False,
    ) -> Outgoing:
        """Queue a frame; from now on it belongs to the session, which sets its `left_s`.

        Raises:
            Overloaded: a request beyond the bounds of the queue, unless forced; other frames are never refused.
            PayloadTooLarge: the frame could never be sent.
        """
        limits = self._limits
        lane, payload = self._urgent, 0
        if type(frame) is Request:
            lane, payload = self._requests, len(frame.payload)
        elif isinstance(frame, LARGE):
            payload = len(frame.payload)
        elif type(frame) is Cancel:
            lane = self._requests  # behind the request that it is about
        if payload > limits.frame_bytes_max:
            what = f"{payload} bytes in one {type(frame).__name__.lower()}"
            raise PayloadTooLarge(
                f"{what}; frame_bytes_max is {limits.frame_bytes_max}", payload, limits.frame_bytes_max
            )
        if type(frame) is Request:
            queued = self._queued_requests
            if queued and not force:
                if queued >= limits.queue_requests_max:
                    raise Overloaded(f"{queued} requests wait for the link", "queue_requests_max")
                if self._queued_bytes + payload > limits.queue_bytes_max:
                    raise Overloaded(f"{self._queued_bytes} bytes of requests wait for the link", "queue_bytes_max")
            self._queued_requests = queued + 1
            self._queued_bytes += payload
        outgoing = Outgoing(frame, payload + FRAME_OVERHEAD_BYTES, deadline, on_written)
        (self._large if payload > limits.chunk_bytes else lane).append(outgoing)
        return outgoing

    def withdraw(self, outgoing: Outgoing) -> bool:
        """Take a request back. True: it had not been written whole, and now never will be."""
        if not isinstance(outgoing.frame, Request):
            return False
        self._left_queue(outgoing)
        return True

    def _left_queue(self, outgoing: Outgoing) -> None:
        """A request is no longer among those that wait."""
        self._queued_requests -= 1
        self._queued_bytes -= outgoing.size - FRAME_OVERHEAD_BYTES
        outgoing.frame = None

    def take(self, now: float) -> Written | None:
        """The next batch to write: what must be written again first, then what waits. None: nothing, or no room."""
        if not self.waits:
            return None
        while self._resend:
            written = self._resend.popleft()
            if written.first <= self._acked:
                continue  # acknowledged meanwhile
            for request, deadline in written.timed:
                request.left_s = max(0.0, deadline - now)
            return written
        limits = self._limits
        unacked = self._unacked
        if unacked and (
            self.last - unacked[0].first + 1 >= limits.unacked_frames_max
            or self._unacked_bytes >= limits.unacked_bytes_max
        ):
            return None
        written = Written(self.last + 1, (), 0, [], [])
        frames: list[Frame] = []
        if self._urgent:
            self._take_lane(self._urgent, frames, written, now, limits.batch_frames_max)
        if self._requests:
            self._take_lane(self._requests, frames, written, now, len(frames) + self._share_of_requests())
        if self._streams or self._large:
            self._take_chunk(frames, written, now)
        if not frames:
            return None
        written.frames = tuple(frames)
        self.last += len(frames)
        self._unacked.append(written)
        self._unacked_bytes += written.size
        return written

    def _share_of_requests(self) -> int:
        """How many requests the next batch takes: a share of all that are under way, so that this side makes calls
        while the other one runs some. With all in one batch they would take turns at waiting for each other.
        """
        under_way = self.last - self._acked + len(self._requests)
        return min(max(-(-under_way // BATCHES_UNDER_WAY), SHARED_REQUESTS_MIN), self._limits.batch_frames_max)

    def _take_lane(
        self, lane: deque[Outgoing], frames: list[Frame], written: Written, now: float, frames_max: int
    ) -> None:
        bytes_max = self._limits.batch_bytes_max
        size = written.size
        while lane and len(frames) < frames_max:
            outgoing = lane[0]
            if frames and size + outgoing.size > bytes_max:
                break
            lane.popleft()
            frame = outgoing.frame
            if frame is None:
                continue
            if type(frame) is Request:
                flags = frame.flags
                self._queued_requests -= 1  # as in `_left_queue`
                self._queued_bytes -= outgoing.size - FRAME_OVERHEAD_BYTES
                outgoing.frame = None
                deadline = outgoing.deadline
                if deadline is not None:
                    left_s = deadline - now
                    if left_s <= 0:
                        continue  # whoever waited for it has been answered by their own timer
                    frame.left_s = left_s
                if flags & Flag.CONTROL and self.puts_orders_together and outgoing.on_written is None:
                    envelope = self._take_orders(frame, lane, written, now, bytes_max - size)
                    if envelope is not None:
                        if deadline is not None:
                            written.timed.append((envelope.first, deadline))
                        frames.append(envelope.frame())
                        size += envelope.size + FRAME_OVERHEAD_BYTES
                        continue
                if deadline is not None:
                    written.timed.append((frame, deadline))
            if outgoing.on_written is not None:
                written.on_written.append(outgoing.on_written)
            frames.append(frame)
            size += outgoing.size
        written.size = size

    def _take_orders(
        self, first: Request, lane: deque[Outgoing], written: Written, now: float, bytes_max: int
    ) -> Envelope | None:
        """An order with those that stand right behind it and are alike; None where there are none."""
        envelope: Envelope | None = None
        while lane:
            outgoing = lane[0]
            request = outgoing.frame
            if request is not None:
                if type(request) is not Request or outgoing.on_written is not None:
                    break
                envelope = envelope or Envelope(first, bytes_max)
                if not envelope.takes(request):
                    break
                self._left_queue(outgoing)
            lane.popleft()
            if request is None or envelope is None:
                continue
            if outgoing.deadline is None:
                envelope.add(request)
            elif outgoing.deadline > now:
                request.left_s = outgoing.deadline - now
                written.timed.append((envelope.add(request), outgoing.deadline))
        return envelope if envelope is not None and len(envelope) > 1 else None

    def _take_chunk(self, frames: list[Frame], written: Written, now: float) -> None:
        """One piece of one large frame; the large frames take turns."""
        while self._large and len(self._streams) < self._limits.chunk_streams_max:
            self._begin_stream(self._large.popleft(), now)
        if not self._streams:
            return
        stream = self._streams.popleft()
        outgoing = stream.outgoing
        frame = outgoing.frame
        if isinstance(frame, Request) and outgoing.deadline is not None and outgoing.deadline <= now:
            self._left_queue(outgoing)
            frame = None
        if frame is None:
            frames.append(Chunk(stream.pieces.stream, b"", last=True, dropped=True))
            written.size += FRAME_OVERHEAD_BYTES
            return
        chunk = stream.pieces.next()
        frames.append(chunk)
        written.size += len(chunk.data) + FRAME_OVERHEAD_BYTES
        if not chunk.last:
            self._streams.append(stream)
            return
        if isinstance(frame, Request):
            self._left_queue(outgoing)
        if outgoing.on_written is not None:
            written.on_written.append(outgoing.on_written)
        written.whole = frame

    def _begin_stream(self, outgoing: Outgoing, now: float) -> None:
        frame = outgoing.frame
        if not isinstance(frame, LARGE):
            return  # it was withdrawn
        if isinstance(frame, Request) and outgoing.deadline is not None:
            frame.left_s = outgoing.deadline - now
            if frame.left_s <= 0:
                self._left_queue(outgoing)
                return
        self._streams_begun += 1
        pieces = Splitter(self._streams_begun, frame, self._limits.chunk_bytes)
        self._streams.append(_Stream(outgoing, pieces))

    def batch(self, written: Written | None, view: int) -> Batch:
        """What to encode for this: with the acknowledgement of all that was received; empty for None."""
        self._acked_out = self.received
        self._received_bytes = 0
        if written is None:
            return Batch(self.last + 1, self.received, view)
        return Batch(written.first, self.received, view, written.frames)

    @property
    def idle(self) -> bool:
        """Nothing waits, and all that was written is acknowledged."""
        return not (self._urgent or self._requests or self._large or self._streams or self._unacked)

    @property
    def is_quiet(self) -> bool:
        """All that was written is acknowledged."""
        return not self._unacked

    @property
    def waits(self) -> bool:
        """Something waits to be taken."""
        return bool(self._urgent or self._requests or self._large or self._streams or self._resend)

    # -- receiving ----------------------------------------------------------------------------------------------------

    def receive(self, batch: Batch, size: int, now: float) -> Sequence[Frame]:
        """The frames of a batch that are new, in order, with large ones put together and envelopes opened.

        Args:
            batch: as it was read.
            size: its bytes on the wire.
            now: the time by the clock that `take` goes by.

        Raises:
            Gap: frames before these are missing.
            SessionBroken: the acknowledgement is for frames that were never written.
            JoinFailed: see `Joiner.add`.
            EnvelopeTooLarge: see `requests_of`.
        """
        if batch.ack != self._acked:
            self.acknowledged(batch.ack)
        frames = batch.frames
        seen = self.received + 1 - batch.first
        if seen:
            if seen < 0:
                raise Gap(f"frames {self.received + 1} to {batch.first - 1} are missing")
            frames = frames[seen:]
        if not frames:
            return frames
        self.received += len(frames)
        self._received_bytes += size
        for frame in frames:
            kind = type(frame)
            if kind is Chunk or kind is Orders:
                return self._unpacked(frames, now)
        return frames

    def _unpacked(self, frames: Sequence[Frame], now: float) -> list[Frame]:
        whole: list[Frame] = []
        for frame in frames:
            if type(frame) is Chunk:
                completed = self._joiner.add(frame, now)
                if completed is not None:
                    whole.append(completed)
            elif type(frame) is Orders:
                whole.extend(requests_of(frame))
            else:
                whole.append(frame)
        return whole

    @property
    def ack_waits(self) -> bool:
        """Something was received that no batch has acknowledged yet."""
        return self.received != self._acked_out

    @property
    def ack_is_due(self) -> bool:
        """So much was received that an acknowledgement must not wait for other frames."""
        limits = self._limits
        return (
            self.received - self._acked_out >= limits.ack_every_frames or self._received_bytes >= limits.ack_every_bytes
        )

    @property
    def _acked(self) -> int:
        return self._unacked[0].first - 1 if self._unacked else self.last

    def acknowledged(self, number: int) -> None:
        """The peer has received all frames up to this number. Raises SessionBroken."""
        if number > self.last:
            raise SessionBroken(f"frame {number} is acknowledged, and {self.last} is the last one written")
        unacked = self._unacked
        while unacked and unacked[0].first + len(unacked[0].frames) - 1 <= number:
            self._unacked_bytes -= unacked.popleft().size

    # -- connections --------------------------------------------------------------------------------------------------

    def connected(self, peer_nonce: bytes, peer_received: int) -> None:
        """A new connection stands, and the peer has received this much: the rest is written again.

        Raises:
            SessionBroken: the peer claims more than was ever written.
        """
        self.peer_nonce = peer_nonce
        self.acknowledged(peer_received)
        self._resend = deque(self._unacked)

    def end(self) -> Leftovers:
        """The session is over; what it held goes back. It takes nothing afterwards."""
        unknown: list[Frame] = []
        for written in self._unacked:
            for frame in written.frames:
                if type(frame) is Orders:
                    unknown.extend(requests_of(frame))
                elif type(frame) is not Chunk:
                    unknown.append(frame)
            if written.whole is not None:
                unknown.append(written.whole)
        waiting = [*(stream.outgoing for stream in self._streams), *self._large, *self._urgent, *self._requests]
        unsent = [outgoing.frame for outgoing in waiting if outgoing.frame is not None]
        for outgoing in waiting:
            outgoing.frame = None
        for lane in (self._streams, self._large, self._urgent, self._requests, self._unacked, self._resend):
            lane.clear()
        self._queued_requests = self._queued_bytes = self._unacked_bytes = 0
        return Leftovers(unsent, unknown)
