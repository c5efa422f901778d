"""The message around a body, written by hand: the same bytes as the generated class writes, and as safe to read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from silo.wire.packet import packed, unpacked
from silo.wire.v1.link_pb2 import Packet


@pytest.mark.parametrize("size", [0, 1, 127, 128, 129, 16_383, 16_384, 2_097_151, 2_097_152])
def test_a_packet_is_what_the_generated_class_writes_and_reads(size: int) -> None:
    body = bytes(index % 251 for index in range(min(size, 1000))).ljust(size, b"x")
    message = packed(body)
    if size:  # the generated class leaves an empty field out, and reads it as the same
        assert message == Packet(body=body).SerializeToString()
    assert Packet.FromString(message).body == body
    assert bytes(unpacked(message)) == body
    assert bytes(unpacked(Packet(body=body).SerializeToString())) == body


@given(st.binary(max_size=300), st.binary(max_size=20))
def test_a_field_that_a_later_release_appends_is_passed_over(body: bytes, surplus: bytes) -> None:
    message = Packet(body=body).SerializeToString() + b"\x12%c%b" % (len(surplus), surplus)
    assert bytes(unpacked(message)) == body


@given(st.binary(max_size=40))
def test_any_bytes_are_read_as_the_generated_class_reads_them_or_refused(message: bytes) -> None:
    try:
        expected = Packet.FromString(message).body
    except Exception:
        with pytest.raises(ValueError, match="not a packet"):
            unpacked(message)
    else:
        assert bytes(unpacked(message)) == expected
