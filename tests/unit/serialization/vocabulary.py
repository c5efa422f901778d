"""Classes that the tests send, a serializer that knows them, and what "exactly the same" means."""

from __future__ import annotations

import collections
import dataclasses
import enum
import struct
from typing import Any, NamedTuple, cast

import msgspec

from silo.directory.addresses import GrainId
from silo.serialization.registry import TypeRegistry
from silo.serialization.serializer import Serializer


class Color(enum.Enum):
    RED = "red"
    GREEN = object()
    """A value that could not be sent itself."""


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Mode(enum.StrEnum):
    ON = "on"


class Right(enum.Flag):
    READ = enum.auto()
    WRITE = enum.auto()


@dataclasses.dataclass
class Player:
    name: str
    score: int = 0
    tags: list[Any] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True, slots=True)
class Spot:
    x: Any
    y: Any = 0


@dataclasses.dataclass(kw_only=True)
class Captain(Player):
    team: object = None


@dataclasses.dataclass(init=False)
class Stubborn:
    """Its constructor cannot be called with its fields."""

    x: int

    def __init__(self) -> None:
        self.x = 7
        self.derived = [self.x]


class Pair(NamedTuple):
    left: Any
    right: Any = None


class Tick(msgspec.Struct, frozen=True):
    at: int
    what: Any = None


class Bag(msgspec.Struct):
    items: list[int]


class OutOfStock(Exception):
    """Insists on keywords, so calling it with its args fails."""

    def __init__(self, *, item: str, left: int) -> None:
        super().__init__(f"{item}: {left} left")
        self.item = item
        self.left = left


@dataclasses.dataclass(frozen=True)
class Reference:
    """What a grain reference is to the serializer."""

    grain: GrainId
    bound_by: str = "sender"


CLASSES = (Color, Level, Mode, Right, Player, Spot, Captain, Stubborn, Pair, Tick, Bag, OutOfStock)


def registry(*classes: type) -> TypeRegistry:
    """A registry of its own for one test."""
    made = TypeRegistry()
    for cls in classes or CLASSES:
        made.register(cls)
    return made


def identity(reference: object) -> GrainId:
    assert isinstance(reference, Reference)
    return reference.grain


def bound(grain: GrainId) -> Reference:
    return Reference(grain, "receiver")


def serializer(*classes: type, **options: Any) -> Serializer:
    """A serializer that knows the classes given, or all of this module's."""
    return Serializer(
        registry(*classes), reference_type=Reference, reference_id=identity, bind_reference=bound, **options
    )


def same(one: Any, other: Any) -> bool:
    """Whether two values are of the same classes all through, to the bit of each float and the order of each dict."""
    kind = cast("Any", type(one))
    if kind is not type(other):
        return False
    if kind is float:
        return struct.pack("d", one) == struct.pack("d", other)
    if kind is complex:
        return same((one.real, one.imag), (other.real, other.imag))
    if issubclass(kind, (list, tuple, collections.deque)):
        return len(one) == len(other) and all(map(same, one, other))
    if issubclass(kind, dict):
        return same(list(one.items()), list(other.items()))
    if issubclass(kind, (set, frozenset)):
        return len(one) == len(other) and all(any(same(item, twin) for twin in other) for item in one)
    if issubclass(kind, BaseException):
        return same((one.args, vars(one), one.__cause__), (other.args, vars(other), other.__cause__))
    if issubclass(kind, msgspec.Struct):
        return all(same(getattr(one, name), getattr(other, name)) for name in kind.__struct_fields__)
    if dataclasses.is_dataclass(kind):
        return all(same(getattr(one, field.name), getattr(other, field.name)) for field in dataclasses.fields(kind))
    return bool(one == other) or (one != one and other != other)
