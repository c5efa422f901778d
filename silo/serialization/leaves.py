"""Leaf values: those that one MessagePack extension holds whole, without walking into them."""

from __future__ import annotations

import datetime as dt
import decimal
import fractions
import ipaddress
import pathlib
import re
import struct
import uuid
import zoneinfo
from collections.abc import Callable
from typing import Any, Final, cast

import msgspec
from msgspec.msgpack import Decoder, Ext

from silo.directory.addresses import Entry, GrainId, SiloAddress
from silo.directory.errors import SerializationError
from silo.serialization.tags import Leaf

FRACTION_BITS_MAX: Final = 65_536
"""The longest numerator or denominator of a Fraction, in bits: reducing one on arrival takes quadratic time."""

_ZONE_KEY: Final = re.compile(r"[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*")
"""Keys of the time zone database. Dots are not among them, so that no key leads out of it."""

_Zone = tuple[int, str | None] | str | None
"""A fixed offset in microseconds and its name, the key of a ZoneInfo, or none."""

_encode: Final = msgspec.msgpack.Encoder().encode
_decode_datetime: Final = Decoder(tuple[int, int, int, int, int, int, int, int, _Zone]).decode
_decode_time: Final = Decoder(tuple[int, int, int, int, int, _Zone]).decode
_decode_date: Final = Decoder(tuple[int, int, int]).decode
_decode_timezone: Final = Decoder(tuple[int, str | None]).decode
_decode_grain_id: Final = Decoder(GrainId).decode
_decode_silo_address: Final = Decoder(SiloAddress).decode
_decode_entry: Final = Decoder(Entry).decode

_MICROSECOND: Final = dt.timedelta(microseconds=1)


def _pack_timezone(zone: dt.timezone) -> tuple[int, str | None]:
    offset, name = zone.utcoffset(None), zone.tzname(None)
    return offset // _MICROSECOND, None if name == dt.timezone(offset).tzname(None) else name


def _unpack_timezone(parts: tuple[int, str | None]) -> dt.timezone:
    offset = dt.timedelta(microseconds=parts[0])
    return dt.timezone(offset) if parts[1] is None else dt.timezone(offset, parts[1])


def _pack_zone(zone: dt.tzinfo | None) -> _Zone:
    if zone is None:
        return None
    if type(zone) is dt.timezone:
        return _pack_timezone(zone)
    if type(zone) is zoneinfo.ZoneInfo:
        return _zone_key(zone)
    raise SerializationError(
        f"a time zone of class {type(zone).__module__}.{type(zone).__qualname__} cannot be sent; "
        "use zoneinfo.ZoneInfo or datetime.timezone"
    )


def _unpack_zone(parts: _Zone) -> dt.tzinfo | None:
    if parts is None:
        return None
    return _zone_info(parts) if isinstance(parts, str) else _unpack_timezone(parts)


def _zone_key(zone: zoneinfo.ZoneInfo) -> str:
    key = cast("str | None", zone.key)  # None for one read from a file, whatever the stubs say
    if key is None:
        raise SerializationError(
            "a ZoneInfo read from a file without a key cannot be sent; build it with ZoneInfo(key)"
        )
    return key


def _zone_info(key: str) -> zoneinfo.ZoneInfo:
    if not _ZONE_KEY.fullmatch(key):
        raise SerializationError(f"{key[:100]!r} is not the key of a time zone")
    try:
        return zoneinfo.ZoneInfo(key)
    except zoneinfo.ZoneInfoNotFoundError as error:
        raise SerializationError(
            f"time zone {key!r} is not known here; install the system's time zone database or the tzdata package"
        ) from error


def _big_int(value: int) -> Ext:
    return Ext(Leaf.BIG_INT, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))


def _fraction(value: fractions.Fraction) -> Ext:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > FRACTION_BITS_MAX:
        raise SerializationError(f"a Fraction with more than {FRACTION_BITS_MAX} bits on one side cannot be sent")
    return Ext(Leaf.FRACTION, f"{value.numerator:x}/{value.denominator:x}".encode())


