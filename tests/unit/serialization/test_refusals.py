"""What is refused, and that the refusal names the class and the fix. DESIGN, "Bytes execute no code"; S092."""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import enum
import sys
import threading
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import msgspec
import pytest

from silo.directory.addresses import GrainId
from silo.directory.errors import SerializationError
from silo.serialization.serializer import Codec, Serializer
from tests.unit.serialization.vocabulary import Color, Pair, Player, Reference, Spot, registry, serializer

SERIALIZER = serializer()


class Plain:
    pass


class Words(list[str]):
    pass


class Odd(dt.tzinfo):
    def utcoffset(self, dt: dt.datetime | None, /) -> dt.timedelta | None:
        return None

    dst = utcoffset

    def tzname(self, dt: dt.datetime | None, /) -> str | None:
        return None


@dataclasses.dataclass
class Unregistered:
    x: int = 0


class Unlisted(enum.Flag):
    A = 1


class Suspicious:
    def __reduce__(self) -> Any:
        raise AssertionError("the plain codec never asks for a pickle")


def a_function() -> None: ...


REFUSED: list[tuple[Any, str]] = [
    (Plain(), r"Plain' cannot be sent: make it a dataclass"),
    (Unregistered(), r"Unregistered' cannot be sent: register it with silo.register"),
    (Words(["a"]), r"Words' cannot be sent: it is a subclass of list"),
    (Suspicious(), r"Suspicious' cannot be sent"),
    (a_function, r"function 'a_function' cannot be sent"),
    (lambda: 1, r"function '<lambda>' cannot be sent"),
    ("x".upper, r"function 'str.upper' cannot be sent"),
    (Plain, r"Plain' cannot be sent"),
    (threading.Lock(), r"lock' cannot be sent"),
    ((i for i in "a"), r"generator' cannot be sent"),
    (memoryview(b"x"), r"memoryview' cannot be sent"),
    (object(), r"object cannot be sent"),
    (dt.datetime(2026, 1, 1, tzinfo=Odd()), r"time zone of class .*Odd cannot be sent; use zoneinfo"),
    (Fraction(1, 2**70_000), r"Fraction with more than 65536 bits"),
    (Unlisted(0), r"Unlisted' cannot be sent: register it"),
]


WRAPS: list[Callable[[Any], Any]] = [lambda v: v, lambda v: [1, v], lambda v: (v,), lambda v: {"a": v}, Pair]


