"""Large frames in pieces."""

from __future__ import annotations

import copy
import tracemalloc

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from silo.directory.addresses import Entry, GrainId, SiloAddress
from silo.messaging.chunks import Joiner, JoinFailed, Large, Splitter
from silo.messaging.limits import KIB, MIB, LinkLimits
from silo.wire.frames import Chunk, Offer, Reply, Request

LIMITS = LinkLimits(chunk_bytes=100, chunk_streams_max=2, frame_bytes_max=1_000)
GRAIN = GrainId("room", "lobby")
HEAD = msgspec.msgpack.encode(Reply(7, 0))


def first(stream: int, data: bytes = b"x", *, size: int = 500, head: bytes = HEAD, last: bool = False) -> Chunk:
    return Chunk(stream, data, last, head=head, size=size)


@pytest.mark.parametrize(
    "frame",
    [
        Reply(7, 0, b"", 3, Entry(GRAIN, SiloAddress("a:1", 1), "activation", 4)),
        Request(7, GRAIN, "enter", b"", 1, 2.5, "caller"),
        Offer(7, Entry(GRAIN, SiloAddress("a:1", 1), "activation", 4), "next", b"", "drain"),
    ],
    ids=lambda frame: type(frame).__name__,
)
@given(payload=st.binary(max_size=1_000))
def test_a_frame_comes_out_as_it_went_in(frame: Large, payload: bytes) -> None:
    frame = copy.copy(frame)
    frame.payload = payload
    splitter, joiner = Splitter(1, frame, LIMITS.chunk_bytes), Joiner(LIMITS)
    while (joined := joiner.add(splitter.next(), 0.0)) is None:
        pass
    assert joined == frame
    assert type(joined) is type(frame)
    assert len(joiner) == 0


def test_no_step_on_either_side_copies_a_large_payload_whole() -> None:
    limits = LinkLimits()
    payload = bytes(20 * MIB)
    splitter, joiner = Splitter(1, Reply(7, 0, payload), limits.chunk_bytes), Joiner(limits)
    joined = None
    allowed = len(payload) + limits.chunk_bytes + 64 * KIB  # the first one reserves the room, which takes no time
    tracemalloc.start()
    try:
        while joined is None:
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            joined = joiner.add(splitter.next(), 0.0)
            assert tracemalloc.get_traced_memory()[1] - before < allowed
            allowed = limits.chunk_bytes + 64 * KIB
    finally:
        tracemalloc.stop()
    assert isinstance(joined, Reply)
    assert joined.payload == payload


def test_the_number_of_unfinished_frames_is_bounded() -> None:
    joiner = Joiner(LIMITS)
    joiner.add(first(1), 0.0)
    joiner.add(first(2), 0.0)
    with pytest.raises(JoinFailed, match="chunk_streams_max=2"):
        joiner.add(first(3), 0.0)


@pytest.mark.parametrize("size", [-1, 1_001, 2**62])
def test_the_size_of_a_frame_is_bounded_before_anything_is_reserved_for_it(size: int) -> None:
    with pytest.raises(JoinFailed, match="frame_bytes_max=1000"):
        Joiner(LIMITS).add(first(1, size=size), 0.0)


def test_a_frame_is_as_large_as_was_announced() -> None:
    joiner = Joiner(LIMITS)
    joiner.add(first(1, bytes(100), size=150), 0.0)
    with pytest.raises(JoinFailed, match="more than the 150 bytes"):
        joiner.add(Chunk(1, bytes(100), last=False), 0.0)
    with pytest.raises(JoinFailed, match="100 bytes where 150"):
        Joiner(LIMITS).add(first(1, bytes(100), size=150, last=True), 0.0)


def test_a_dropped_frame_is_thrown_away() -> None:
    joiner = Joiner(LIMITS)
    joiner.add(first(1, b"half"), 0.0)
    assert joiner.add(Chunk(1, b"", last=True, dropped=True), 0.0) is None
    assert len(joiner) == 0
    assert joiner.add(Chunk(2, b"", last=True, dropped=True), 0.0) is None  # given up before its first piece


@pytest.mark.parametrize(
    "head", [b"", b"\xc1", msgspec.msgpack.encode(Chunk(1, b"", last=True)), b"\x93\x02\x01", b"\x91\x10"]
)
def test_pieces_that_make_no_frame_are_refused(head: bytes) -> None:
    with pytest.raises(JoinFailed):
        Joiner(LIMITS).add(first(1, head=head), 0.0)
