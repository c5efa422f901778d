"""The allow-list: which classes may be sent and received, and the names by which payloads call them."""

from __future__ import annotations

import builtins
import collections
import datetime
import decimal
import enum
import fractions
import ipaddress
import pathlib
import re
import sys
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar, overload

import msgspec

from silo.directory import errors
from silo.directory.addresses import Entry, GrainId, SiloAddress
from silo.directory.errors import SerializationError
from silo.serialization.annotations import mentioned, mentioned_by
from silo.serialization.exceptions import RemoteError
from silo.serialization.shapes import Shape, shape_of

T = TypeVar("T", bound=type)

NAME_LENGTH_MAX: Final = 512
"""The longest name of a class in a payload, in characters."""

_PLAIN_CLASSES: Final[tuple[type, ...]] = (
    *(object, type(None), bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset, range),
    *(
        datetime.datetime,
        datetime.date,
        datetime.time,
        datetime.timedelta,
        uuid.UUID,
        decimal.Decimal,
        fractions.Fraction,
    ),
    *(collections.deque, collections.OrderedDict, collections.Counter, collections.defaultdict),
    *(
        pathlib.PurePosixPath,
        pathlib.PosixPath,
        ipaddress.IPv4Address,
        ipaddress.IPv6Address,
        GrainId,
        SiloAddress,
        Entry,
    ),
)
"""Classes whose values the plain codec writes by itself. Registered only so that they can be sent as classes."""

_BASES_ONLY: Final[frozenset[type]] = frozenset(
    {enum.Enum, enum.Flag, enum.IntEnum, enum.IntFlag, enum.StrEnum, msgspec.Struct}
)
"""Classes that type hints may mention but that have no values of their own."""


