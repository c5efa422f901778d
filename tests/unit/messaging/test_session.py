"""Link sessions: what is pushed arrives once and in order over however many connections."""

from __future__ import annotations

from typing import cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from silo.directory.addresses import GrainId
from silo.directory.errors import Overloaded, PayloadTooLarge
from silo.messaging.limits import LinkLimits
from silo.messaging.session import SHARED_REQUESTS_MIN, Gap, Session, SessionBroken, Written
from silo.wire.frames import Batch, Cancel, Chunk, Frame, Reply, Request

SMALL = LinkLimits(
    batch_frames_max=4,
    batch_bytes_max=4_000,
    chunk_bytes=1_000,
    chunk_streams_max=2,
    unacked_frames_max=16,
    frame_bytes_max=20_000,
    queue_requests_max=5,
    queue_bytes_max=10_000,
)
DECODER = msgspec.msgpack.Decoder(Batch)


def request(number: int, size: int = 3, flags: int = 0) -> Request:
    return Request(number, GrainId("k", "g"), "m", bytes(size), 1, None, "caller", flags)


def reply(number: int, size: int = 3) -> Reply:
    return Reply(number, 0, bytes(size))


def pair(limits: LinkLimits = SMALL) -> tuple[Session, Session]:
    here, there = Session(b"here", limits), Session(b"there", limits)
    connect(here, there)
    return here, there


def connect(here: Session, there: Session) -> None:
    here_received, there_received = here.received, there.received
    here.connected(there.nonce, there_received)
    there.connected(here.nonce, here_received)


def wire(session: Session, written: Written | None) -> bytes:
    return msgspec.msgpack.encode(session.batch(written, 0))


def carry(source: Session, target: Session, now: float = 0.0) -> list[Frame]:
    """Everything that the source will write now, delivered and acknowledged."""
    delivered: list[Frame] = []
    while (written := source.take(now)) is not None:
        body = wire(source, written)
        delivered.extend(target.receive(DECODER.decode(body), len(body), now))
        source.receive(DECODER.decode(wire(target, None)), 0, now)
    return delivered


def ids(frames: list[Frame]) -> list[int]:
    return [frame.id for frame in frames if isinstance(frame, Request | Reply | Cancel)]


class Direction:
    """What one side of the property test pushed, what the other got, and the messages on their way."""

    def __init__(self, source: Session, target: Session) -> None:
        self.source, self.target = source, target
        self.pushed: list[int] = []
        self.got: list[int] = []
        self.sizes: dict[int, int] = {}
        self.flying: list[bytes] = []

    def push(self, size: int) -> None:
        number = len(self.pushed) + 1
        self.pushed.append(number)
        self.sizes[number] = size
        self.source.push(reply(number, size))

    def write(self) -> None:
        written = self.source.take(0.0)
        if written is not None or self.source.ack_waits:
            self.flying.append(wire(self.source, written))

    def deliver(self) -> None:
        if not self.flying:
            return
        body = self.flying.pop(0)
        for frame in self.target.receive(DECODER.decode(body), len(body), 0.0):
            assert isinstance(frame, Reply)
            assert len(frame.payload) == self.sizes[frame.id]
            self.got.append(frame.id)


STEP = st.one_of(
    st.tuples(st.sampled_from(["push"]), st.integers(0, 1), st.sampled_from([0, 10, 900, 1_001, 5_000])),
    st.tuples(st.sampled_from(["write", "deliver"]), st.integers(0, 1), st.just(0)),
    st.tuples(st.just("reconnect"), st.just(0), st.just(0)),
)


@given(st.lists(STEP, max_size=200))
@settings(max_examples=200, deadline=None)
def test_no_frame_is_lost_repeated_or_reordered_over_any_number_of_lost_connections(
    steps: list[tuple[str, int, int]],
) -> None:
    here, there = pair()
    ways = [Direction(here, there), Direction(there, here)]
    for verb, which, size in steps:
        match verb:
            case "push":
                ways[which].push(size)
            case "write":
                ways[which].write()
            case "deliver":
                ways[which].deliver()
            case _:  # the connection breaks with all that is on its way, and another one comes
                for way in ways:
                    way.flying.clear()
                connect(here, there)
    for _ in range(2_000):
        if here.idle and there.idle:
            break
        for way in ways:
            way.write()
            way.deliver()
    for way in ways:
        while way.flying:
            way.deliver()
        assert sorted(way.got) == way.pushed
        small = [number for number in way.pushed if way.sizes[number] <= SMALL.chunk_bytes]
        assert [number for number in way.got if number in set(small)] == small
    assert here.end() == ([], [])


