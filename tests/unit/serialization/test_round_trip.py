"""DESIGN, "Serialization": exact types come back, over the wire and on a local call alike."""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import decimal
import fractions
import functools
import ipaddress
import math
import pathlib
import uuid
import zoneinfo
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from silo.directory.addresses import Entry, GrainId, SiloAddress
from silo.directory.errors import SerializationError
from silo.serialization.serializer import Codec
from tests.unit.serialization.vocabulary import (
    Bag,
    Captain,
    Color,
    Level,
    Mode,
    Pair,
    Player,
    Reference,
    Right,
    Spot,
    Stubborn,
    Tick,
    same,
    serializer,
)

pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")
SERIALIZER = serializer()
NAIVE = dt.datetime(2026, 1, 2, 3, 4, 5, 6)  # noqa: DTZ001 - naive ones come back naive
BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")
LOBBY = GrainId.of("room", "lobby")
SILO = SiloAddress("10.0.0.1:7000", 12)

T = TypeVar("T")


@dataclasses.dataclass
class Cached(Generic[T]):
    items: list[T]

    @functools.cached_property
    def total(self) -> int:
        return sum(map(int, map(str, self.items)))


CACHED = serializer(Cached)


IMMUTABLE: list[Any] = [
    *(None, True, False, 0, -1, 2**63, 2**64 - 1, 2**64, -(2**63) - 1, 10**400, -(10**400), 127, 128, -128, -129),
    *(0.0, -0.0, 1.5, math.nan, math.inf, -math.inf, 5e-324, complex(-0.0, math.nan), 3j),
    *("", "ada", "ä€😀", "a\0b", "\ud800", "x" * 70_000, b"", b"\0\xff" * 200),
    *((), (1,), ((),), (1, "a", (2.0, None)), frozenset(), frozenset({1, "a", (1, 2)})),
    *(dt.date(1, 1, 1), dt.date(2026, 2, 28), dt.timedelta(-1, 5, 7), dt.timedelta.max, dt.timedelta.min),
    *(NAIVE, NAIVE.replace(fold=1), dt.datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN, fold=1)),
    *(NAIVE.replace(tzinfo=dt.UTC), NAIVE.replace(tzinfo=dt.timezone(dt.timedelta(0, 3, 7), "odd"))),
    *(dt.time(1, 2, 3, 4), dt.time(1, tzinfo=dt.UTC, fold=1), dt.time(1, tzinfo=BERLIN), dt.UTC, BERLIN),
    *(
        uuid.UUID(int=7),
        decimal.Decimal("1.10"),
        decimal.Decimal("-0"),
        decimal.Decimal("1E+999"),
        decimal.Decimal("Inf"),
    ),
    *(decimal.Decimal("NaN123"), fractions.Fraction(-3, 7), range(3), range(10**30, 0, -7)),
    *(Color.RED, Color.GREEN, Level.HIGH, Mode.ON, Right.READ, Right.READ | Right.WRITE, Right(0)),
    *(Pair(1, (2,)), Tick(3, "x"), Spot(1, 2), Spot(True, 0), LOBBY, SILO, Entry(LOBBY, SILO, "a1", 2**52)),
    *(pathlib.PurePosixPath("/a/b"), pathlib.PurePosixPath("\udc80"), pathlib.PosixPath("x")),
    *(ipaddress.ip_address("127.0.0.1"), ipaddress.ip_address("fe80::1%eth0")),
    *(int, Player, Color, type(None), ValueError),
]

MUTABLE: list[Any] = [
    *([], [[]], [1, [2, [3]]], list(range(300)), [2**64, "\ud800"], {}, {"a": 1}, {"a": {"b": [1]}}, {1: 2, 2**64: 3}),
    *({True: 1, None: 2, 1.5: 3, b"x": 4, "x": 5}, {(1, 2): [3], frozenset({1}): (4,)}, {"\ud800": 1}, {Color.RED: 1}),
    *({"b": 1, "a": 2}, set(), {1, 2}, {(1, 2), "a"}, bytearray(), bytearray(b"abc"), [bytearray(b"x"), b"x"]),
    *(Player("ada", 2**70, ["x"]), [Player("ada")] * 2, Captain(name="bob", team=Player("ada")), Stubborn()),
    *(Bag([1, 2]), Pair([1], {}), Tick(1, [2]), Spot([1]), (1, [2]), (bytearray(b"x"),)),
    *(collections.deque([1, (2,)], 5), collections.deque([[1]]), collections.OrderedDict({"b": 1, "a": [2]})),
    *(collections.Counter("abca"), collections.defaultdict(list, {"a": [1]}), collections.defaultdict(None, {1: 2})),
    *(ValueError("x", 1), [OSError(2, "no", "file")], KeyError(("a", 1))),
]


HASHABLE = st.recursive(
    st.one_of(
        *(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.binary(), st.uuids()),
        *(
            st.dates(),
            st.datetimes(),
            st.timedeltas(),
            st.decimals(allow_nan=False),
            st.sampled_from([*Color, *Level, *Right]),
        ),
        *(st.text(st.characters(categories=["Cs", "L"])), st.fractions(), st.complex_numbers(allow_nan=False)),
    ),
    lambda inner: st.one_of(
        st.tuples(inner, inner),
        st.frozensets(inner, max_size=3),
        st.builds(Spot, inner, inner),
        st.builds(Pair, inner, inner),
    ),
    max_leaves=8,
)


def short_queue(items: list[Any]) -> collections.deque[Any]:
    return collections.deque(items, 3)


