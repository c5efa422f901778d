"""The bytes on the wire, pinned: what older and newer processes of a cluster send each other.

A fixture that must change is a break of the wire contract. A field that is appended gets a new fixture beside the old
one, which must still be readable. `python -m tests.unit.messaging.test_golden_frames` writes those that are missing.
"""

from __future__ import annotations

from pathlib import Path
from typing import cast, get_args

import msgspec
import pytest

from silo.directory.addresses import Entry, GrainId, SiloAddress
from silo.messaging.greeting import (
    Goodbye,
    Hello,
    Message,
    Proof,
    Refusal,
    RefusalCode,
    Terms,
    Welcome,
    message_decoder,
    message_encoder,
)
from silo.wire.frames import (
    Admitted,
    Ask,
    AskAnswer,
    Batch,
    Cancel,
    Chunk,
    Claim,
    ClaimAnswer,
    Flag,
    Forwarded,
    Frame,
    Gateways,
    GoAway,
    Load,
    Offer,
    OfferAnswer,
    Opened,
    Order,
    Orders,
    Outcome,
    Reply,
    Request,
    Seek,
    SeekAnswer,
    Unsettled,
    Withdraw,
)

GOLDEN = Path(__file__).parents[2] / "golden" / "frames"
GRAIN = GrainId("room", "lobby")
ONE, TWO = SiloAddress("10.0.0.1:7000", 1_001), SiloAddress("10.0.0.2:7000", 2_002)
ENTRY = Entry(GRAIN, ONE, "activation-1", 7)

