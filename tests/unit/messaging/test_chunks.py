"""Large frames in pieces."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from silo.messaging.chunks import Joiner, JoinFailed, Splitter
from silo.messaging.limits import LinkLimits
from silo.wire.frames import Chunk, Reply

LIMITS = LinkLimits(chunk_bytes=100, chunk_streams_max=2, frame_bytes_max=1_000)


@given(st.binary(max_size=1_000))
def test_a_frame_comes_out_as_it_went_in(payload: bytes) -> None:
    frame = Reply(7, 0, payload)
    splitter, joiner = Splitter(1, msgspec.msgpack.encode(frame), LIMITS.chunk_bytes), Joiner(LIMITS)
    while (joined := joiner.add(splitter.next(), 0.0)) is None:
        pass
    assert joined == frame
    assert len(joiner) == 0


def test_the_number_of_unfinished_frames_is_bounded() -> None:
    joiner = Joiner(LIMITS)
    joiner.add(Chunk(1, b"x", last=False), 0.0)
    joiner.add(Chunk(2, b"x", last=False), 0.0)
    with pytest.raises(JoinFailed, match="chunk_streams_max=2"):
        joiner.add(Chunk(3, b"x", last=False), 0.0)


def test_the_size_of_an_unfinished_frame_is_bounded() -> None:
    joiner = Joiner(LIMITS)
    for _ in range(11):
        joiner.add(Chunk(1, bytes(100), last=False), 0.0)
    with pytest.raises(JoinFailed, match="frame_bytes_max=1000"):
        joiner.add(Chunk(1, bytes(100), last=False), 0.0)


def test_a_dropped_frame_is_thrown_away() -> None:
    joiner = Joiner(LIMITS)
    joiner.add(Chunk(1, b"half", last=False), 0.0)
    assert joiner.add(Chunk(1, b"", last=True, dropped=True), 0.0) is None
    assert len(joiner) == 0


@pytest.mark.parametrize("data", [b"", b"\xc1", msgspec.msgpack.encode(Chunk(1, b"", last=True)), b"\x93\x02\x01"])
def test_pieces_that_make_no_frame_are_refused(data: bytes) -> None:
    with pytest.raises(JoinFailed):
        Joiner(LIMITS).add(Chunk(1, data, last=True), 0.0)