VALUES = st.recursive(
    HASHABLE | st.floats() | st.datetimes(timezones=st.timezones()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.tuples(inner, inner),
        st.dictionaries(HASHABLE, inner, max_size=4),
        st.dictionaries(st.text(), inner, max_size=4),
        st.sets(HASHABLE, max_size=4),
        st.builds(Player, st.text(), st.integers(), st.lists(st.text())),
        st.builds(Captain, name=st.text(), team=inner),
        st.builds(Tick, st.integers(), inner),
        st.builds(Pair, inner, inner),
        st.lists(inner, max_size=3).map(short_queue),
    ),
    max_leaves=12,
)


@pytest.mark.parametrize("value", IMMUTABLE + MUTABLE, ids=lambda value: type(value).__name__)
def test_each_type_of_the_table_comes_back_exactly(value: Any) -> None:
    payload, codec = SERIALIZER.encode(value)
    assert codec == Codec.PLAIN
    assert same(SERIALIZER.decode(payload, codec), value)
    assert same(SERIALIZER.decode(memoryview(payload), codec), value)
    assert same(SERIALIZER.isolate(value), value)


@pytest.mark.parametrize("value", IMMUTABLE, ids=lambda value: type(value).__name__)
def test_a_local_call_passes_immutable_values_as_they_are(value: Any) -> None:
    assert SERIALIZER.isolate(value) is value


@pytest.mark.parametrize("value", MUTABLE, ids=lambda value: type(value).__name__)
def test_a_local_call_copies_mutable_values(value: Any) -> None:
    assert SERIALIZER.isolate(value) is not value


@settings(max_examples=300, deadline=None)
@given(VALUES)
def test_any_value_comes_back_exactly_and_a_local_call_gives_the_same(value: Any) -> None:
    payload, codec = SERIALIZER.encode(value)
    assert same(SERIALIZER.decode(payload, codec), value)
    assert same(SERIALIZER.isolate(value), SERIALIZER.decode(payload, codec))


@settings(max_examples=100, deadline=None)
@given(st.lists(VALUES, max_size=3), st.dictionaries(st.sampled_from(["a", "b", "self"]), VALUES, max_size=2))
def test_arguments_come_back_exactly(args: list[Any], kwargs: dict[str, Any]) -> None:
    call = (tuple(args), kwargs)
    assert same(SERIALIZER.decode_call(*SERIALIZER.encode_call(*call)), call)
    assert same(SERIALIZER.isolate_call(*call), call)


@pytest.mark.parametrize("args", [(), (1,), ("ada", 2**64), ("\ud800",), ([1, (2,)],), ({"a": 1},), (b"x" * 1000,)])
@pytest.mark.parametrize("kwargs", [{}, {"a": 1}, {"a": (1,), "b": [2**70]}])
def test_arguments_of_every_form_come_back(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    assert same(SERIALIZER.decode_call(*SERIALIZER.encode_call(args, kwargs)), (args, kwargs))
    assert same(SERIALIZER.isolate_call(args, kwargs), (args, kwargs))


WRAPS: list[Callable[[Any], Any]] = [lambda inner: [inner], lambda inner: (inner,), lambda inner: {"a": inner}]


@pytest.mark.parametrize("wrap", WRAPS)
def test_what_the_sender_may_nest_the_receiver_may_read(wrap: Any) -> None:
    shallow = serializer(depth_max=10)
    value: Any = 2**64
    for _ in range(10):
        value = wrap(value)
    assert same(shallow.decode(*shallow.encode(value)), value)
    assert same(shallow.isolate(value), value)
    assert same(shallow.decode_call(*shallow.encode_call((value,), {"x": value})), ((value,), {"x": value}))
    for refuse in (shallow.encode, shallow.isolate):
        with pytest.raises(SerializationError, match="deeper than 10 levels"):
            refuse(wrap(value))


def test_a_copy_shares_nothing_mutable_with_the_original() -> None:
    inner = [1]
    copy: Any = SERIALIZER.isolate({"a": (inner, Player("x", tags=["t"])), "b": Spot(inner)})
    inner.append(2)
    assert copy["a"][0] == [1]
    assert copy["b"].x == [1]


def test_a_reference_is_bound_anew_for_the_receiver_near_and_far() -> None:
    sent = [Reference(LOBBY), {Reference(LOBBY): 1}]
    expected = [Reference(LOBBY, "receiver"), {Reference(LOBBY, "receiver"): 1}]
    assert SERIALIZER.decode(*SERIALIZER.encode(sent)) == expected
    assert SERIALIZER.isolate(sent) == expected


def test_attributes_that_are_no_fields_travel_too() -> None:
    value: Any = Player("ada")
    value.seen = [1]
    for arrived in (SERIALIZER.decode(*SERIALIZER.encode(value)), SERIALIZER.isolate(value)):
        assert vars(arrived) == {"name": "ada", "score": 0, "tags": [], "seen": [1]}


def test_a_cached_property_stays_behind_and_is_computed_again() -> None:
    value = Cached([1, 2])
    assert value.total == 3
    for arrived in (CACHED.decode(*CACHED.encode(value)), CACHED.isolate(value)):
        assert arrived == value
        assert vars(arrived) == {"items": [1, 2]}


def test_a_generic_dataclass_travels() -> None:
    value = Cached[int]([1])
    for arrived in (CACHED.decode(*CACHED.encode(value)), CACHED.isolate(value)):
        assert type(arrived) is Cached
        assert vars(arrived) == {"items": [1]}
