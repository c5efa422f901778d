"""Large frames in pieces: split where they are sent, joined where they arrive. Plain code without I/O."""

from __future__ import annotations

import msgspec

from silo.messaging.limits import LinkLimits
from silo.wire.frames import Chunk, Frame, Request

_frames: msgspec.msgpack.Decoder[Frame] = msgspec.msgpack.Decoder(Frame)


class JoinFailed(Exception):
    """The pieces of a frame broke a bound or do not make a frame: the peer does not keep to the protocol."""


class Splitter:
    """One encoded frame that leaves piece by piece."""

    __slots__ = ("_chunk_bytes", "_encoded", "_offset", "stream")

    def __init__(self, stream: int, encoded: bytes, chunk_bytes: int) -> None:
        self.stream = stream
        self._encoded = memoryview(encoded)
        self._offset = 0
        self._chunk_bytes = chunk_bytes

    def next(self) -> Chunk:
        """The next piece; `last` is set on the final one."""
        start = self._offset
        self._offset = end = min(start + self._chunk_bytes, len(self._encoded))
        return Chunk(self.stream, bytes(self._encoded[start:end]), end == len(self._encoded))


class _Partial:
    __slots__ = ("began", "pieces", "size")

    def __init__(self, began: float) -> None:
        self.began = began
        self.pieces: list[bytes] = []
        self.size = 0


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
            JoinFailed: too many frames at once, one that is too large, or bytes that are no frame.
        """
        partial = self._partials.get(chunk.stream)
        if partial is None:
            if len(self._partials) >= self._limits.chunk_streams_max:
                raise JoinFailed(f"more than chunk_streams_max={self._limits.chunk_streams_max} large frames at once")
            partial = self._partials[chunk.stream] = _Partial(now)
        partial.pieces.append(chunk.data)
        partial.size += len(chunk.data)
        # What stands around the payload in a frame is small beside one chunk.
        if partial.size > self._limits.frame_bytes_max + self._limits.chunk_bytes:
            raise JoinFailed(f"a frame larger than frame_bytes_max={self._limits.frame_bytes_max}")
        if not chunk.last:
            return None
        del self._partials[chunk.stream]
        if chunk.dropped:
            return None
        try:
            frame = _frames.decode(b"".join(partial.pieces))
        except msgspec.DecodeError as error:
            raise JoinFailed(f"the pieces make no frame: {error}") from None
        if type(frame) is Chunk:
            raise JoinFailed("a chunk inside of chunks")
        if type(frame) is Request and frame.left_s is not None:
            frame.left_s = max(0.0, frame.left_s - (now - partial.began))
        return frame
