"""Damaged or hostile bytes raise SerializationError, nothing else, and cost no more memory than their size warrants."""

from __future__ import annotations

import collections
import contextlib
import datetime as dt
import decimal
import random
import struct
import time
import tracemalloc
import uuid
from fractions import Fraction
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from silo.directory.addresses import Entry, GrainId, SiloAddress
from silo.directory.errors import SerializationError
from silo.serialization.serializer import Codec
from silo.serialization.tags import MARKED, Node
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
    serializer,
)

pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")
SERIALIZER = serializer()
LOBBY = GrainId.of("room", "lobby")
SAMPLE: list[Any] = [
    *(
        1,
        2**70,
        -1.5,
        "ada",
        "\ud800",
        b"xyz",
        bytearray(b"q"),
        (1, (2,)),
        {1, "a"},
        frozenset({2}),
        {"k": {(1, 2): 3}},
    ),
    *(
        Player("ada", 3, ["t"]),
        Spot(1, 2),
        Captain(name="c"),
        Pair(1),
        Tick(1),
        Color.RED,
        Right.READ,
        Reference(LOBBY),
    ),
    *(
        dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
        dt.timedelta(1),
        uuid.UUID(int=1),
        decimal.Decimal("1.5"),
        Fraction(1, 3),
    ),
    *(range(3), 1j, LOBBY, Entry(LOBBY, SiloAddress("h:1", 2), "a", 3), Player, OutOfStock(item="n", left=1)),
    *(
        np.arange(6).reshape(2, 3),
        np.float32(1),
        np.zeros(2, [("a", "<i4"), ("b", "<f8", 2)]),
        collections.Counter("ab"),
    ),
    *(collections.deque([1], 3), collections.OrderedDict(a=1), collections.defaultdict(list, a=[1])),
]
PAYLOAD, _ = SERIALIZER.encode(SAMPLE)


def attempt(payload: bytes) -> None:
    for decode in (SERIALIZER.decode, SERIALIZER.decode_call):
        with contextlib.suppress(SerializationError):
            decode(payload, Codec.PLAIN)


def test_every_truncation_is_refused() -> None:
    for length in range(len(PAYLOAD)):
        with pytest.raises(SerializationError):
            SERIALIZER.decode(PAYLOAD[:length], Codec.PLAIN)
    with pytest.raises(SerializationError):
        SERIALIZER.decode(PAYLOAD + b"\0", Codec.PLAIN)


def test_every_flipped_bit_is_survived() -> None:
    for position in range(len(PAYLOAD)):
        damaged = bytearray(PAYLOAD)
        damaged[position] ^= 1 << (position % 8)
        attempt(bytes(damaged))


def test_random_damage_is_survived() -> None:
    rng = random.Random(7)
    for _ in range(2000):
        damaged = bytearray(PAYLOAD)
        for _ in range(rng.randint(1, 8)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        attempt(bytes(damaged))


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=100), st.booleans())
def test_random_bytes_are_survived(payload: bytes, has_nodes: bool) -> None:
    attempt(bytes([MARKED]) + payload if has_nodes else payload)


PARTS = st.recursive(
    st.one_of(
        *(
            st.none(),
            st.booleans(),
            st.integers(-(2**63), 2**63),
            st.floats(),
            st.text(max_size=5),
            st.binary(max_size=5),
        ),
        st.sampled_from([*Node]).map(lambda node: msgspec.msgpack.Ext(int(node), b"")),
        st.builds(msgspec.msgpack.Ext, st.integers(-128, 127), st.binary(max_size=12)),
        st.sampled_from(["builtins:ValueError", "tests.unit.serialization.vocabulary:Player", "builtins:int", "<i4"]),
    ),
    lambda inner: (
        st.lists(inner, max_size=8) | st.dictionaries(st.text(max_size=5) | st.integers(0, 9), inner, max_size=4)
    ),
    max_leaves=20,
)


@settings(max_examples=500, deadline=None)
@given(PARTS, st.sampled_from([*Node]), st.booleans())
def test_well_formed_nonsense_is_survived(parts: Any, node: Node, is_node: bool) -> None:
    root: Any = [msgspec.msgpack.Ext(int(node), b""), *parts] if is_node and isinstance(parts, list) else parts
    try:
        body = msgspec.msgpack.encode(root)
    except OverflowError:
        return
    attempt(body)
    attempt(bytes([MARKED]) + body)


def nested(opening: bytes, depth: int) -> bytes:
    return opening * depth + b"\x01"


@pytest.mark.parametrize(
    "payload",
    [
        *(nested(b"\x91", 101), nested(b"\x91", 100_000), nested(b"\x81\xa1a", 101), nested(b"\x81\xa1a", 50_000)),
        *(b"\xc1" + nested(b"\x92\xc7\x00\x40", 101), b"\xc1" + nested(b"\x92\xc7\x00\x40", 50_000)),
        *(b"\xc1" + nested(b"\x91", 101), nested(b"\x91\xdd\xff\xff\xff\xff", 50)),
    ],
    ids=range(8),
)
def test_deep_nesting_is_refused(payload: bytes) -> None:
    with pytest.raises(SerializationError):
        SERIALIZER.decode(payload, Codec.PLAIN)


ARRAY = msgspec.msgpack.Ext(int(Node.ARRAY), b"")


@pytest.mark.parametrize(
    "payload",
    [
        *(
            opening + struct.pack(">I", 2**32 - 1) + b"\x01"
            for opening in (b"\xdd", b"\xdf", b"\xc6", b"\xdb", b"\xc9")
        ),
        *(
            b"\xc1" + msgspec.msgpack.encode([ARRAY, dtype, shape, b""])
            for dtype, shape in [
                ("V1000000000", [0]),
                ("S0", [10**9]),
                ("<i8", [10**12]),
                ("<i8", [0, 2**62]),
                ("|O", []),
                ([["<i8", [10**8]], [10]], [0]),
            ]
        ),
        b"\xc1" + msgspec.msgpack.encode([ARRAY, "<i8", [-1, -1], b"\0" * 8]),
    ],
    ids=range(12),
)
def test_a_small_payload_takes_little_memory_and_time(payload: bytes) -> None:
    tracemalloc.start()
    started = time.perf_counter()
    try:
        with pytest.raises(SerializationError):
            SERIALIZER.decode(payload, Codec.PLAIN)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000
    assert time.perf_counter() - started < 1
