"""A payload is read back whole or refused whole."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from silo.directory.addresses import GrainId
from silo.migration.lifecycle import Arrival, Departure
from silo.migration.participants import NOTHING
from silo.migration.payload import (
    PAYLOAD_ENTRIES_MAX,
    Payload,
    PayloadEntry,
    PayloadRejected,
    dehydrate,
    pack,
    refusals,
    schemas,
    unpack,
)

GOLDEN = Path(__file__).parents[2] / "golden" / "migration"


def entry(name: str, body: bytes, schema: int = 1) -> PayloadEntry:
    return PayloadEntry(name, schema, 1, len(body), zlib.crc32(body), body)


def a_payload(*entries: PayloadEntry) -> Payload:
    return Payload(
        1,
        GrainId("room", "lobby"),
        41,
        "silo_stopping",
        3,
        "2.4.0",
        "3.11",
        entries or (entry("grain", b"\x80"), entry("soft_state/taken", b"\x91\xa3ada", 2)),
        12.5,
        3600.0,
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    )


def test_the_golden_payload_is_written_and_read_as_ever() -> None:
    golden = bytes.fromhex((GOLDEN / "payload-1.hex").read_text())
    assert unpack(golden) == a_payload()
    assert pack(a_payload()) == golden


def test_a_payload_tells_the_grain_where_it_comes_from() -> None:
    assert unpack(pack(a_payload())).arrival == Arrival("silo_stopping", 3, "2.4.0")


def test_surplus_fields_of_a_later_release_are_ignored() -> None:
    fields: list[Any] = msgspec.msgpack.decode(pack(a_payload()))
    assert unpack(msgspec.msgpack.encode([*fields, "later", {"than": "this"}])) == a_payload()


def test_S007_an_unknown_format_is_named_whatever_else_it_holds() -> None:
    with pytest.raises(PayloadRejected, match="payload format 2 is not known here; this silo reads format 1"):
        unpack(msgspec.msgpack.encode([2, {"all": "different"}]))


@pytest.mark.parametrize(
    "damaged",
    [
        PayloadEntry("grain", 1, 1, 2, zlib.crc32(b"\x80"), b"\x80"),
        PayloadEntry("grain", 1, 1, 1, zlib.crc32(b"\x81"), b"\x80"),
    ],
    ids=["size", "checksum"],
)
def test_a_damaged_entry_is_named(damaged: PayloadEntry) -> None:
    with pytest.raises(PayloadRejected, match="'grain' was damaged on the way"):
        unpack(pack(a_payload(damaged)))


def test_two_entries_of_one_name_are_refused() -> None:
    with pytest.raises(PayloadRejected, match="two entries are named 'grain'"):
        unpack(pack(a_payload(entry("grain", b"a"), entry("grain", b"b"))))


def test_size_and_count_are_bounded_on_both_sides() -> None:
    body = pack(a_payload())
    with pytest.raises(PayloadRejected, match=f"{len(body)} bytes; 10 are allowed"):
        unpack(body, bytes_max=10)
    with pytest.raises(PayloadRejected, match="payload of room/lobby has"):
        pack(a_payload(), bytes_max=10)
    many = a_payload(*(entry(f"participant/{number}", b"") for number in range(PAYLOAD_ENTRIES_MAX + 1)))
    with pytest.raises(PayloadRejected, match="at most"):
        pack(many)
    with pytest.raises(PayloadRejected, match="at most"):
        unpack(msgspec.msgpack.encode(many))


class Sized:
    """A part that hands over so many bytes."""

    skippable = True
    schema = 1

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self.size = size

    def dehydrate(self, departure: Departure) -> object:
        return b"x" * self.size if self.size else NOTHING

    def rehydrate(self, value: object, schema: int, arrival: Arrival) -> None: ...


class Bytes:
    """Bytes as they are."""

    def encode(self, value: Any) -> tuple[bytes, int]:
        return value, 1

    def decode(self, payload: bytes, codec: int) -> object:
        return payload


def test_soft_state_that_is_too_large_is_refused_as_soon_as_it_is_known_even_under_skip() -> None:
    with pytest.raises(PayloadRejected, match=r"larger than 100 bytes: passed at participant/b, which has 60"):
        dehydrate(
            [Sized("participant/a", 60), Sized("participant/b", 60)],
            Bytes(),
            Departure(),
            skip_failing=True,
            bytes_max=100,
        )


def test_a_target_can_be_asked_about_schemas_before_anything_stops() -> None:
    mine = [Sized("grain", 0), Sized("participant/a", 0)]
    assert refusals(schemas(mine), schemas(mine)) == []
    refused = refusals(schemas(mine), {"grain": 2, "participant/z": 1, "participant/a": 1})
    assert [each.part for each in refused] == ["grain", "participant/z"]


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_refused_in_one_way(body: bytes) -> None:
    with pytest.raises(PayloadRejected):
        unpack(body)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_damage_anywhere_is_refused_or_leaves_entries_intact(data: st.DataObject) -> None:
    body = bytearray(pack(a_payload()))
    place = data.draw(st.integers(0, len(body) - 1))
    body[place] ^= data.draw(st.integers(1, 255))
    try:
        read = unpack(bytes(body))
    except PayloadRejected:
        return
    assert [each.body for each in read.entries] == [each.body for each in a_payload().entries]


def test_bottomless_nesting_is_refused() -> None:
    with pytest.raises(PayloadRejected):
        unpack(b"\x91" * 100_000)
