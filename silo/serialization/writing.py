"""Writing: from values to what MessagePack can hold, exactly, by the allow-list."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any, Final, cast

from msgspec.msgpack import Encoder, Ext

from silo.directory.errors import SerializationError
from silo.serialization import exceptions, numpy_values
from silo.serialization.leaves import LEAF_ENCODERS, grain_id_bytes, text_leaf
from silo.serialization.rules import Rules
from silo.serialization.shapes import EnumShape, ErrorShape, FieldShape
from silo.serialization.tags import NODES, SCALARS, Leaf, Node

SCALARS_CHECKED: Final = SCALARS - {int, str}
"""The scalars that are written as they are even where one long int or lone surrogate has been found among them."""

_KEYS: Final[frozenset[type]] = frozenset({int, str})
_OPENING: Final = {node: Ext(code, b"") for code, node in NODES.items()}
_encode_enum: Final = Encoder().encode


class Writing:
    """One value on its way to MessagePack."""

    __slots__ = ("_causes_left", "_degrades", "_rules", "_scalars", "has_nodes")

    def __init__(self, rules: Rules, scalars: frozenset[type], *, degrades: bool) -> None:
        self._rules = rules
        self._scalars = scalars
        self._degrades = degrades
        self._causes_left = exceptions.CAUSES_MAX
        self.has_nodes = False

    def walk(self, value: object, left: int) -> Any:
        """The value in terms of MessagePack; `left` is how many levels it may still nest."""
        kind = type(value)
        if kind in self._scalars:
            return value
        leaf = LEAF_ENCODERS.get(kind)
        if leaf is not None:
            return leaf(value)
        if left <= 0:
            self._rules.refuse_depth()
        writer = _WRITERS.get(kind)
        if writer is not None:
            return writer(self, value, left - 1)
        return self._instance(value, kind, left - 1)

    def items(self, values: Any, left: int) -> list[Any]:
        """The items of a container; a copy only where something in them changes."""
        if self._scalars.issuperset(map(type, values)):
            return cast("list[Any]", values)
        return [self.walk(item, left) for item in values]

    def node(self, tag: Node, *parts: object) -> list[object]:
        self.has_nodes = True
        return [_OPENING[tag], *parts]

    def map(self, value: dict[Any, Any], left: int) -> Any:
        if _KEYS.issuperset(map(type, value)):
            if self._scalars.issuperset(map(type, value.values())) and self._scalars is SCALARS:
                return value
            if self._scalars is SCALARS or all(self.walk(key, left) is key for key in value):
                return {key: self.walk(item, left) for key, item in value.items()}
        return self.node(Node.MAP, *self.pairs(value, left))

    def pairs(self, value: dict[Any, Any], left: int) -> list[object]:
        return [self.walk(part, left) for pair in value.items() for part in pair]

    def fields(self, fields: dict[str, object], left: int) -> dict[str, object]:
        return {name: self.walk(item, left) for name, item in fields.items()}

    def _instance(self, value: Any, kind: type, left: int) -> Any:
        shape = self._rules.registry.shape(kind)
        if isinstance(shape, FieldShape):
            parts: list[object] = [shape.name, self.fields(shape.take(value), left)]
            extras = shape.take_extras(value)
            if extras:
                parts.append(self.fields(extras, left))
            return self.node(Node.OBJECT, *parts)
        if isinstance(shape, EnumShape):
            return Ext(Leaf.ENUM, _encode_enum((shape.name, shape.take(value))))
        if isinstance(value, BaseException):
            return self.error(value, left)
        references = self._rules.references
        if references.include(value):
            return Ext(Leaf.REFERENCE, grain_id_bytes(references.identity(value)))
        if isinstance(value, type):
            return Ext(Leaf.CLASS, self._rules.registry.name_of(cast("type[object]", value)).encode())
        array = numpy_values.taken_apart(value)
        return self._rules.refuse(value) if array is None else self.node(*array)

    def error(self, value: BaseException, left: int, note: str = "") -> list[object]:
        """The node of an exception. Where errors degrade, one that cannot be sent as it is becomes a RemoteError."""
        if not self._degrades:
            return self._error(value, left, note)
        if not exceptions.may_be_raised(value) and not exceptions.is_group(value):
            return self._error(exceptions.stand_in(value, ""), self._rules.depth_max, note)
        try:
            return self._error(value, left, note)
        except Exception as refused:  # attributes of the application may raise anything
            remote = exceptions.stand_in(value, f"It was not sent as it is: {exceptions.message_of(refused)}")
            return self._error(remote, self._rules.depth_max, note)

    def _error(self, value: BaseException, left: int, note: str) -> list[object]:
        shape = self._rules.registry.shape(type(value))
        if left <= 0:
            self._rules.refuse_depth()
        if not isinstance(shape, ErrorShape):
            self._rules.refuse(value)
        notes = [*exceptions.notes_of(value), *([note] if note else [])]
        attributes: dict[str, object] = {}
        args = [self.walk(item, left - 1) for item in value.args]
        for name, item in shape.take(value).items():
            try:
                attributes[name] = self.walk(item, left - 1)
            except SerializationError as refused:
                notes.append(f"Its attribute {name!r} was left behind: {refused}")
        return self.node(
            Node.ERROR,
            *(shape.name, text_leaf(exceptions.message_of(value)), args, attributes),
            *([text_leaf(each) for each in notes], self._cause(value, left - 1), value.__suppress_context__),
        )

    def _cause(self, value: BaseException, left: int) -> list[object] | None:
        if value.__cause__ is None or self._causes_left <= 0:
            return None
        self._causes_left -= 1
        return self.error(value.__cause__, left)


_WRITERS: Final[dict[type, Callable[[Writing, Any, int], Any]]] = {
    list: lambda writing, value, left: writing.items(value, left),
    dict: Writing.map,
    tuple: lambda writing, value, left: writing.node(Node.TUPLE, *writing.items(value, left)),
    set: lambda writing, value, left: writing.node(Node.SET, *writing.items(value, left)),
    frozenset: lambda writing, value, left: writing.node(Node.FROZENSET, *writing.items(value, left)),
    collections.deque: lambda writing, value, left: writing.node(Node.DEQUE, value.maxlen, *writing.items(value, left)),
    collections.OrderedDict: lambda writing, value, left: writing.node(Node.ORDERED_DICT, *writing.pairs(value, left)),
    collections.Counter: lambda writing, value, left: writing.node(Node.COUNTER, *writing.pairs(value, left)),
    collections.defaultdict: lambda writing, value, left: writing.node(
        Node.DEFAULT_DICT, writing.walk(value.default_factory, left), *writing.pairs(value, left)
    ),
}
"""How each builtin container is written. Dispatch is by exact class."""
