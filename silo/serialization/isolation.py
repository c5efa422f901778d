"""Isolation: what the receiver of a local call gets, so that it cannot tell it from a remote one.

Immutable values are passed as they are; all others are copied into what a round trip through the plain codec would
give, without writing bytes. What the codec refuses is refused here in the same words.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any, Final, cast

from silo.directory.errors import SerializationError
from silo.serialization import numpy_values
from silo.serialization.exceptions import described
from silo.serialization.leaves import LEAF_ENCODERS
from silo.serialization.plain import PlainCodec
from silo.serialization.rules import Rules
from silo.serialization.shapes import EnumShape, FieldShape
from silo.serialization.tags import SCALARS


class Isolation:
    """Copies for local calls, by the rules of one plain codec."""

    def __init__(self, rules: Rules, codec: PlainCodec) -> None:
        self._rules = rules
        self._codec = codec

    def copy(self, value: object) -> object:
        """The receiver's value; raises SerializationError for what could not be sent."""
        try:
            return self.walk(value, self._rules.depth_max)
        except SerializationError:
            raise
        except Exception as error:  # fields are read from objects of the application, which may raise anything
            raise SerializationError(f"a value could not be sent: {described(error)}") from error

    def walk(self, value: object, left: int) -> Any:
        """The receiver's value; `left` is how many levels it may still nest."""
        kind = type(value)
        if kind in SCALARS:
            return value
        encode_leaf = LEAF_ENCODERS.get(kind)
        if encode_leaf is not None:
            if kind is bytearray:
                return bytearray(cast("bytearray", value))
            encode_leaf(value)  # refuses what a remote call would refuse
            return value
        if left <= 0:
            self._rules.refuse_depth()
        copier = _COPIERS.get(kind)
        if copier is not None:
            return copier(self, value, left - 1)
        return self._instance(value, kind, left - 1)

    def items(self, values: Any, left: int) -> list[Any]:
        if SCALARS.issuperset(map(type, values)):
            return list(values)
        return [self.walk(item, left) for item in values]

    def pairs(self, value: dict[Any, Any], left: int) -> dict[Any, Any]:
        return {self.walk(key, left): self.walk(item, left) for key, item in value.items()}

    def frozen(self, value: Any, left: int) -> Any:
        """A tuple or frozenset: itself where nothing in it changes."""
        items = self.items(value, left)
        return value if _all_same(items, value) else type(value)(items)

    def _instance(self, value: Any, kind: type, left: int) -> Any:
        rules = self._rules
        shape = rules.registry.shape(kind)
        if isinstance(shape, FieldShape) and rules.registry.is_current(shape):
            return self._fields(value, shape, left)
        if isinstance(shape, EnumShape) and rules.registry.is_current(shape):
            shape.take(value)
            return value
        if shape is not None:
            return self._codec.decode(self._codec.encode(value))
        if rules.references.include(value):
            return rules.references.bound(rules.references.identity(value))
        if isinstance(value, type):
            rules.registry.name_of(value)
            return value
        if numpy_values.taken_apart(value) is None:
            rules.refuse(value)
        return numpy_values.copied(value)

    def _fields(self, value: Any, shape: FieldShape, left: int) -> Any:
        fields = shape.take(value)
        copies = {name: self.walk(item, left) for name, item in fields.items()}
        extras = {name: self.walk(item, left) for name, item in shape.take_extras(value).items()}
        if shape.is_immutable and not extras and _all_same(copies.values(), fields.values()):
            return value
        return shape.build(copies, extras)


def _all_same(ones: Any, others: Any) -> bool:
    return all(one is other for one, other in zip(ones, others, strict=True))


_COPIERS: Final[dict[type, Callable[[Isolation, Any, int], Any]]] = {
    list: Isolation.items,
    dict: Isolation.pairs,
    tuple: Isolation.frozen,
    frozenset: Isolation.frozen,
    set: lambda isolation, value, left: set(isolation.items(value, left)),
    collections.deque: lambda isolation, value, left: collections.deque(isolation.items(value, left), value.maxlen),
    collections.OrderedDict: lambda isolation, value, left: collections.OrderedDict(isolation.pairs(value, left)),
    collections.Counter: lambda isolation, value, left: collections.Counter(isolation.pairs(value, left)),
    collections.defaultdict: lambda isolation, value, left: collections.defaultdict(
        isolation.walk(value.default_factory, left), isolation.pairs(value, left)
    ),
}
"""How each builtin container is copied. Dispatch is by exact class."""