class TypeRegistry:
    """The classes that one process sends and receives. Nothing is ever imported because a payload names it.

    Builtin exceptions and the runtime's own errors are in it from the start.
    """

    def __init__(self) -> None:
        self._classes: dict[str, type] = {}
        self._names: dict[type, str] = {}
        self._shapes: dict[type, Shape] = {}
        self._unresolved: dict[str, str] = {}
        for cls in _PLAIN_CLASSES:
            self._classes[stable_name(cls)] = cls
            self._names[cls] = stable_name(cls)
        for holder in (builtins, errors):
            for cls in vars(holder).values():
                if isinstance(cls, type) and issubclass(cls, BaseException):
                    self.register(cls)
        self.register(RemoteError)

    @overload
    def register(self, cls: T, /, *, name: str | None = None, aliases: Iterable[str] = ()) -> T: ...

    @overload
    def register(self, /, *, name: str | None = None, aliases: Iterable[str] = ()) -> Callable[[T], T]: ...

    def register(
        self, cls: T | None = None, /, *, name: str | None = None, aliases: Iterable[str] = ()
    ) -> T | Callable[[T], T]:
        """Allow a class to be sent and received: a dataclass, enum, NamedTuple, msgspec.Struct or exception.

        Usable as a decorator, with or without arguments. A class defined anew under the same module and name takes
        the place of the former, whose values then arrive as the new one.

        Args:
            name: what payloads call the class; `module:qualname` unless given. Give one where the class may move
                between modules, or lives in a file that some processes run and others import.
            aliases: former names, under which older payloads may still call it.

        Raises:
            SerializationError: the class is of no kind that can travel, or the name belongs to another class.
        """
        if cls is None:
            return lambda decorated: self.register(decorated, name=name, aliases=aliases)
        if cls in self._names and name is None:
            name = self._names[cls]
        name = stable_name(cls) if name is None else name
        if not 0 < len(name) <= NAME_LENGTH_MAX:
            raise SerializationError(
                f"the name of a class has 1 to {NAME_LENGTH_MAX} characters, this one has {len(name)}"
            )
        names = (name, *aliases)
        for taken in names:
            self._refuse_taken(taken, cls)
        if cls not in self._names or self._names[cls] != name:
            shape = shape_of(cls, name)
            if shape is None:
                raise SerializationError(f"{_described(cls)} cannot be sent: {_fix_for_class(cls)}")
            self._shapes[cls] = shape
        self._names[cls] = name
        for each in names:
            self._classes[each] = cls
        return cls

    def register_annotations(self, target: object, *, localns: Mapping[str, object] | None = None) -> None:
        """Register every class that the hints of a function, or of a class's attributes and public methods, mention.

        Generics, unions, Annotated and the fields of the classes found are followed. Classes that cannot travel, such
        as protocols and grain classes, are passed over; sending a value of one is refused when it happens.

        Args:
            localns: names that the hints may use beside their module's, for classes defined inside functions.
        """
        found = mentioned_by(target) if isinstance(target, type) and localns is None else mentioned(target, localns)
        self._unresolved.update(found.unresolved)
        for cls in found.classes:
            if cls not in self._names and cls not in _BASES_ONLY and shape_of(cls, "") is not None:
                self.register(cls)

    def lookup(self, name: str) -> type:
        """The class that payloads call by this name; raises SerializationError naming the class and the fix."""
        found = self._classes.get(name)
        if found is None:
            raise SerializationError(self._refusal(name[:NAME_LENGTH_MAX]))
        return found

    def name_of(self, cls: type) -> str:
        """What payloads call this class; raises SerializationError where it is not registered."""
        name = self._names.get(cls)
        if name is None:
            raise SerializationError(f"{_described(cls)} cannot be sent: {_fix_for_class(cls)}")
        return name

    def shape(self, cls: type) -> Shape | None:
        """How values of a registered class are taken apart; None for any other class."""
        return self._shapes.get(cls)

    def shape_named(self, name: str) -> Shape:
        """The shape of the class that a payload names; raises SerializationError."""
        shape = self._shapes.get(self.lookup(name))
        if shape is None:
            raise SerializationError(f"{name} is not a class whose values are made of fields")
        return shape

    def is_current(self, shape: Shape) -> bool:
        """Whether values of this shape arrive as the same class: not so once the class was defined anew."""
        return self._classes.get(shape.name) is shape.cls

    def _refuse_taken(self, name: str, cls: type) -> None:
        holder = self._classes.get(name)
        if holder is not None and holder is not cls and stable_name(holder) != stable_name(cls):
            raise SerializationError(
                f"the name {name!r} belongs to {_described(holder)} already; register {_described(cls)} under another"
            )

    def _refusal(self, name: str) -> str:
        text = (
            f"the payload names the class {name!r}, which is not registered here: register it with silo.register(...) "
            "in the process that receives it, or mention it in a grain method's signature"
        )
        word = re.compile(rf"\b{re.escape(_qualname(name).rpartition('.')[2])}\b")
        where = next((where for hint, where in self._unresolved.items() if word.search(hint)), None)
        if where is not None:
            text += f" (that of {where} does, but by a name that is not defined at run time: see TYPE_CHECKING)"
        namesake = next((known for known in self._classes if _qualname(known) == _qualname(name)), None)
        if namesake is not None:
            text += f"; registered is {namesake!r}"
            if name.startswith("__main__:") or namesake.startswith("__main__:"):
                text += ": the class has one name where its file is run, another where it is imported; give it name=..."
        return text


def stable_name(cls: type) -> str:
    """`module:qualname`; for the main module the name under which `python -m` found it, where it did."""
    module = cls.__module__
    if module == "__main__":
        spec = getattr(sys.modules.get("__main__"), "__spec__", None)
        module = spec.name if spec is not None else module
    return f"{module}:{cls.__qualname__}"


def _qualname(name: str) -> str:
    return name.rpartition(":")[2]


def _described(cls: type) -> str:
    return f"class {stable_name(cls)!r}"


def _fix_for_class(cls: type) -> str:
    """What the owner of an unregistered class can do about it."""
    if shape_of(cls, "") is not None:
        return "register it with silo.register(...) in both processes, or mention it in a grain method's signature"
    for builtin in (dict, list, tuple, set, frozenset, str, bytes, int, float):
        if issubclass(cls, builtin):
            return f"it is a subclass of {builtin.__name__}; convert the value, or make the class a dataclass"
    return "make it a dataclass, NamedTuple, enum or msgspec.Struct and register it with silo.register(...)"


DEFAULT_REGISTRY: Final = TypeRegistry()
"""The registry of the process, which `silo.register` and the grain classes fill."""

register: Final = DEFAULT_REGISTRY.register
"""Allow a class to be sent and received by this process; see TypeRegistry.register."""
