"""Reading: from the lists and dicts that MessagePack gave back to the values meant."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable
from typing import Any, Final, cast

from silo.directory.errors import SerializationError
from silo.serialization import numpy_values
from silo.serialization.exceptions import RemoteError
from silo.serialization.rules import Rules
from silo.serialization.shapes import ErrorShape, FieldShape
from silo.serialization.tags import SCALARS, Node

_KEYS: Final[frozenset[type]] = frozenset({int, str})
_CONTAINERS: Final[frozenset[type]] = frozenset({list, dict})


class Reading:
    """One value on its way back, from the lists and dicts that MessagePack gave."""

    __slots__ = ("_degrades", "_rules")

    def __init__(self, rules: Rules, *, degrades: bool) -> None:
        self._rules = rules
        self._degrades = degrades

    def walk(self, value: object, left: int) -> Any:
        """The value meant; lists and dicts are completed in place."""
        kind = type(value)
        if kind is list:
            return self._list(cast("list[Any]", value), left)
        if kind is dict:
            return self._fields(cast("dict[Any, Any]", value), left)
        if kind is Node:
            raise SerializationError("the payload cannot be read: a node tag stands where a value should")
        return value

    def _list(self, value: list[Any], left: int) -> Any:
        if left <= 0:
            self._rules.refuse_depth()
        if value and type(value[0]) is Node:
            return _READERS[value[0]](self, value, left - 1)
        return self.items(value, left - 1)

    def items(self, value: list[Any], left: int, start: int = 0) -> list[Any]:
        for index in range(start, len(value)):
            item = value[index]
            if type(item) not in SCALARS:
                value[index] = self.walk(item, left)
        return value

    def rest(self, value: list[Any], left: int, start: int = 1) -> list[Any]:
        """The items after the tag and its fixed parts."""
        return self.items(value, left, start)[start:]

    def pairs(self, value: list[Any], left: int, start: int = 1) -> Iterable[tuple[Any, Any]]:
        parts = self.rest(value, left, start)
        return zip(parts[::2], parts[1::2], strict=True)

    def _fields(self, value: dict[Any, Any], left: int) -> dict[Any, Any]:
        if left <= 0:
            self._rules.refuse_depth()
        if not _KEYS.issuperset(map(type, value)):
            raise SerializationError("the payload cannot be read: a map has keys that are neither text nor integers")
        for key, item in value.items():
            if type(item) not in SCALARS:
                value[key] = self.walk(item, left - 1)
        return value

    def object(self, value: list[Any], left: int) -> object:
        _, name, fields, *more = value
        shape = self._rules.registry.shape_named(name)
        if not isinstance(shape, FieldShape):
            raise SerializationError(f"{name} is not a class of fields here: the sender runs another version of it")
        extras = self._fields(more[0], left + 1) if more else None
        return shape.build(self._fields(fields, left + 1), extras)

    def error(self, value: list[Any], left: int) -> BaseException:
        _, name, message, args, attributes, notes, cause, suppressed, *_ = value
        error = self._error_itself(name, message, args, attributes, left)
        for note in notes:
            error.add_note(note)
        error.__cause__ = self.walk(cause, left)
        error.__suppress_context__ = bool(suppressed)
        return error

    def _error_itself(self, name: str, message: str, args: list[Any], attributes: Any, left: int) -> BaseException:
        try:
            shape = self._rules.registry.shape_named(name)
            if not isinstance(shape, ErrorShape):
                raise SerializationError(f"{name} is not an exception here: the sender runs another version of it")
            return shape.build(tuple(self.items(args, left)), self._fields(attributes, left + 1))
        except SerializationError as refused:
            if not self._degrades:
                raise
            remote = RemoteError(name.replace(":", "."), str(message))
            remote.add_note(f"It did not arrive as it is: {refused}")
            return remote


_READERS: Final[dict[Node, Callable[[Reading, list[Any], int], Any]]] = {
    Node.TUPLE: lambda reading, value, left: tuple(reading.rest(value, left)),
    Node.SET: lambda reading, value, left: set(reading.rest(value, left)),
    Node.FROZENSET: lambda reading, value, left: frozenset(reading.rest(value, left)),
    Node.MAP: lambda reading, value, left: dict(reading.pairs(value, left)),
    Node.OBJECT: Reading.object,
    Node.ERROR: Reading.error,
    Node.ARRAY: lambda reading, value, left: numpy_values.put_together(*value),
    Node.ARRAY_SCALAR: lambda reading, value, left: numpy_values.put_together(*value),
    Node.DEQUE: lambda reading, value, left: collections.deque(reading.rest(value, left, 2), value[1]),
    Node.ORDERED_DICT: lambda reading, value, left: collections.OrderedDict(reading.pairs(value, left)),
    Node.COUNTER: lambda reading, value, left: collections.Counter(dict(reading.pairs(value, left))),
    Node.DEFAULT_DICT: lambda reading, value, left: collections.defaultdict(
        _factory(value[1]), dict(reading.pairs(value, left, 2))
    ),
}
"""How each node is read."""


def _factory(value: object) -> type | None:
    if value is None or isinstance(value, type):
        return value
    raise SerializationError("the payload cannot be read: the default of a defaultdict is not a class")


def check_depth(value: object, rules: Rules, left: int) -> None:
    """Refuse what writing would have refused; the walk of a payload with nodes does so itself."""
    if type(value) is list:
        children: Iterable[object] = cast("list[object]", value)
    elif type(value) is dict:
        children = cast("dict[object, object]", value).values()
    else:
        return
    if left <= 0:
        rules.refuse_depth()
    if not _CONTAINERS.isdisjoint(map(type, children)):
        for child in children:
            check_depth(child, rules, left - 1)
