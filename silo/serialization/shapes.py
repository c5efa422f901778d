"""Shapes: how a value of a registered class is taken apart into fields, and how it is put together again.

Putting together calls no `__init__` of the application, which might fail or have effects. The one exception is
msgspec.Struct, which can be built in no other way; its `__post_init__` runs.
"""

from __future__ import annotations

import builtins
import contextlib
import dataclasses
import enum
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

import msgspec

from silo.directory.errors import SerializationError

_MISSING: Final = object()

_BUILTIN_ATTRIBUTES: Final[dict[type[BaseException], tuple[str, ...]]] = {
    OSError: ("filename", "filename2"),
    ImportError: ("name", "path"),
    NameError: ("name",),
    AttributeError: ("name",),
}
"""What builtin exceptions hold beside their args and outside of `__dict__`."""


@dataclasses.dataclass(frozen=True, slots=True)
class FieldShape:
    """A dataclass, NamedTuple or msgspec.Struct: values by field name."""

    cls: type
    name: str
    defaults: Mapping[str, Callable[[], object] | None]
    """Field names in order; each with what makes its default, or None where it has none."""
    make: Callable[[dict[str, Any]], object]
    is_immutable: bool

    def take(self, value: object) -> dict[str, object]:
        """The fields' values by name, in the order of the class."""
        try:
            return {field: getattr(value, field) for field in self.defaults}
        except AttributeError as error:
            raise SerializationError(f"{self.name} cannot be sent: one of its fields has no value ({error})") from error

    def take_extras(self, value: object) -> dict[str, object]:
        """Attributes that are no fields, such as those set in `__post_init__`.

        What `cached_property` keeps is left out: it is computed again.
        """
        attributes: dict[str, object] = getattr(value, "__dict__", {})
        if attributes.keys() <= self.defaults.keys():
            return {}
        return {
            name: item for name, item in attributes.items() if name not in self.defaults and not self._is_kept(name)
        }

    def _is_kept(self, attribute: str) -> bool:
        """Whether the attribute stays behind: a cached property, or what Python itself notes (`__orig_class__`)."""
        is_cached = isinstance(getattr(self.cls, attribute, None), functools.cached_property)
        return is_cached or (attribute.startswith("__") and attribute.endswith("__"))

    def build(self, fields: dict[str, object], extras: Mapping[str, object] | None = None) -> object:
        """A new value; fields that are missing take their defaults.

        Raises:
            SerializationError: a field is unknown, or is missing and has no default; names the class and the field.
        """
        if len(fields) != len(self.defaults) or fields.keys() != self.defaults.keys():
            fields = self._reconciled(fields)
        try:
            value = self.make(fields)
            if extras:
                vars(value).update(extras)
        except Exception as error:  # __post_init__ of a Struct, or a descriptor of the application
            raise SerializationError(f"{self.name} could not be rebuilt from its fields: {error!r}") from error
        return value

    def _reconciled(self, fields: dict[str, object]) -> dict[str, object]:
        """The fields of another version of the class, as this version has them."""
        for field in fields:
            if field not in self.defaults:
                raise SerializationError(
                    f"{self.name} has no field {field!r} here: the sender runs another version of the class; "
                    "remove a field only after every process has stopped sending it"
                )
        whole: dict[str, object] = {}
        for field, default in self.defaults.items():
            if field in fields:
                whole[field] = fields[field]
            elif default is not None:
                whole[field] = default()
            else:
                raise SerializationError(
                    f"{self.name} came without its field {field!r}: the sender runs another version of the class; "
                    "give a new field a default"
                )
        return whole


@dataclasses.dataclass(frozen=True, slots=True)
class EnumShape:
    """An enum: members travel by name, flags by value, since a combination of flags has no name."""

    cls: type[enum.Enum]
    name: str

    def take(self, value: enum.Enum) -> str:
        """What identifies the member."""
        if isinstance(value, enum.Flag):
            return f"{value.value:x}"
        if self.cls.__members__.get(value.name) is not value:
            raise SerializationError(f"{value!r} is not among the members of {self.name} and cannot be sent")
        return value.name

    def build(self, member: str) -> enum.Enum:
        """The member that `take` identified; raises SerializationError for one that this process does not have."""
        try:
            if issubclass(self.cls, enum.Flag):
                return self.cls(int(member, 16))
            return self.cls.__members__[member]
        except (KeyError, ValueError) as error:
            raise SerializationError(
                f"{self.name} has no member {member[:100]!r} here: the sender runs another version of the class"
            ) from error