def _to_fraction(data: memoryview) -> fractions.Fraction:
    numerator, denominator = _hex_ints(data, 2, FRACTION_BITS_MAX // 4 + 1)
    return fractions.Fraction(numerator, denominator)


def _range(value: range) -> Ext:
    return Ext(Leaf.RANGE, f"{value.start:x}/{value.stop:x}/{value.step:x}".encode())


def _to_range(data: memoryview) -> range:
    start, stop, step = _hex_ints(data, 3)
    return range(start, stop, step)


def _hex_ints(data: memoryview, count: int, digits_max: int | None = None) -> list[int]:
    parts = str(data, "ascii").split("/")
    if len(parts) != count or (digits_max is not None and max(map(len, parts)) > digits_max + 1):
        raise ValueError(f"expected {count} integers of bounded size")
    return [int(part, 16) for part in parts]


def _datetime(value: dt.datetime) -> Ext:
    clock = (value.year, value.month, value.day, value.hour, value.minute, value.second, value.microsecond)
    return Ext(Leaf.DATETIME, _encode((*clock, value.fold, _pack_zone(value.tzinfo))))


def _to_datetime(data: memoryview) -> dt.datetime:
    year, month, day, hour, minute, second, microsecond, fold, zone = _decode_datetime(data)
    return dt.datetime(year, month, day, hour, minute, second, microsecond, _unpack_zone(zone), fold=fold)


def _time(value: dt.time) -> Ext:
    clock = (value.hour, value.minute, value.second, value.microsecond, value.fold)
    return Ext(Leaf.TIME, _encode((*clock, _pack_zone(value.tzinfo))))


def _to_time(data: memoryview) -> dt.time:
    hour, minute, second, microsecond, fold, zone = _decode_time(data)
    return dt.time(hour, minute, second, microsecond, _unpack_zone(zone), fold=fold)


def _checked(grain: GrainId) -> GrainId:
    return GrainId.of(grain.kind, grain.key)


def grain_id_bytes(grain: GrainId) -> bytes:
    """A checked grain identity as the bytes of a leaf."""
    return _encode(_checked(grain))


def to_grain_id(data: memoryview) -> GrainId:
    """The grain identity in the bytes of a leaf, checked."""
    return _checked(_decode_grain_id(data))


def _entry(value: Entry) -> Ext:
    _checked(value.grain)
    return Ext(Leaf.ENTRY, _encode(value))


def _to_entry(data: memoryview) -> Entry:
    entry = _decode_entry(data)
    _checked(entry.grain)
    return entry


def text_bytes(value: str) -> bytes:
    """Any text as bytes, lone surrogates included."""
    return value.encode("utf-8", "surrogatepass")


def _to_text(data: memoryview) -> str:
    return str(data, "utf-8", "surrogatepass")


def int_leaf(value: int) -> int | Ext:
    """An integer as MessagePack holds it, or as a leaf where it has more than 64 bits."""
    return value if -(2**63) <= value < 2**64 else _big_int(value)


def text_leaf(value: str) -> str | Ext:
    """Text as MessagePack holds it, or as a leaf where it has lone surrogates."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return Ext(Leaf.TEXT, text_bytes(value))
    return value


LEAF_ENCODERS: Final[dict[type, Callable[[Any], object]]] = {
    int: int_leaf,
    str: text_leaf,
    bytearray: lambda value: Ext(Leaf.BYTEARRAY, value),
    complex: lambda value: Ext(Leaf.COMPLEX, struct.pack(">dd", value.real, value.imag)),
    dt.datetime: _datetime,
    dt.date: lambda value: Ext(Leaf.DATE, _encode((value.year, value.month, value.day))),
    dt.time: _time,
    dt.timedelta: lambda value: Ext(Leaf.TIMEDELTA, _encode((value.days, value.seconds, value.microseconds))),
    dt.timezone: lambda value: Ext(Leaf.TIMEZONE, _encode(_pack_timezone(value))),
    zoneinfo.ZoneInfo: lambda value: Ext(Leaf.ZONE_INFO, _zone_key(value).encode()),
    uuid.UUID: lambda value: Ext(Leaf.UUID, value.bytes),
    decimal.Decimal: lambda value: Ext(Leaf.DECIMAL, str(value).encode()),
    fractions.Fraction: _fraction,
    range: _range,
    GrainId: lambda value: Ext(Leaf.GRAIN_ID, grain_id_bytes(value)),
    SiloAddress: lambda value: Ext(Leaf.SILO_ADDRESS, _encode(value)),
    Entry: _entry,
    pathlib.PurePosixPath: lambda value: Ext(Leaf.PURE_POSIX_PATH, text_bytes(str(value))),
    pathlib.PosixPath: lambda value: Ext(Leaf.POSIX_PATH, text_bytes(str(value))),
    ipaddress.IPv4Address: lambda value: Ext(Leaf.IPV4, value.packed),
    ipaddress.IPv6Address: lambda value: Ext(Leaf.IPV6, str(value).encode()),
}
"""How each leaf class is written, and the scalars that need a look. Dispatch is by exact class."""

LEAF_DECODERS: Final[dict[int, Callable[[memoryview], object]]] = {
    Leaf.BIG_INT: lambda data: int.from_bytes(data, "big", signed=True),
    Leaf.TEXT: _to_text,
    Leaf.BYTEARRAY: bytearray,
    Leaf.COMPLEX: lambda data: complex(*struct.unpack(">dd", data)),
    Leaf.DATETIME: _to_datetime,
    Leaf.DATE: lambda data: dt.date(*_decode_date(data)),
    Leaf.TIME: _to_time,
    Leaf.TIMEDELTA: lambda data: dt.timedelta(*_decode_date(data)),
    Leaf.TIMEZONE: lambda data: _unpack_timezone(_decode_timezone(data)),
    Leaf.ZONE_INFO: lambda data: _zone_info(str(data, "ascii")),
    Leaf.UUID: lambda data: uuid.UUID(bytes=bytes(data)),
    Leaf.DECIMAL: lambda data: decimal.Decimal(str(data, "ascii")),
    Leaf.FRACTION: _to_fraction,
    Leaf.RANGE: _to_range,
    Leaf.GRAIN_ID: to_grain_id,
    Leaf.SILO_ADDRESS: _decode_silo_address,
    Leaf.ENTRY: _to_entry,
    Leaf.PURE_POSIX_PATH: lambda data: pathlib.PurePosixPath(_to_text(data)),
    Leaf.POSIX_PATH: lambda data: pathlib.PosixPath(_to_text(data)),
    Leaf.IPV4: lambda data: ipaddress.IPv4Address(bytes(data)),
    Leaf.IPV6: lambda data: ipaddress.IPv6Address(str(data, "ascii")),
}
"""How each leaf is read. Any exception that one raises means that the payload is damaged."""
