"""Payloads of the first release stay readable, and are written the same way today: tests/golden/payloads.

`python -m tests.unit.serialization.test_golden_payloads` writes missing files and changes none that exists.
"""

from __future__ import annotations

import collections
import datetime as dt
import decimal
import fractions
import ipaddress
import pathlib
import uuid
import zoneinfo
from typing import Any

import numpy as np
import pytest

from silo.directory.addresses import Entry, GrainId, SiloAddress
from silo.serialization.exceptions import RemoteError
from silo.serialization.serializer import Codec
from tests.unit.serialization.vocabulary import (
    Captain,
    Color,
    OutOfStock,
    Pair,
    Player,
    Reference,
    Right,
    Spot,
    Tick,
    same,
    serializer,
)

FOLDER = pathlib.Path(__file__).parents[2] / "golden" / "payloads"
SERIALIZER = serializer()
LOBBY = GrainId.of("room", "lobby")
NOON = dt.datetime(2026, 1, 2, 12, 0, 0, 5, tzinfo=dt.UTC)

VALUES: dict[str, Any] = {
    "scalars": [None, True, 0, -1, 2**64 - 1, 1.5, "ada", b"\0\xff"],
    "big-int": [2**64, -(2**80)],
    "surrogate": "\ud800x",
    "containers": [(1, (2,)), {3}, frozenset({4}), {"a": [1]}, {5: 6}, {(7, 8): 9, None: True}, bytearray(b"xy")],
    "collections": [collections.deque([1], 3), collections.OrderedDict(a=1), collections.Counter("aa")],
    "defaultdict": collections.defaultdict(list, a=[1]),
    "times": [NOON, NOON.date(), NOON.timetz(), dt.timedelta(-1, 2, 3), dt.UTC, zoneinfo.ZoneInfo("Europe/Berlin")],
    "datetime": NOON.replace(tzinfo=zoneinfo.ZoneInfo("Europe/Berlin"), fold=1),
    "timezone": dt.timezone(dt.timedelta(hours=-3, microseconds=1), "odd"),
    "numbers": [1j, decimal.Decimal("-1.10"), fractions.Fraction(-1, 3), range(1, 10, 2)],
    "identities": [uuid.UUID(int=7), LOBBY, SiloAddress("h:1", 2), Entry(LOBBY, SiloAddress("h:1", 2), "a", 3)],
    "addresses": [ipaddress.ip_address("10.0.0.1"), ipaddress.ip_address("::1")],
    "paths": [pathlib.PurePosixPath("/a"), pathlib.PosixPath("b")],
    "enums": [Color.RED, Right.READ | Right.WRITE],
    "objects": [Player("ada", 1, ["t"]), Spot(1, 2), Captain(name="bob", team=None), Pair(1), Tick(2, "x")],
    "classes": [int, Player],
    "reference": Reference(LOBBY, "receiver"),
    "error": OutOfStock(item="nut", left=1),
    "remote-error": RemoteError("shop.Broken", "it broke"),
    "array": np.array([[1, 2], [3, 4]], "<i2"),
    "array-structured": np.array([(1, 2.5)], [("a", "<i2"), ("b", ">f8")]),
    "array-scalar": np.float32(1.5),
}


def read(name: str) -> bytes:
    return bytes.fromhex((FOLDER / f"{name}.hex").read_text())


@pytest.mark.parametrize("name", VALUES)
def test_a_payload_of_the_first_release_is_read_and_written_as_it_was(name: str) -> None:
    payload = read(name)
    assert alike(SERIALIZER.decode(payload, Codec.PLAIN), VALUES[name])
    assert SERIALIZER.encode(VALUES[name]) == (payload, Codec.PLAIN)


CALLS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "call-empty": ((), {}),
    "call-positional": (("ada", 3, (1,)), {}),
    "call-keywords": (("ada",), {"score": 3, "spot": Spot(1)}),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_of_the_first_release_is_read_and_written_as_it_was(name: str) -> None:
    payload = read(name)
    assert same(SERIALIZER.decode_call(payload, Codec.PLAIN), CALLS[name])
    assert SERIALIZER.encode_call(*CALLS[name]) == (payload, Codec.PLAIN)


def test_every_golden_file_is_tested() -> None:
    assert {path.stem for path in FOLDER.glob("*.hex")} == VALUES.keys() | CALLS.keys()


def alike(one: Any, other: Any) -> bool:
    if type(other) is np.ndarray:
        return parts(one) == parts(other)
    return same(one, other)


def parts(array: Any) -> tuple[Any, ...]:
    return array.dtype, array.shape, array.tobytes()


def write_missing() -> None:
    payloads = {name: SERIALIZER.encode(value)[0] for name, value in VALUES.items()}
    payloads |= {name: SERIALIZER.encode_call(*call)[0] for name, call in CALLS.items()}
    for name, payload in payloads.items():
        path = FOLDER / f"{name}.hex"
        if not path.exists():
            path.write_text(payload.hex() + "\n")


if __name__ == "__main__":
    write_missing()