def test_replies_and_control_frames_overtake_requests_and_a_cancel_does_not() -> None:
    here, there = pair()
    here.push(request(1))
    here.push(Cancel(2, GrainId("k", "g")))
    here.push(reply(3))
    assert ids(carry(here, there)) == [3, 1, 2]


def test_batches_are_bounded_by_frames_and_bytes() -> None:
    here, _ = pair()
    for number in range(5):
        here.push(reply(number))
    for number in range(5, 13):
        here.push(reply(number, 990))
    sizes: list[list[int]] = []
    while (written := here.take(0.0)) is not None:
        sizes.append([len(cast("Reply", frame).payload) for frame in written.frames])
    assert sizes == [[3, 3, 3, 3], [3, 990, 990, 990], [990, 990, 990], [990, 990]]


def test_requests_that_are_under_way_are_shared_out_so_that_some_are_run_while_others_are_made() -> None:
    here, there = pair(LinkLimits())
    for number in range(64):
        here.push(request(number))
    batches = [here.take(0.0), here.take(0.0)]
    assert [len(written.frames) for written in batches if written is not None] == [32, 32]
    assert here.take(0.0) is None
    body = wire(here, batches[0])
    there.receive(DECODER.decode(body), len(body), 0.0)
    for number in range(32):
        there.push(reply(number))
    answers = there.take(0.0)
    assert answers is not None
    assert len(answers.frames) == 32  # what is answered leaves together
    body = wire(there, answers)
    here.receive(DECODER.decode(body), len(body), 0.0)
    for number in range(32):
        here.push(request(100 + number))
    written = here.take(0.0)
    assert written is not None
    assert len(written.frames) == 32


def test_few_requests_leave_in_one_batch() -> None:
    here, _ = pair(LinkLimits())
    for number in range(SHARED_REQUESTS_MIN):
        here.push(request(number))
    written = here.take(0.0)
    assert written is not None
    assert len(written.frames) == SHARED_REQUESTS_MIN


def test_a_request_beyond_the_queue_is_overloaded_and_nothing_else_is_refused() -> None:
    here, _ = pair()
    for number in range(5):
        here.push(request(number))
    with pytest.raises(Overloaded) as caught:
        here.push(request(5))
    assert caught.value.limit == "queue_requests_max"
    here.push(request(6), force=True)
    for number in range(100):
        here.push(reply(number))


def test_a_request_beyond_the_bytes_of_the_queue_is_overloaded_but_a_single_one_never_is() -> None:
    here, there = pair()
    here.push(request(1, 15_000))
    with pytest.raises(Overloaded) as caught:
        here.push(request(2, 1))
    assert caught.value.limit == "queue_bytes_max"
    assert ids(carry(here, there)) == [1]
    here.push(request(2, 1))


def test_S111_a_frame_that_is_too_large_is_refused_where_it_is_sent() -> None:
    here, _ = pair()
    with pytest.raises(PayloadTooLarge, match="frame_bytes_max is 20000") as caught:
        here.push(reply(1, 20_001))
    assert (caught.value.size, caught.value.limit) == (20_001, 20_000)
    assert here.idle


def test_small_frames_pass_between_the_pieces_of_large_ones() -> None:
    here, there = pair()
    here.push(reply(1, 4_500))
    here.push(reply(2, 4_500))
    here.push(reply(3))
    assert ids(carry(here, there)) == [3, 1, 2]


def test_at_most_one_chunk_travels_in_a_batch() -> None:
    here, _ = pair()
    here.push(reply(1, 4_500))
    here.push(reply(2, 4_500))
    for written in iter(lambda: here.take(0.0), None):
        assert written is not None
        assert sum(isinstance(frame, Chunk) for frame in written.frames) == 1


def test_a_request_leaves_with_the_time_left_when_it_is_written_and_again_when_it_is_resent() -> None:
    here, there = pair()
    here.push(request(1), deadline=10.0)
    first = here.take(4.0)
    assert first is not None
    assert isinstance(first.frames[0], Request)
    assert first.frames[0].left_s == 6.0
    connect(here, there)
    again = here.take(7.5)
    assert again is not None
    assert isinstance(again.frames[0], Request)
    assert again.frames[0].left_s == 2.5


def test_a_chunked_request_is_charged_for_its_time_on_the_way() -> None:
    here, there = pair()
    here.push(request(1, 1_500), deadline=10.0)
    delivered: list[Frame] = []
    for now in (4.0, 5.0):
        body = wire(here, here.take(now))
        delivered.extend(there.receive(DECODER.decode(body), len(body), now))
    assert isinstance(delivered[0], Request)
    assert delivered[0].left_s == 5.0


@pytest.mark.parametrize("size", [3, 5_000])
def test_a_request_that_expired_unwritten_is_not_written(size: int) -> None:
    here, there = pair()
    here.push(request(1, size), deadline=1.0)
    here.push(request(2), deadline=9.0)
    assert ids(carry(here, there, now=2.0)) == [2]
    assert here.idle


