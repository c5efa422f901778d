"""Declaring persistent state: `profile: Persistent[Profile] = persistent(Profile)`."""

from __future__ import annotations

import inspect
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, TypeVar, cast, overload

from silo.directory.addresses import KIND_PATTERN
from silo.directory.errors import InvalidGrain
from silo.grain_context import OutsideGrain
from silo.persistence.persistent import Persistent

T = TypeVar("T")


class PersistentField:
    """The descriptor behind `persistent()`: leads from a grain's attribute to the `Persistent` of that instance."""

    __slots__ = ("_default_factory", "attribute", "name", "owner")
    __hash__ = None  # type: ignore[assignment] # pyright: ignore[reportAssignmentType] - refused as a dataclass default

    def __init__(self, default_factory: Callable[[], object] | None, name: str) -> None:
        self._default_factory = default_factory
        self.attribute = ""
        self.name = name
        """The name under which the value is stored."""
        self.owner: type = object

    def __set_name__(self, owner: type, attribute: str) -> None:
        self.owner = owner
        self.attribute = attribute
        self.name = self.name or attribute

    def __get__(self, instance: object | None, owner: type | None = None) -> object:
        if instance is None:
            return self
        return self.of(instance)

    def __set__(self, instance: object, value: object) -> None:
        raise AttributeError(f"{self.attribute} itself stays; set self.{self.attribute}.value, and then write() it")

    def __repr__(self) -> str:
        return f"<persistent state {self.name!r}>"

    def of(self, instance: object) -> Persistent[Any]:
        """The state of one instance; raises OutsideGrain where the runtime has given it none."""
        state = vars(instance).get(self.attribute)
        if state is None:
            raise OutsideGrain(
                f"self.{self.attribute} is there from on_activate on, in grains that a silo made: not in __init__,"
                " where it has not been read yet, and not in an instance made by hand"
            )
        return cast("Persistent[Any]", state)

    def bind(self, instance: object, state: Persistent[Any]) -> None:
        """Give an instance its state."""
        vars(instance)[self.attribute] = state

    def default(self) -> object:
        """The value of a state that has never been written; raises InvalidGrain where the annotation names no class."""
        if self._default_factory is None:
            self._default_factory = self._factory_of_annotation()
        return self._default_factory()

    def resolve(self, *, forward_references: bool) -> None:
        """See to it that there is a way to make a default.

        Args:
            forward_references: whether the annotation may name what is not defined yet.

        Raises:
            InvalidGrain: there is none.
        """
        if self._default_factory is not None:
            self._require_no_arguments(self._default_factory)
            return
        try:
            self._default_factory = self._factory_of_annotation()
        except NameError:
            if not forward_references:
                raise InvalidGrain(
                    f"{self._where}: its annotation names what is not defined at run time; write persistent(<class>)"
                ) from None

    def _factory_of_annotation(self) -> Callable[[], object]:
        hint = self._hint()
        if typing.get_origin(hint) is not Persistent:
            raise InvalidGrain(f"{self._where}: it is annotated as {hint!r}, and not as Persistent[…]")
        (wanted,) = typing.get_args(hint)
        cls = typing.get_origin(wanted) or wanted
        if not isinstance(cls, type) or cls is types.UnionType:
            raise InvalidGrain(f"{self._where}: what it starts from cannot be told from {wanted!r}; {_FIX}")
        self._require_no_arguments(cls)
        return cast("Callable[[], object]", wanted)

    def _require_no_arguments(self, factory: Callable[..., object]) -> None:
        try:
            signature = inspect.signature(factory)
        except ValueError:
            return  # a builtin that tells nobody what it takes
        try:
            signature.bind()
        except TypeError as error:
            raise InvalidGrain(f"{self._where}: {factory!r} wants arguments ({error}); {_FIX}") from None

    def _hint(self) -> object:
        hint = annotations_of(self.owner).get(self.attribute)
        if hint is None:
            raise InvalidGrain(
                f"{self._where}: without an annotation nobody knows what is stored; write"
                f" {self.attribute}: Persistent[…] = persistent(…)"
            )
        alone = types.SimpleNamespace(__annotations__={self.attribute: hint})
        module = sys.modules.get(self.owner.__module__)
        return typing.get_type_hints(alone, vars(module or types), dict(vars(self.owner)))[self.attribute]

    @property
    def _where(self) -> str:
        return f"{self.owner.__module__}.{self.owner.__qualname__}.{self.attribute}"

    def check(self) -> None:
        """Raise InvalidGrain where the attribute is not annotated as `Persistent[…]`, as far as can be told yet."""
        try:
            hint = self._hint()
        except NameError:
            hint = Persistent  # or what only type checkers see
        if hint is not Persistent and typing.get_origin(hint) is not Persistent:
            raise InvalidGrain(f"{self._where}: it is annotated as {hint!r}, and not as Persistent[…]")
        self.resolve(forward_references=True)


_FIX = "say what it starts from: persistent(default_factory)"


@overload
def persistent(*, name: str | None = None) -> Any: ...
@overload
def persistent(default_factory: type[Collection[Any]], *, name: str | None = None) -> Any: ...
@overload
def persistent(default_factory: Callable[[], T], *, name: str | None = None) -> Persistent[T]: ...
def persistent(default_factory: Callable[[], object] | None = None, *, name: str | None = None) -> Any:
    """Declare an attribute of a grain that is stored: it outlives activations, silos and crashes.

    It is read before `on_activate`, written by `await self.attribute.write()`, and travels with a live migration.

    ```python
    profile: Persistent[Profile] = persistent(Profile)
    ```

    Args:
        default_factory: makes the value of a grain for which nothing is stored; the annotated class if left out.
        name: under which the value is stored, so that the attribute can be renamed; its own name if left out.

    Raises:
        InvalidGrain: a factory that is none, or a name that cannot be stored.
    """
    if default_factory is not None and not callable(default_factory):
        raise InvalidGrain(f"persistent({default_factory!r}): a class or function without arguments is wanted")
    if name is not None and (type(name) is not str or not KIND_PATTERN.fullmatch(name)):
        raise InvalidGrain(f"persistent(name={name!r}): a name of the form {KIND_PATTERN.pattern} is wanted")
    return PersistentField(default_factory, name or "")


def check_fields(
    fields: Sequence[PersistentField], soft_state: Iterable[tuple[str, str]], where: str, *, has_dict: bool
) -> None:
    """Raise InvalidGrain where a class's persistent states are declared wrongly.

    Args:
        soft_state: the names and attributes of the class's soft state.
        has_dict: whether instances of the class have a `__dict__`.
    """
    if fields and not has_dict:
        raise InvalidGrain(
            f"{where} has __slots__ and no __dict__, so the persistent state {fields[0].attribute!r} has no place in"
            " its instances; remove __slots__"
        )
    seen = {name: f"the soft state {attribute!r}" for name, attribute in soft_state}
    for field in fields:
        mine = f"the persistent state {field.attribute!r}"
        other = seen.setdefault(field.name, mine)
        if other != mine:
            raise InvalidGrain(
                f"{where}: {other} and {mine} would have one name, {field.name!r}; give one another name=…"
            )
        field.check()


def annotations_of(cls: type) -> dict[str, Any]:
    """What the class itself annotates, strings as they are written."""
    if sys.version_info >= (3, 14):
        from annotationlib import Format, get_annotations

        return get_annotations(cls, format=Format.FORWARDREF)
    return inspect.get_annotations(cls)
