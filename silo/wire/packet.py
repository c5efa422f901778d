"""The one message of a link's gRPC stream, `Packet` of protos/silo/wire/v1/link.proto, written and read by hand.

It has one field of bytes, so its form is a tag, a length and the body. Making and taking apart the generated class took
4 % of a call between silos, and copied the body twice on each side; a test holds the two forms to each other.
"""

from __future__ import annotations

from typing import Final

from silo.wire.v1.link_pb2 import Packet

_TAG: Final = b"\x0a"
"""Field 1, length-delimited."""
_MORE: Final = 0x80


def packed(body: bytes) -> bytes:
    """The message around a body."""
    length = len(body)
    if length < _MORE:
        return b"\x0a%c%b" % (length, body)
    head = bytearray(_TAG)
    while length >= _MORE:
        head.append(length & 0x7F | _MORE)
        length >>= 7
    head.append(length)
    return b"%b%b" % (bytes(head), body)


def unpacked(message: bytes) -> bytes | memoryview:
    """The body of a message. Raises ValueError for bytes that are no such message."""
    if message[:1] == _TAG:
        length = shift = 0
        at = 1
        for byte in message[1:6]:
            at += 1
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < _MORE:
                if at + length == len(message):
                    return memoryview(message)[at:]
                break
    return _read_by_the_book(message)


def _read_by_the_book(message: bytes) -> bytes:
    """The rest: a field that a later release appends, or bytes that are no message."""
    from google.protobuf.message import DecodeError

    try:
        return Packet.FromString(message).body
    except DecodeError as error:
        raise ValueError(f"not a packet: {error}") from None