@pytest.mark.parametrize(("value", "message"), REFUSED, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("wrap", WRAPS)
def test_S089_what_cannot_be_sent_is_refused_with_the_fix_near_and_far(
    value: Any, message: str, wrap: Callable[[Any], Any]
) -> None:
    for refuse in (SERIALIZER.encode, SERIALIZER.isolate):
        with pytest.raises(SerializationError, match=message):
            refuse(wrap(value))
    with pytest.raises(SerializationError, match=message):
        SERIALIZER.encode_call((wrap(value),), {})
    with pytest.raises(SerializationError, match=message):
        SERIALIZER.isolate_call((), {"x": wrap(value)})


def loop_of_lists() -> Any:
    loop: list[Any] = [1, {"a": []}]
    loop[1]["a"].append(loop)
    return loop


def loop_of_players() -> Any:
    player = Player("ada")
    player.tags.append(player)
    return player


@pytest.mark.parametrize("loop", [loop_of_lists(), loop_of_players()], ids=["list", "dataclass"])
def test_a_value_that_contains_itself_is_refused(loop: Any) -> None:
    for refuse in (SERIALIZER.encode, SERIALIZER.isolate):
        with pytest.raises(SerializationError, match="contains itself, or nests deeper than 100 levels"):
            refuse(loop)


@pytest.mark.parametrize("value", [Player("ada"), Color.RED, Spot(1), Player, ValueError(Player("ada"))], ids=repr)
def test_a_payload_that_names_an_unregistered_class_is_refused_with_the_fix(value: Any) -> None:
    payload, codec = SERIALIZER.encode([value])
    stranger = serializer(Pair)
    with pytest.raises(SerializationError, match=r"vocabulary:\w+', which is not registered here: register it"):
        stranger.decode(payload, codec)


def test_a_payload_imports_nothing() -> None:
    payload = msgspec.msgpack.encode(msgspec.msgpack.Ext(16, b"this:s"))
    with pytest.raises(SerializationError, match="'this:s', which is not registered here"):
        SERIALIZER.decode(payload, Codec.PLAIN)
    assert "this" not in sys.modules


def test_a_payload_of_an_unknown_codec_or_extension_is_refused() -> None:
    with pytest.raises(SerializationError, match="codec 9, which this version does not know"):
        SERIALIZER.decode(b"\x01", 9)
    with pytest.raises(SerializationError, match="extension 99 that this version does not know"):
        SERIALIZER.decode(msgspec.msgpack.encode(msgspec.msgpack.Ext(99, b"")), Codec.PLAIN)


def test_a_reference_that_nobody_can_bind_is_refused() -> None:
    payload, codec = SERIALIZER.encode(Reference(GrainId.of("room", "lobby")))
    with pytest.raises(SerializationError, match="reference to room/lobby arrived where no client or silo"):
        Serializer(registry()).decode(payload, codec)


def version(fields: list[Any], kind: str) -> Any:
    """One version of a class, as another release of the application has it."""
    namespace = {"__module__": "shop", "__qualname__": "Item"}
    made: Any
    if kind == "dataclass":
        made = dataclasses.make_dataclass("Item", fields, namespace=namespace)
        made.__module__ = "shop"
    elif kind == "struct":
        made = msgspec.defstruct("Item", fields, module="shop")
    else:
        defaults = {field[0]: field[2] for field in fields if len(field) > 2}
        made = _named_tuple(fields, defaults)
    made.__qualname__ = "Item"
    return made


def _named_tuple(fields: list[Any], defaults: dict[str, Any]) -> Any:
    make: Any = collections.namedtuple  # the form with types takes no defaults
    return make("Item", [field[0] for field in fields], defaults=defaults.values(), module="shop")


def enum_of(name: str, *members: str) -> Any:
    return enum.Enum(name, members, module="shop")


@pytest.mark.parametrize("kind", ["dataclass", "struct", "namedtuple"])
class TestS092TwoVersionsOfAClass:
    """The sender's class and the receiver's differ, as in a rolling upgrade."""

    def send(self, kind: str, sender: list[Any], value: tuple[Any, ...], receiver: list[Any]) -> Any:
        theirs, ours = version(sender, kind), version(receiver, kind)
        return serializer(ours).decode(*serializer(theirs).encode(theirs(*value)))

    def test_a_new_field_takes_its_default(self, kind: str) -> None:
        got = self.send(kind, [("x", int)], (1,), [("x", int), ("y", int, 5)])
        assert (got.x, got.y) == (1, 5)

    def test_a_new_field_without_a_default_is_named(self, kind: str) -> None:
        with pytest.raises(SerializationError, match="shop:Item came without its field 'y'"):
            self.send(kind, [("x", int)], (1,), [("x", int), ("y", int)])

    def test_an_unknown_field_is_named(self, kind: str) -> None:
        with pytest.raises(SerializationError, match="shop:Item has no field 'y' here"):
            self.send(kind, [("x", int), ("y", int)], (1, 2), [("x", int)])

    def test_fields_in_another_order_arrive_by_name(self, kind: str) -> None:
        got = self.send(kind, [("x", int), ("y", int)], (1, 2), [("y", int), ("x", int)])
        assert (got.x, got.y) == (1, 2)


def test_S092_an_unknown_enum_member_is_named() -> None:
    theirs = enum_of("Size", "S", "XL")
    ours = enum_of("Size", "S")
    with pytest.raises(SerializationError, match="shop:Size has no member 'XL' here"):
        serializer(ours).decode(*serializer(theirs).encode(theirs["XL"]))


def test_S092_a_class_that_became_another_kind_of_class_is_named() -> None:
    theirs, ours = enum_of("Item", "S"), version([("x", int)], "dataclass")
    with pytest.raises(SerializationError, match="shop:Item is not an enum here"):
        serializer(ours).decode(*serializer(theirs).encode(theirs["S"]))
    with pytest.raises(SerializationError, match="shop:Item is not a class of fields here"):
        serializer(theirs).decode(*serializer(ours).encode(ours(1)))


def test_S092_a_renamed_class_is_found_by_its_former_name() -> None:
    theirs = version([("x", int)], "dataclass")
    ours = registry(Pair)
    ours.register(Spot, aliases=["shop:Item"])
    assert Serializer(ours).decode(*serializer(theirs).encode(theirs(1))) == Spot(1)


def test_a_field_that_was_never_set_is_refused() -> None:
    player = Player("ada")
    del player.name
    with pytest.raises(SerializationError, match="Player cannot be sent: one of its fields has no value"):
        SERIALIZER.encode(player)
