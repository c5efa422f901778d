"""Which classes the type hints of a grain mention: those are what its callers may send and receive."""

from __future__ import annotations

import dataclasses
import inspect
import sys
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from silo.class_checks import BASE
from silo.serialization.shapes import is_named_tuple

if sys.version_info >= (3, 14):
    import annotationlib

KNOWN_MAX: Final = 1_000
"""Of how many classes it is kept in mind what they mention."""
_NO_LOCALS: Final[Mapping[str, object]] = {}


@dataclasses.dataclass(slots=True)
class Mentions:
    """What type hints mention."""

    classes: dict[type, None] = dataclasses.field(default_factory=dict)
    """In order of first mention."""
    unresolved: dict[str, str] = dataclasses.field(default_factory=dict)
    """Hints that name nothing at run time, each with where it stands."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Known:
    """What a class was found to mention, and what the names of those classes stood for then."""

    mentions: Mentions
    named: tuple[object, ...]

    @property
    def is_current(self) -> bool:
        """Whether none of them was defined anew, which the hints would name from then on."""
        return all(_named_like(cls) is then for cls, then in zip(self.mentions.classes, self.named, strict=True))


_known: Final[dict[type, _Known]] = {}


def mentioned_by(cls: type) -> Mentions:
    """What `mentioned` says of a class, found out once: each silo and client of a process asks for the same kinds."""
    known = _known.get(cls)
    if known is not None and known.is_current:
        return known.mentions
    mentions = mentioned(cls)
    if not mentions.unresolved:  # else it may name something later on
        if len(_known) >= KNOWN_MAX:
            _known.clear()
        _known[cls] = _Known(mentions, tuple(map(_named_like, mentions.classes)))
    return mentions


def _named_like(cls: type) -> object:
    """What stands where the class says that it was defined."""
    found: object = sys.modules.get(cls.__module__)
    for name in cls.__qualname__.split("."):
        found = getattr(found, name, None)
    return found


def mentioned(target: object, localns: Mapping[str, object] | None = None) -> Mentions:
    """The classes in the hints of a function, or in those of a class's attributes and public methods.

    The hints of dataclasses, NamedTuples, TypedDicts and msgspec structs that are mentioned are followed. A hint that
    cannot be resolved, such as one imported only for type checkers, is reported instead of raised: the class may
    never be sent.
    """
    mentions = Mentions()
    local_names = _NO_LOCALS if localns is None else localns
    _follow_hints(target, local_names, mentions)
    if isinstance(target, type):
        for base in target.__mro__[:-1]:
            if BASE in vars(base):
                continue  # what a grain asks of the runtime never travels
            for name, member in vars(base).items():
                if not name.startswith("_") and inspect.isfunction(member):
                    _follow_hints(member, local_names, mentions)
    return mentions


def _follow_hints(owner: Any, localns: Mapping[str, object], mentions: Mentions) -> None:
    for hint in _resolved(owner, localns, mentions):
        _follow(hint, localns, mentions)


def _resolved(owner: Any, localns: Mapping[str, object], mentions: Mentions) -> list[object]:
    try:
        return list(typing.get_type_hints(owner, localns=dict(localns) or None, include_extras=True).values())
    except Exception:  # a hint is any expression; whatever evaluating it raises, the others still count
        return list(_resolved_one_by_one(owner, localns, mentions))


def _resolved_one_by_one(owner: Any, localns: Mapping[str, object], mentions: Mentions) -> Iterator[object]:
    holders: tuple[Any, ...] = owner.__mro__[:-1] if isinstance(owner, type) else (inspect.unwrap(owner),)
    for holder in holders:
        module = sys.modules.get(getattr(holder, "__module__", None) or "")
        names: dict[str, object] = getattr(holder, "__globals__", None) or vars(module or types)
        for name, hint in _annotations(holder).items():
            alone = types.SimpleNamespace(__annotations__={name: hint})
            try:
                yield from typing.get_type_hints(alone, names, dict(localns), include_extras=True).values()
            except Exception:  # as above
                mentions.unresolved[str(hint)] = f"{getattr(holder, '__qualname__', holder)}, {name}"


def _annotations(holder: Any) -> dict[str, Any]:
    if sys.version_info >= (3, 14):
        return annotationlib.get_annotations(holder, format=annotationlib.Format.FORWARDREF)
    return inspect.get_annotations(holder)


def _follow(hint: Any, localns: Mapping[str, object], mentions: Mentions) -> None:
    """Add the classes in one hint; recursion goes as deep as the hint is written."""
    if isinstance(hint, type) and typing.get_origin(hint) is None:
        _follow_class(hint, localns, mentions)
        return
    if typing.get_origin(hint) is typing.Literal:
        for value in typing.get_args(hint):
            _follow(type(value), localns, mentions)
        return
    for part in _parts(hint):
        _follow(part, localns, mentions)


def _parts(hint: Any) -> Iterator[object]:
    if isinstance(hint, (list, tuple)):  # the parameters of a Callable
        yield from typing.cast("list[object]", hint)
        return
    yield from typing.get_args(hint)
    origin = typing.get_origin(hint)
    if origin is not None and origin is not hint:
        yield origin
    for attribute in ("__supertype__", "__bound__", "__value__"):  # NewType, TypeVar, a type alias
        part = getattr(hint, attribute, None)
        if part is not None:
            yield part
    yield from getattr(hint, "__constraints__", ())


def _follow_class(cls: type, localns: Mapping[str, object], mentions: Mentions) -> None:
    if cls in mentions.classes:
        return
    mentions.classes[cls] = None
    if _has_fields(cls):
        _follow_hints(cls, localns, mentions)


def _has_fields(cls: type[Any]) -> bool:
    if issubclass(cls, msgspec.Struct):
        return cls is not msgspec.Struct
    return is_named_tuple(cls) or dataclasses.is_dataclass(cls) or typing.is_typeddict(cls)
