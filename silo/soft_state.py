"""Soft state: attributes of a grain that travel with a live migration."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, TypeVar, cast, overload

from silo.directory.errors import InvalidGrain
from silo.migration.lifecycle import Arrival, Departure
from silo.migration.participants import NOTHING, SOFT_STATE_PREFIX, upgraded

T = TypeVar("T")


class SoftStateField:
    """The descriptor behind `soft_state()`: makes the value when it is first read, and then stands aside.

    It has no `__set__`, so the instance's own attribute wins from then on, at an attribute's ordinary price.
    """

    __slots__ = ("attribute", "default", "default_factory", "name", "schema", "upgrade")
    # Unhashable, so that `@dataclass` refuses it as a mutable default instead of taking the descriptor for the value.
    __hash__ = None  # type: ignore[assignment] # pyright: ignore[reportAssignmentType] - the way to be unhashable

    def __init__(
        self,
        default: object,
        default_factory: Callable[[], object] | None,
        name: str | None,
        schema: int,
        upgrade: Callable[[int, Any], object] | None,
    ) -> None:
        self.attribute = ""
        self.default = default
        self.default_factory = default_factory
        self.name = name or ""
        """The name under which the value travels."""
        self.schema = schema
        self.upgrade = upgrade

    def __set_name__(self, owner: type, attribute: str) -> None:
        self.attribute = attribute
        self.name = self.name or attribute

    def __get__(self, instance: object | None, owner: type | None = None) -> object:
        if instance is None:
            return self
        value = self.default if self.default_factory is None else self.default_factory()
        vars(instance)[self.attribute] = value
        return value

    def __repr__(self) -> str:
        return f"<soft state {self.name!r}, schema {self.schema}>"


@overload
def soft_state(
    *, default: T, name: str | None = None, schema: int = 1, upgrade: Callable[[int, Any], T] | None = None
) -> T: ...
@overload
def soft_state(
    *,
    default_factory: type[Collection[Any]],
    name: str | None = None,
    schema: int = 1,
    upgrade: Callable[[int, Any], object] | None = None,
) -> (
    Any
): ...  # a bare `set` says nothing of what it will hold; pyright would make that Unknown, against the declared type
@overload
def soft_state(
    *,
    default_factory: Callable[[], T],
    name: str | None = None,
    schema: int = 1,
    upgrade: Callable[[int, Any], T] | None = None,
) -> T: ...
def soft_state(
    *,
    default: object = NOTHING,
    default_factory: Callable[[], object] | None = None,
    name: str | None = None,
    schema: int = 1,
    upgrade: Callable[[int, Any], object] | None = None,
) -> Any:
    """Declare an attribute of a grain that goes with it when it is moved.

    It is not stored: after a crash, or once the grain was idle for long, it starts again from its default.

    Args:
        default: the immutable value to start from.
        default_factory: what makes the value to start from, called when the attribute is first read.
        name: under which the value travels, so that the attribute can be renamed; its own name if left out.
        schema: the form of the value, from 1 on; raise it when the form changes.
        upgrade: `upgrade(from_schema, value)` gives the present form of a value that an older version handed over.

    Raises:
        InvalidGrain: neither or both of `default` and `default_factory`, or a default that all grains would share.
    """
    if (default is NOTHING) == (default_factory is None):
        raise InvalidGrain("soft_state takes either default=… or default_factory=…")
    if type(default).__hash__ is None:
        raise InvalidGrain(
            f"soft_state(default={default!r}): every grain would share this one {type(default).__name__};"
            f" write default_factory={type(default).__name__}, or a function that makes it"
        )
    if default_factory is not None and not callable(default_factory):
        raise InvalidGrain(f"soft_state(default_factory={default_factory!r}): a function without arguments is wanted")
    if type(schema) is not int or schema < 1:
        raise InvalidGrain(f"soft_state(schema={schema!r}): an int from 1 on is wanted")
    if name is not None and (type(name) is not str or not name):
        raise InvalidGrain(f"soft_state(name={name!r}): a str that is not empty is wanted")
    return SoftStateField(default, default_factory, name, schema, upgrade)


class SoftStatePart:
    """One soft-state attribute of one instance, as a part of its migration payload."""

    __slots__ = ("_field", "_instance")
    skippable = True

    def __init__(self, field: SoftStateField, instance: object) -> None:
        self._field = field
        self._instance = instance

    @property
    def name(self) -> str:
        """The entry's name."""
        return SOFT_STATE_PREFIX + self._field.name

    @property
    def schema(self) -> int:
        """The form in which the value is written."""
        return self._field.schema

    def dehydrate(self, departure: Departure) -> object:
        """The value; nothing where the attribute was never read or set, since the target makes its default as well."""
        return cast("object", vars(self._instance).get(self._field.attribute, NOTHING))

    def rehydrate(self, value: object, schema: int, arrival: Arrival) -> None:
        """Set the attribute, in its present form."""
        if schema < self._field.schema:
            value = upgraded(self._field.upgrade, schema, self._field.schema, value)
        vars(self._instance)[self._field.attribute] = value