@pytest.mark.parametrize("size", [3, 5_000])
def test_a_withdrawn_request_is_never_written(size: int) -> None:
    here, there = pair()
    outgoing = here.push(request(1, size))
    assert here.withdraw(outgoing)
    assert not here.withdraw(outgoing)
    here.push(reply(2))
    assert ids(carry(here, there)) == [2]


def test_a_request_withdrawn_between_its_pieces_never_runs() -> None:
    here, there = pair()
    outgoing = here.push(request(1, 5_000))
    body = wire(here, here.take(0.0))
    there.receive(DECODER.decode(body), len(body), 0.0)
    assert here.withdraw(outgoing)
    assert ids(carry(here, there)) == []
    here.push(request(2, 5_000))
    assert ids(carry(here, there)) == [2]


def test_a_written_request_cannot_be_withdrawn() -> None:
    here, _ = pair()
    outgoing = here.push(request(1))
    here.take(0.0)
    assert not here.withdraw(outgoing)


@pytest.mark.parametrize("size", [3, 5_000])
def test_a_request_of_a_session_that_has_ended_cannot_be_withdrawn_from_the_next(size: int) -> None:
    here, _ = pair()
    outgoing = here.push(request(1, size))
    assert ids(here.end().unsent) == [1]
    following, _ = pair()
    following.push(request(2, size))
    assert not following.withdraw(outgoing)
    assert ids(following.end().unsent) == [2]


def test_the_writer_takes_nothing_more_until_frames_are_acknowledged() -> None:
    here, there = pair()
    for number in range(40):
        here.push(reply(number))
    count = 0
    while (written := here.take(0.0)) is not None:
        count += len(written.frames)
        body = wire(here, written)
        there.receive(DECODER.decode(body), len(body), 0.0)
    assert count == 16
    here.receive(DECODER.decode(wire(there, None)), 0, 0.0)
    assert ids(carry(here, there)) == list(range(16, 40))


def test_acknowledgements_are_due_by_frames_and_by_bytes() -> None:
    limits = LinkLimits(ack_every_frames=3, ack_every_bytes=1_000)
    here, there = pair(limits)
    here.push(reply(1))
    body = wire(here, here.take(0.0))
    there.receive(DECODER.decode(body), 10, 0.0)
    assert (there.ack_waits, there.ack_is_due) == (True, False)
    for number in (2, 3):
        here.push(reply(number))
    there.receive(DECODER.decode(wire(here, here.take(0.0))), 10, 0.0)
    assert (there.ack_waits, there.ack_is_due) == (True, True)
    there.batch(None, 0)
    assert (there.ack_waits, there.ack_is_due) == (False, False)
    here.push(reply(4, 2_000))
    there.receive(DECODER.decode(wire(here, here.take(0.0))), 2_000, 0.0)
    assert there.ack_is_due


def test_a_session_that_ends_tells_never_written_from_unknown() -> None:
    here, there = pair()
    here.push(request(1))
    body = wire(here, here.take(0.0))
    there.receive(DECODER.decode(body), len(body), 0.0)
    here.receive(DECODER.decode(wire(there, None)), 0, 0.0)  # acknowledged: the runtime knows that it arrived
    here.push(request(2))
    here.take(0.0)
    here.push(request(3, 1_500))
    here.take(0.0)  # the first of two pieces
    here.push(request(4))
    left = here.end()
    assert ids(left.unknown) == [2]
    assert sorted(ids(left.unsent)) == [3, 4]
    assert here.idle


def test_a_large_frame_is_unknown_once_its_last_piece_was_written() -> None:
    here, _ = pair()
    here.push(request(1, 1_500))
    here.take(0.0)
    here.take(0.0)
    assert ids(here.end().unknown) == [1]


def test_on_written_comes_with_the_batch_that_holds_the_last_piece() -> None:
    here, _ = pair()
    called: list[int] = []
    here.push(request(1, 1_500), on_written=lambda: called.append(1))
    first, second = here.take(0.0), here.take(0.0)
    assert first is not None
    assert second is not None
    assert first.on_written == []
    assert len(second.on_written) == 1


def test_missing_frames_are_noticed() -> None:
    here, there = pair()
    here.push(reply(1))
    here.take(0.0)
    here.push(reply(2))
    with pytest.raises(Gap, match="frames 1 to 1"):
        there.receive(DECODER.decode(wire(here, here.take(0.0))), 0, 0.0)


def test_an_acknowledgement_of_frames_that_were_never_written_breaks_the_session() -> None:
    here, _ = pair()
    with pytest.raises(SessionBroken):
        here.receive(Batch(1, 5, 0), 0, 0.0)
