"""What leases say to each other over TCP: whole, in order, proved; and whatever else comes in is refused."""

from __future__ import annotations

import selectors
import socket
import struct
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

import pytest

from silo.directory.addresses import SiloAddress
from silo.directory.lease_messages import (
    Acknowledgement,
    Assent,
    AssentAsked,
    Forward,
    Forwarded,
    LeaseMessage,
    Probe,
)
from silo.directory.lease_wire import CHALLENGE_BYTES, FRAME_BYTES_MAX, INCOMING_MAX, LeaseWire, Seal
from silo.directory.membership import Renew, SiloInfo, SiloRow, SiloStatus, Table, TableAnswer, TableStatus, Verdict
from silo.directory.names import HostNames

ONE, TWO = SiloAddress("10.0.0.1:7000", 1), SiloAddress("10.0.0.2:7000", 2**62)
WITHIN_S = 10.0
KEY = b"k" * 32
VERDICT = Verdict(TWO, "run", 7, 9)
ROW = SiloRow(ONE, SiloInfo("one", lease_endpoint="h:1"), SiloStatus.ACTIVE, 3, 2, 1)
MESSAGES: list[LeaseMessage] = [
    Probe(1.5),
    Acknowledgement(2.5),
    AssentAsked(VERDICT),
    Assent(VERDICT),
    Forward(3.5, Renew(ONE, 2, 3)),
    Forwarded(4.5, Renew(ONE, 2, 3), TableAnswer(TableStatus.STALE, Table("run", 7, (ROW,) * 1000))),
]


class End:
    """One silo's lease wire, driven by the test."""

    def __init__(
        self, me: SiloAddress, *, key: bytes | None = KEY, cluster: str = "c", host: str = "127.0.0.1"
    ) -> None:
        self.wire = LeaseWire(listen=host, port=0, advertise=host, cluster=cluster, key=key, patience_s=1.0)
        self.heard: list[tuple[SiloAddress, LeaseMessage]] = []
        self.selector = selectors.DefaultSelector()
        self.wire.start(me, self.selector, lambda peer, message: self.heard.append((peer, message)))

    def step(self) -> None:
        for key, _ in self.selector.select(0.01):
            key.data()

    def say(self, receiver: SiloAddress, to: End, message: LeaseMessage) -> None:
        self.wire.send(receiver, to.wire.endpoint, message, time.monotonic())

    def close(self) -> None:
        self.wire.close()
        self.selector.close()


@contextmanager
def ends(*ends: End) -> Generator[tuple[End, ...]]:
    try:
        yield ends
    finally:
        for end in ends:
            end.close()


def until(condition: Callable[[], bool], *ends: End) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < deadline, "nothing came of it"
        for end in ends:
            end.step()


@pytest.mark.parametrize("key", [KEY, None], ids=["token", "no_token"])
@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_every_message_arrives_whole_and_in_order(key: bytes | None, host: str) -> None:
    with ends(End(ONE, key=key, host=host), End(TWO, key=key, host=host)) as (one, two):
        names = HostNames()
        until(lambda: names.address(host, 1) is not None)
        one.say(TWO, two, MESSAGES[0])
        deadline = time.monotonic() + WITHIN_S
        while not two.heard:  # a name is looked up first, and what was to be sent meanwhile is lost
            assert time.monotonic() < deadline
            one.say(TWO, two, MESSAGES[0])
            one.step()
            two.step()
        count = len(two.heard)
        for message in MESSAGES:
            one.say(TWO, two, message)
        last = (ONE, MESSAGES[-1])
        until(lambda: two.heard[-1] == last, one, two)
        assert two.heard[-len(MESSAGES) :] == [(ONE, message) for message in MESSAGES]
        assert len(two.heard) >= count


@pytest.mark.parametrize(
    "stranger",
    [lambda: End(ONE, key=b"another"), lambda: End(ONE, key=None), lambda: End(ONE, cluster="other")],
    ids=["wrong_token", "no_token", "wrong_cluster"],
)
def test_a_stranger_is_not_heard(stranger: Callable[[], End]) -> None:
    with ends(stranger(), End(TWO)) as (one, two):
        one.say(TWO, two, MESSAGES[0])
        until(lambda: bool(two.wire.incoming), one, two)
        until(lambda: not two.wire.incoming, one, two)
        assert two.heard == []


def test_another_incarnation_on_the_same_port_is_not_taken_for_the_one_dialled() -> None:
    with ends(End(ONE), End(TWO)) as (one, two):
        one.say(SiloAddress(TWO.endpoint, 1), two, MESSAGES[0])
        until(lambda: bool(two.wire.incoming), one, two)
        until(lambda: not two.wire.incoming, one, two)
        assert two.heard == []


def test_a_frame_that_was_recorded_proves_nothing_again() -> None:
    recorded = Seal(KEY, b"c").close(b"body")
    assert Seal(KEY, b"c").open(recorded[4:]) == b"body"
    replayed = Seal(KEY, b"c")
    replayed.open(recorded[4:])
    for seal in (replayed, Seal(KEY, b"another challenge")):
        with pytest.raises(ValueError, match="token"):
            seal.open(recorded[4:])


@pytest.mark.parametrize(
    "bytes_", [struct.pack(">I", FRAME_BYTES_MAX + 1), struct.pack(">I", 3) + b"abc"], ids=["too_long", "nonsense"]
)
@pytest.mark.parametrize("key", [KEY, None], ids=["token", "no_token"])
def test_bytes_that_are_no_frames_end_the_connection(bytes_: bytes, key: bytes | None) -> None:
    with ends(End(TWO, key=key)) as (two,):
        host, port = two.wire.endpoint.split(":")
        with socket.create_connection((host, int(port))) as stranger:
            until(lambda: bool(two.wire.incoming), two)
            stranger.sendall(bytes_)
            until(lambda: not two.wire.incoming, two)
            assert len(stranger.recv(CHALLENGE_BYTES)) == CHALLENGE_BYTES
            assert stranger.recv(1) == b""


def test_a_peer_that_went_away_is_dialled_anew_and_one_that_is_no_member_is_let_go() -> None:
    one, two = End(ONE), End(TWO)
    one.say(TWO, two, Probe(1.0))
    until(lambda: two.heard == [(ONE, Probe(1.0))], one, two)
    two.wire.incoming[0].close("test")
    until(lambda: not two.wire.incoming, one, two)
    deadline = time.monotonic() + WITHIN_S
    while two.heard[-1] != (ONE, Probe(2.0)):
        assert time.monotonic() < deadline
        one.say(TWO, two, Probe(2.0))
        one.step()
        two.step()
    assert len(two.wire.incoming) == 1
    one.wire.forget_all_but(set())
    until(lambda: not two.wire.incoming, one, two)
    with ends(one, two):
        assert INCOMING_MAX > 0


def test_a_name_that_is_nobodys_is_never_waited_for() -> None:
    names = HostNames()
    started = time.monotonic()
    assert names.address("nobody.invalid", 1) is None
    assert time.monotonic() - started < 1.0
