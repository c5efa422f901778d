"""Large frames in pieces: split where they are sent, joined where they arrive. Plain code without I/O.

The first piece brings the head, which is the frame without its payload, and says how large that is; then the payload
follows as it is. So no step on either side handles more than one piece, however large the frame: its payload is never
encoded, decoded, joined or copied as a whole.
"""

from __future__ import annotations

import io

import msgspec

from silo.messaging.limits import LinkLimits
from silo.wire.frames import Chunk, Frame, Offer, Reply, Request

Large = Request | Reply | Offer
"""The frames with a payload."""
LARGE = (Request, Reply, Offer)
_heads: msgspec.msgpack.Decoder[Frame] = msgspec.msgpack.Decoder(Frame)
_encoder = msgspec.msgpack.Encoder()


class JoinFailed(Exception):
    """The pieces of a frame broke a bound or do not make a frame: the peer does not keep to the protocol."""


class Splitter:
    """One frame that leaves piece by piece."""

    __slots__ = ("_chunk_bytes", "_head", "_offset", "_payload", "stream")

    def __init__(self, stream: int, frame: Large, chunk_bytes: int) -> None:
        self.stream = stream
        self._head = _encoder.encode(msgspec.structs.replace(frame, payload=b""))
        self._payload = memoryview(frame.payload)
        self._offset = 0
        self._chunk_bytes = chunk_bytes

    def next(self) -> Chunk:
        """The next piece; `last` is set on the final one."""
        start, size = self._offset, len(self._payload)
        self._offset = end = min(start + self._chunk_bytes, size)
        head, self._head = self._head, b""
        return Chunk(self.stream, bytes(self._payload[start:end]), end == size, head=head, size=size if head else 0)


class _Partial:
    __slots__ = ("arrived", "began", "buffer", "frame", "size")

    def __init__(self, frame: Large, size: int, began: float) -> None:
        self.frame = frame
        self.size = size
        self.began = began
        self.arrived = 0
        # Filled in place, and given away without a copy: what `bytes` reserves, the system provides as it is written.
        self.buffer = io.BytesIO(bytes(size))

    def add(self, data: bytes) -> None:
        self.arrived += len(data)
        if self.arrived > self.size:
            raise JoinFailed(f"more than the {self.size} bytes that were announced")
        self.buffer.write(data)

    def whole(self) -> Large:
        if self.arrived != self.size:
            raise JoinFailed(f"{self.arrived} bytes where {self.size} were announced")
        self.frame.payload = self.buffer.getvalue()
        return self.frame


class Joiner:
    """The frames of one link that are arriving in pieces; bounded by their number and by the size of each."""

    def __init__(self, limits: LinkLimits) -> None:
        self._limits = limits
        self._partials: dict[int, _Partial] = {}

    def __len__(self) -> int:
        return len(self._partials)

    def add(self, chunk: Chunk, now: float) -> Frame | None:
        """Take a piece; answer with the frame that it completes, if it does.

        The time that a request spent between its first piece and its last is taken off the time it has left.

        Raises:
            JoinFailed: too many frames at once, one that is too large, or pieces that make no frame.
        """
        partial = self._partials.get(chunk.stream)
        if chunk.dropped:
            self._partials.pop(chunk.stream, None)
            return None
        if partial is None:
            partial = self._partials[chunk.stream] = self._begin(chunk, now)
        partial.add(chunk.data)
        if not chunk.last:
            return None
        del self._partials[chunk.stream]
        frame = partial.whole()
        if type(frame) is Request and frame.left_s is not None:
            frame.left_s = max(0.0, frame.left_s - (now - partial.began))
        return frame

    def _begin(self, chunk: Chunk, now: float) -> _Partial:
        limits = self._limits
        if len(self._partials) >= limits.chunk_streams_max:
            raise JoinFailed(f"more than chunk_streams_max={limits.chunk_streams_max} large frames at once")
        if not 0 <= chunk.size <= limits.frame_bytes_max:
            raise JoinFailed(f"a frame of {chunk.size} bytes; frame_bytes_max={limits.frame_bytes_max}")
        try:
            frame = _heads.decode(chunk.head)
        except msgspec.DecodeError as error:
            raise JoinFailed(f"the pieces make no frame: {error}") from None
        if not isinstance(frame, LARGE):
            raise JoinFailed(f"a {type(frame).__name__} in pieces")
        return _Partial(frame, chunk.size, now)