@dataclasses.dataclass(frozen=True, slots=True)
class ErrorShape:
    """An exception class: args, attributes, and what its builtin base keeps to itself."""

    cls: type[BaseException]
    name: str
    base: type[BaseException]
    """The nearest builtin class, whose constructor the args are for."""
    attributes: tuple[str, ...]
    """Names outside of `__dict__`: slots, and those of the builtin base."""

    def take(self, error: BaseException) -> dict[str, object]:
        """The attributes by name, notes left out."""
        taken: dict[str, object] = {name: value for name, value in vars(error).items() if name != "__notes__"}
        for name in self.attributes:
            value = getattr(error, name, None)
            if value is not None:
                taken[name] = value
        return taken

    def build(self, args: tuple[object, ...], attributes: Mapping[str, object]) -> BaseException:
        """A new error, without the class's own `__init__`: the args are those that reached the builtin base.

        Raises:
            SerializationError: the builtin base refuses the args.
        """
        try:
            return self._build(args, attributes)
        except (
            Exception
        ) as error:  # an exception group checks its members; a slot of the application may be a descriptor
            raise SerializationError(f"{self.name} could not be rebuilt from its args: {error!r}") from error

    def _build(self, args: tuple[object, ...], attributes: Mapping[str, object]) -> BaseException:
        error = self.base.__new__(self.cls, *args)
        # UnicodeError and its like insist on their own args; a class that never gave them keeps its args all the same.
        with contextlib.suppress(TypeError):
            self.base.__init__(error, *args)
        error.args = args
        for name, value in attributes.items():
            if name in self.attributes:
                setattr(error, name, value)
            else:
                vars(error)[name] = value
        return error


Shape = FieldShape | EnumShape | ErrorShape


def shape_of(cls: type[Any], name: str) -> Shape | None:
    """The shape of a class, or None where it has none that can travel."""
    if issubclass(cls, BaseException):
        base = next(
            base for base in cls.__mro__ if base.__module__ == builtins.__name__ and issubclass(base, BaseException)
        )
        return ErrorShape(cls, name, base, (*_slots(cls), *_builtin_attributes(cls)))
    if issubclass(cls, enum.Enum):
        return EnumShape(cls, name)
    if issubclass(cls, msgspec.Struct):
        return _struct_shape(cls, name)
    if is_named_tuple(cls):
        return _named_tuple_shape(cls, name)
    if dataclasses.is_dataclass(cls) and _is_plain_object(cls):
        return _dataclass_shape(cls, name)
    return None


def is_named_tuple(cls: type[Any]) -> bool:
    """Whether the class is a NamedTuple or made by collections.namedtuple."""
    return issubclass(cls, tuple) and hasattr(cast("Any", cls), "_fields")


def _slots(cls: type) -> tuple[str, ...]:
    found: list[str] = []
    for base in cls.__mro__:
        slots: str | tuple[str, ...] = base.__dict__.get("__slots__", ())
        found += [slots] if isinstance(slots, str) else slots
    return tuple(name for name in found if not name.startswith("__"))


def _builtin_attributes(cls: type[BaseException]) -> tuple[str, ...]:
    return tuple(name for base, names in _BUILTIN_ATTRIBUTES.items() if issubclass(cls, base) for name in names)


def _is_plain_object(cls: type) -> bool:
    """Whether an instance is an object and its attributes, and not a list, dict or other container besides."""
    if inspect.isabstract(cls):
        return True  # it has no instances of its own
    try:
        object.__new__(cls)
    except TypeError:
        return False
    return True


def _constant(value: object) -> Callable[[], object]:
    return lambda: value


def _struct_shape(cls: type[msgspec.Struct], name: str) -> FieldShape:
    defaults: dict[str, Callable[[], object] | None] = {}
    for field in msgspec.structs.fields(cls):
        if field.default_factory is not msgspec.NODEFAULT:
            defaults[field.name] = field.default_factory
        else:
            defaults[field.name] = None if field.default is msgspec.NODEFAULT else _constant(field.default)
    return FieldShape(cls, name, defaults, lambda fields: cls(**fields), cls.__struct_config__.frozen)


def _named_tuple_shape(cls: Any, name: str) -> FieldShape:
    names: tuple[str, ...] = cls._fields
    new: Callable[..., object] = cast("Any", tuple).__new__
    given: dict[str, object] = getattr(cls, "_field_defaults", {})
    defaults = {field: _constant(given[field]) if field in given else None for field in names}
    return FieldShape(cls, name, defaults, lambda fields: new(cls, [fields[field] for field in names]), True)


def _dataclass_shape(cls: Any, name: str) -> FieldShape:
    defaults: dict[str, Callable[[], object] | None] = {}
    for field in dataclasses.fields(cls):
        if field.default_factory is not dataclasses.MISSING:
            defaults[field.name] = field.default_factory
        else:
            defaults[field.name] = None if field.default is dataclasses.MISSING else _constant(field.default)

    def make(fields: dict[str, object]) -> object:
        value: object = object.__new__(cls)
        for field, item in fields.items():
            object.__setattr__(value, field, item)
        return value

    is_frozen: bool = cls.__dataclass_params__.frozen
    return FieldShape(cls, name, defaults, make, is_frozen)
