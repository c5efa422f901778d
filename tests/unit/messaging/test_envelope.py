"""R-465: orders for many grains go in one frame, within its bounds, and arrive as the requests that they are."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from silo.directory.addresses import GrainId
from silo.messaging.envelope import EnvelopeTooLarge, requests_of
from silo.messaging.limits import ORDERS_BYTES_MAX, ORDERS_MAX, LinkLimits
from silo.messaging.session import Session
from silo.wire.frames import Batch, Flag, Frame, Order, Orders, Reply, Request

FRAMING_BYTES = 20
"""What a message has around its frames."""
DECODER = msgspec.msgpack.Decoder(Batch)


def order(number: int, payload: bytes = b"to b", *, key: str = "", reason: str = "migrate", trace: str = "") -> Request:
    grain = GrainId("room", key or str(number))
    return Request(number, grain, reason, payload, 1, None, "client-1", Flag.CONTROL, epoch=number, trace=trace)


def call(number: int) -> Request:
    return Request(number, GrainId("room", str(number)), "enter", b"", 1, None, "client-1")


def pair(limits: LinkLimits | None = None, *, knows: bool = True) -> tuple[Session, Session]:
    here, there = (Session(nonce, limits or LinkLimits()) for nonce in (b"here", b"there"))
    here.puts_orders_together = there.puts_orders_together = knows
    here.connected(b"there", 0)
    there.connected(b"here", 0)
    return here, there


class Sent:
    """What one session wrote, message by message, and what the other made of it."""

    def __init__(self, source: Session, target: Session, now: float = 0.0) -> None:
        self.messages: list[Batch] = []
        self.sizes: list[int] = []
        self.arrived: list[Frame] = []
        while (written := source.take(now)) is not None:
            body = msgspec.msgpack.encode(source.batch(written, 0))
            batch = DECODER.decode(body)
            self.messages.append(batch)
            self.sizes.append(len(body))
            self.arrived.extend(target.receive(batch, len(body), now))
            source.acknowledged(target.received)

    @property
    def frames(self) -> list[Frame]:
        return [frame for message in self.messages for frame in message.frames]

    @property
    def orders(self) -> list[Orders]:
        return [frame for frame in self.frames if isinstance(frame, Orders)]


def pushed(session: Session, *requests: Request) -> list[Request]:
    """Push copies: what is pushed belongs to the session."""
    for request in requests:
        session.push(msgspec.structs.replace(request))
    return list(requests)


def test_R465_orders_that_wait_together_leave_as_one_frame_and_arrive_as_they_were() -> None:
    here, there = pair()
    orders = pushed(here, *(order(number, trace=f"trace {number}") for number in range(1, 501)))
    sent = Sent(here, there)
    assert [len(envelope.calls) for envelope in sent.orders] == [500]
    assert len(sent.frames) == 1
    assert sent.arrived == orders


def test_an_order_alone_is_no_envelope() -> None:
    here, there = pair()
    orders = pushed(here, order(1))
    assert Sent(here, there).frames == orders


def test_R465_an_envelope_holds_no_more_than_a_thousand_orders() -> None:
    here, there = pair()
    orders = pushed(here, *map(order, range(1, 2_501)))
    sent = Sent(here, there)
    assert [len(envelope.calls) for envelope in sent.orders] == [ORDERS_MAX, ORDERS_MAX, 500]
    assert sent.arrived == orders


def test_R465_an_envelope_is_no_larger_than_its_bound_of_bytes() -> None:
    here, there = pair()
    orders = pushed(here, *(order(number, key=f"{number:0512}") for number in range(1, 1_001)))
    sent = Sent(here, there)
    assert max(len(msgspec.msgpack.encode(envelope)) for envelope in sent.orders) <= ORDERS_BYTES_MAX
    assert len(sent.orders) == 3
    assert sent.arrived == orders


def test_orders_that_differ_by_more_than_their_grain_do_not_share_an_envelope() -> None:
    here, there = pair()
    orders = pushed(
        here, order(1), order(2), order(3, b"to c"), order(4, b"to c"), order(5, reason="other"), order(6, b"to c")
    )
    sent = Sent(here, there)
    assert [len(envelope.calls) for envelope in sent.orders] == [2, 2]
    assert sent.arrived == orders


def test_an_order_overtakes_no_call_and_no_call_an_order() -> None:
    here, there = pair()
    requests = pushed(here, call(1), order(2), order(3), call(4), order(5), order(6), call(7))
    sent = Sent(here, there)
    assert sent.arrived == requests
    assert len(sent.orders) == 2


def test_a_peer_that_does_not_know_the_envelope_gets_each_order_in_a_frame_of_its_own() -> None:
    here, there = pair(knows=False)
    orders = pushed(here, *map(order, range(1, 301)))
    assert Sent(here, there).frames == orders


def test_an_order_that_was_withdrawn_or_has_expired_is_not_in_the_envelope() -> None:
    here, there = pair()
    outgoing = [here.push(order(number), deadline=1.0 if number in (1, 4) else 20.0) for number in range(1, 6)]
    assert here.withdraw(outgoing[1])
    sent = Sent(here, there, now=5.0)
    assert [(each.id, each.left_s) for each in sent.arrived if isinstance(each, Request)] == [(3, 15.0), (5, 15.0)]
    assert not here.withdraw(outgoing[2])


def test_orders_leave_with_the_time_left_when_they_are_written_and_again_when_they_are_resent() -> None:
    here, there = pair()
    here.push(order(1), deadline=10.0)
    here.push(order(2), deadline=20.0)
    here.take(1.0)  # and the connection is lost
    here.connected(b"there", 0)
    sent = Sent(here, there, now=4.0)
    assert [each.left_s for each in sent.arrived if isinstance(each, Request)] == [6.0, 16.0]


def test_orders_that_were_written_when_the_session_ended_are_told_one_by_one() -> None:
    here, _ = pair()
    pushed(here, order(1), order(2))
    here.take(0.0)
    pushed(here, order(3))
    left = here.end()
    assert [each.id for each in left.unknown if isinstance(each, Request)] == [1, 2]
    assert [each.id for each in left.unsent if isinstance(each, Request)] == [3]


def test_the_queue_of_a_link_counts_orders_and_not_envelopes() -> None:
    here, there = pair(LinkLimits(queue_requests_max=3))
    pushed(here, *map(order, (1, 2, 3)))
    Sent(here, there)
    pushed(here, *map(order, (4, 5, 6)))  # there is room again
    assert len(Sent(here, there).arrived) == 3


def test_an_order_that_must_tell_when_it_is_written_goes_alone() -> None:
    here, _ = pair()
    told: list[int] = []
    here.push(order(1))
    here.push(order(2), on_written=lambda: told.append(2))
    here.push(order(3))
    written = here.take(0.0)
    assert written is not None
    assert [type(frame) for frame in written.frames] == [Request] * 3
    for tell in written.on_written:
        tell()
    assert told == [2]


def test_an_envelope_beyond_its_bound_is_not_opened() -> None:
    calls = tuple(Order(number, GrainId("room", str(number)), None) for number in range(ORDERS_MAX + 1))
    too_large = Orders(calls, "migrate", b"", 1, "client-1", Flag.CONTROL)
    with pytest.raises(EnvelopeTooLarge, match="1001 orders"):
        list(requests_of(too_large))
    _, there = pair()
    with pytest.raises(EnvelopeTooLarge):
        there.receive(Batch(1, 0, 0, (too_large,)), 0, 0.0)


requests = st.lists(
    st.tuples(st.sampled_from([b"to b", b"to c"]), st.text("kø", min_size=1, max_size=200), st.booleans()) | st.none(),
    max_size=60,
)


@settings(deadline=None)
@given(requests, st.integers(200, 5_000), st.integers(1, 20), st.booleans())
def test_whatever_waits_arrives_whole_and_in_order_and_every_message_keeps_its_bounds(
    wanted: list[tuple[bytes, str, bool] | None], bytes_max: int, frames_max: int, knows: bool
) -> None:
    here, there = pair(LinkLimits(batch_bytes_max=bytes_max, batch_frames_max=frames_max), knows=knows)
    made = [
        call(number) if each is None else order(number, each[0], key=each[1], trace="trace" if each[2] else "")
        for number, each in enumerate(wanted, 1)
    ]
    expected: list[Frame] = list(pushed(here, *made))
    sent = Sent(here, there)
    assert sent.arrived == expected
    alone = max((len(msgspec.msgpack.encode(each)) for each in made), default=0)
    for message, size in zip(sent.messages, sent.sizes, strict=True):
        assert len(message.frames) <= frames_max
        assert size <= max(bytes_max, alone) + FRAMING_BYTES
    assert all(2 <= len(envelope.calls) <= ORDERS_MAX for envelope in sent.orders)
    assert knows or not sent.orders


def test_replies_do_not_wait_behind_an_envelope() -> None:
    here, there = pair()
    pushed(here, *map(order, range(1, 101)))
    here.push(Reply(1, 0))
    assert isinstance(Sent(here, there).frames[0], Reply)