FRAMES: dict[str, Frame] = {
    "request": Request(1, GRAIN, "enter", b"\x93\x01\x02\x03", 1, 29.5, "client-1"),
    "request_full": Request(
        2,
        GRAIN,
        "enter",
        b"payload",
        1,
        None,
        "room/other",
        int(Flag.PLACED | Flag.FORWARDED),
        TWO,
        3,
        7,
        (("room/other", 1),),
        ENTRY,
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    ),
    "reply": Reply(1, Outcome.VALUE, b"\x01", 1),
    "reply_moved": Reply(1, Outcome.MOVED, entry=ENTRY),
    "cancel": Cancel(1, GRAIN, ONE),
    "forwarded": Forwarded(1, ONE, ENTRY, 2),
    "forwarded_to_be_placed": Forwarded(1, TWO),
    "admitted": Admitted(1, GRAIN),
    "claim": Claim(1, GRAIN, 2.5),
    "claim_answer_full": ClaimAnswer(1, False, True, 2.5),
    "ask": Ask(1, GRAIN, 1_024, {"grain": 1}),
    "ask_answer": AskAnswer(1, "cordoned"),
    "offer": Offer(1, ENTRY, "activation-2", b"state", "drain", "trace"),
    "offer_answer": OfferAnswer(1, ENTRY),
    "opened": Opened(1, "on_activate failed"),
    "withdraw": Withdraw(1),
    "load": Load(1_000, 0.25, 12, 512, 2_000),
    "gateways": Gateways(9, (ONE,), (TWO,)),
    "go_away": GoAway(),
    "chunk": Chunk(1, b"piece", False),
    "chunk_first": Chunk(1, b"piece", False, False, b"head", 1_000),
    "chunk_dropped": Chunk(1, b"", True, True),
    "orders": Orders(
        (Order(1, GRAIN, 29.5), Order(2, GrainId("room", "hall"), None, 7, "trace")),
        "migrate",
        b"order",
        1,
        "client-1",
        int(Flag.CONTROL),
        TWO,
        1,
        (("room/other", 1),),
        2,
    ),
    "seek": Seek(GRAIN),
    "seek_answer": SeekAnswer(GRAIN, ENTRY),
    "unsettled": Unsettled("run-1", {7: "life", 255: "other"}),
}
MESSAGES: dict[str, Message] = {
    **{f"batch_{name}": Batch(5, 4, 3, (frame,)) for name, frame in FRAMES.items()},
    "batch_empty": Batch(5, 4, 3),
    "hello": Hello(
        1, 1, ("feature",), "prod", str(ONE), "silo", ONE, "1.0", TWO, True, bytes(range(16)), bytes(16), b"last"
    ),
    "welcome": Welcome(
        message_encoder.encode(
            Terms(1, ("feature",), str(TWO), TWO, "1.0", bytes(range(16)), bytes(16), 4, "a:7001", "7-0a.sock")
        ),
        bytes(32),
    ),
    "refusal": Refusal(RefusalCode.TOKEN, "no"),
    "proof": Proof(4, bytes(32)),
    "goodbye": Goodbye(RefusalCode.CLOSING, "closing", 4),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_has_the_bytes_that_were_agreed(name: str) -> None:
    golden = bytes.fromhex((GOLDEN / f"{name}.hex").read_text())
    assert message_encoder.encode(MESSAGES[name]) == golden
    assert message_decoder.decode(golden) == MESSAGES[name]


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.hex")), ids=lambda path: path.stem)
def test_a_message_of_an_older_version_is_read_though_it_lacks_the_newest_fields(path: Path) -> None:
    golden = bytes.fromhex(path.read_text())
    fields, known = (msgspec.msgpack.decode(each) for each in (golden, message_encoder.encode(_decoded(golden))))
    assert _begins_with(known, fields)


def _decoded(golden: bytes) -> Message:
    return message_decoder.decode(golden)


def _begins_with(known: object, fields: object) -> bool:
    """Whether a list begins with these fields, and so on for the lists in it."""
    if not isinstance(known, list) or not isinstance(fields, list):
        return known == fields
    there, wanted = cast("list[object]", known), cast("list[object]", fields)
    return len(there) >= len(wanted) and all(map(_begins_with, there, wanted))


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_of_a_newer_version_is_read_without_its_surplus_fields(name: str) -> None:
    golden = bytes.fromhex((GOLDEN / f"{name}.hex").read_text())
    known = message_decoder.decode(golden)
    fields = [*msgspec.msgpack.decode(golden), "surplus"]
    if isinstance(known, Batch):
        fields[4] = [[*frame, "surplus"] for frame in fields[4]]
    assert message_decoder.decode(msgspec.msgpack.encode(fields)) == known


@pytest.mark.parametrize("name", ["request", "request_full", "forwarded", "forwarded_to_be_placed"])
def test_a_frame_of_a_version_before_legs_is_read_as_on_its_first(name: str) -> None:
    golden = bytes.fromhex((GOLDEN / f"batch_{name}_before_legs.hex").read_text())
    read = message_decoder.decode(golden)
    assert isinstance(read, Batch)
    assert [getattr(frame, "leg", None) for frame in read.frames] == [0]
    assert read.frames == tuple(msgspec.structs.replace(FRAMES[name], leg=0) for _ in read.frames)


def test_a_welcome_of_a_version_before_the_direct_lane_offers_none() -> None:
    read = message_decoder.decode(bytes.fromhex((GOLDEN / "welcome_before_direct.hex").read_text()))
    assert isinstance(read, Welcome)
    assert msgspec.msgpack.decode(read.terms, type=Terms).direct == ""


def test_a_welcome_of_a_version_before_sockets_offers_none() -> None:
    read = message_decoder.decode(bytes.fromhex((GOLDEN / "welcome_before_local.hex").read_text()))
    assert isinstance(read, Welcome)
    terms = msgspec.msgpack.decode(read.terms, type=Terms)
    assert (terms.direct, terms.local) == ("a:7001", "")


def test_a_load_of_a_version_before_capacity_is_read_as_of_a_silo_that_has_no_bound() -> None:
    read = message_decoder.decode(bytes.fromhex((GOLDEN / "batch_load_before_capacity.hex").read_text()))
    assert isinstance(read, Batch)
    assert read.frames == (Load(1_000, 0.25, 0, 0, 0),)


def test_every_kind_of_frame_has_a_fixture() -> None:
    assert {type(frame) for frame in FRAMES.values()} == set(get_args(Frame))
    assert {path.stem for path in GOLDEN.glob("*.hex")} >= set(MESSAGES)


if __name__ == "__main__":
    for missing, message in MESSAGES.items():
        target = GOLDEN / f"{missing}.hex"
        if not target.exists():
            target.write_text(message_encoder.encode(message).hex() + "\n")
