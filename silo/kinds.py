"""Grain kinds: what the runtime knows of a grain class, and the kinds that one silo or client knows."""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from types import ModuleType
from typing import Any, Literal, TypedDict, cast, get_args

from silo.class_checks import Hooks, MethodSpec, read_class, suggestion
from silo.directory.addresses import KIND_PATTERN
from silo.directory.errors import GrainKindUnknown, InvalidGrain, InvalidSettings
from silo.persistence.declaration import PersistentField
from silo.placement.rules import PlacementRule, parse_rule
from silo.soft_state import SoftStateField

KIND = "__silo_kind__"
Reentrance = bool | Literal["call_chain"]
OnBusy = Literal["wait", "stay", "interrupt"]
OnParticipantError = Literal["abort", "skip"]
ON_BUSY: tuple[OnBusy, ...] = get_args(OnBusy)


class GrainOptions(TypedDict, total=False):
    """What `@grain(...)` takes; see there."""

    kind: str
    placement: PlacementRule
    reentrant: Reentrance
    migratable: bool
    collect_after: float | timedelta
    version: int
    on_busy: OnBusy
    queue_calls_max: int
    queue_bytes_max: int
    drain_timeout: float | timedelta
    on_participant_error: OnParticipantError
    drain_tasks: bool


@dataclass(frozen=True, slots=True, eq=False)
class GrainKind:
    """One kind of grain. Where an option is None, the silo's setting counts."""

    name: str
    cls: type
    methods: Mapping[str, MethodSpec]
    hooks: Hooks
    soft_state: tuple[SoftStateField, ...]
    placement: PlacementRule | None = None
    reentrant: Reentrance = False
    migratable: bool = True
    collect_after_s: float | None = None
    """Infinite for a kind that is never collected."""
    version: int = 1
    on_busy: OnBusy = "wait"
    queue_calls_max: int | None = None
    queue_bytes_max: int | None = None
    drain_timeout_s: float | None = None
    on_participant_error: OnParticipantError = "abort"
    drain_tasks: bool = False
    persistent: tuple[PersistentField, ...] = ()
    starts_bare: bool = False
    """Nothing of its own runs before its first turn: no constructor, no hook; and no state is read."""

    @property
    def origin(self) -> str:
        """Where the class is written, as `module:qualname`; the same for a module imported and one run with `-m`."""
        module = self.cls.__module__
        if module == "__main__":
            spec = getattr(sys.modules.get("__main__"), "__spec__", None)
            module = spec.name.removesuffix(".__main__") if spec is not None else module
        return f"{module}:{self.cls.__qualname__}"

    def unknown_method(self, name: str) -> GrainKindUnknown:
        """What to say to a call of a method that the kind has not."""
        return GrainKindUnknown(f"grain kind {self.name!r} has no method {name!r}{suggestion(name, self.methods)}")

    def __repr__(self) -> str:
        return f"<grain kind {self.name!r} of {self.origin}>"


def make_kind(cls: type, options: Mapping[str, object]) -> GrainKind:
    """The kind that a class declares with these options; raises InvalidGrain."""
    where = f"@grain on {cls.__module__}.{cls.__qualname__}"
    for option in options:
        if option not in GrainOptions.__annotations__:
            known = ", ".join(GrainOptions.__annotations__)
            raise InvalidGrain(
                f"{where}: unknown option {option!r}{suggestion(option, GrainOptions.__annotations__)} (known: {known})"
            )
    parts = read_class(cls)
    chosen = _Options(options, where)
    return GrainKind(
        chosen.kind_name(cls.__name__),
        cls,
        parts.methods,
        parts.hooks,
        parts.soft_state,
        placement=chosen.placement(),
        reentrant=cast("Reentrance", chosen.one_of("reentrant", (False, True, "call_chain"))),
        migratable=cast("bool", chosen.one_of("migratable", (True, False))),
        collect_after_s=chosen.seconds("collect_after"),
        version=chosen.number("version") or 1,
        on_busy=cast("OnBusy", chosen.one_of("on_busy", ON_BUSY)),
        queue_calls_max=chosen.number("queue_calls_max"),
        queue_bytes_max=chosen.number("queue_bytes_max"),
        drain_timeout_s=chosen.seconds("drain_timeout"),
        on_participant_error=cast("OnParticipantError", chosen.one_of("on_participant_error", ("abort", "skip"))),
        drain_tasks=cast("bool", chosen.one_of("drain_tasks", (False, True))),
        persistent=parts.persistent,
        starts_bare=not parts.persistent and parts.hooks.on_activate is None and _is_bare(cls),
    )


def _is_bare(cls: type) -> bool:
    """Whether making an instance runs nothing that a grain's author wrote."""
    plain: Any = object
    return all(getattr(cls, name) is getattr(plain, name) for name in ("__new__", "__init__", "__setattr__"))


def require_on_busy(on_busy: OnBusy | None) -> None:
    """Raise ValueError unless it is one of the ways to treat running calls, or None for what the kind says."""
    if on_busy is not None and on_busy not in ON_BUSY:  # callers may be untyped
        wanted = ", ".join(map(repr, ON_BUSY))
        raise ValueError(f"on_busy={on_busy!r}: one of {wanted} is wanted{suggestion(str(on_busy), ON_BUSY)}")


def kind_of(grain: object) -> GrainKind:
    """The kind of a grain class, of a grain instance or of a reference.

    Raises:
        InvalidGrain: it is none of these.
    """
    cls = grain if isinstance(grain, type) else type(grain)
    kind = vars(cls).get(KIND)
    if isinstance(kind, GrainKind):
        return kind
    inherited = getattr(cls, KIND, None)
    if isinstance(inherited, GrainKind):
        raise InvalidGrain(
            f"{cls.__qualname__} derives from the grain class {inherited.cls.__qualname__}; write @grain on it, too"
        )
    raise InvalidGrain(f"{cls.__module__}.{cls.__qualname__} is no grain class; write @grain on it")


def collect_kinds(module: ModuleType) -> tuple[GrainKind, ...]:
    """The grain kinds that a module stands for, in the order in which it names them.

    With `__all__`, those that it lists; otherwise those that it or, for a package, one of its modules defines. Grain
    classes that a module only imports in order to call them are not its own.
    """
    exported = getattr(module, "__all__", None)
    names: Iterable[str] = vars(module) if exported is None else exported
    kinds: dict[GrainKind, None] = {}
    for name in names:
        cls = getattr(module, name, None)
        if not isinstance(cls, type) or not isinstance(kind := vars(cls).get(KIND), GrainKind):
            continue
        inside = cls.__module__ == module.__name__
        if hasattr(module, "__path__"):
            inside = inside or cls.__module__.startswith(f"{module.__name__}.")
        if inside or exported is not None:
            kinds[kind] = None
    return tuple(kinds)


class KindRegistry:
    """The grain kinds that one silo or client knows, by name."""

    def __init__(self, kinds: Iterable[GrainKind | type] = ()) -> None:
        self._by_name: dict[str, GrainKind] = {}
        for kind in kinds:
            self.add(kind)

    def add(self, grain: GrainKind | type) -> GrainKind:
        """Take a kind in; the same class, imported once more, takes the place of its earlier form.

        Raises:
            InvalidGrain: no grain class, or another class has its kind's name.
        """
        kind = grain if isinstance(grain, GrainKind) else kind_of(grain)
        known = self._by_name.get(kind.name)
        if known is kind:
            return kind
        if known is not None and known.origin != kind.origin:
            raise InvalidGrain(
                f"two grain classes have the kind {kind.name!r}: {known.origin} and {kind.origin};"
                " give one of them another name: @grain(kind=…)"
            )
        self._by_name[kind.name] = kind
        return kind

    def get(self, name: str) -> GrainKind | None:
        """The kind of that name; None where it is not known."""
        return self._by_name.get(name)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all kinds, sorted."""
        return tuple(sorted(self._by_name))

    def __getitem__(self, name: str) -> GrainKind:
        """The kind of that name; raises GrainKindUnknown."""
        kind = self._by_name.get(name)
        if kind is None:
            raise GrainKindUnknown(f"grain kind {name!r} is not known here{suggestion(name, self._by_name)}")
        return kind

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __iter__(self) -> Iterator[GrainKind]:
        return iter(tuple(self._by_name.values()))

    def __len__(self) -> int:
        return len(self._by_name)


def hosted_nowhere(kind: str, hosted: Iterable[Collection[str]]) -> str:
    """Why no silo can have a grain of this kind; empty where one may.

    Args:
        hosted: the kinds that each silo says it hosts; one that lists none hosts whatever comes.
    """
    by_silo = list(hosted)
    names = {name for kinds in by_silo for name in kinds}
    if kind in names or not all(by_silo):
        return ""
    return f"no silo hosts grains of kind {kind!r} (hosted: {', '.join(sorted(names))}){suggestion(kind, names)}"


class _Options:
    """The options of one `@grain(...)`, checked as they are read."""

    def __init__(self, options: Mapping[str, object], where: str) -> None:
        self._options = options
        self._where = where

    def kind_name(self, default: str) -> str:
        name = self._options.get("kind", default)
        if not isinstance(name, str) or not KIND_PATTERN.fullmatch(name):
            raise self._invalid("kind", f"a name of the form {KIND_PATTERN.pattern} is wanted", name)
        return name

    def placement(self) -> PlacementRule | None:
        rule = cast("PlacementRule | None", self._options.get("placement"))
        try:
            parse_rule(rule, "its rule")
        except InvalidSettings as error:
            wanted = "the name of a policy or a policy object is wanted, or a list of filters and at most one policy"
            raise self._invalid("placement", f"{wanted}; {error}", rule) from None
        return tuple(rule) if isinstance(rule, list) else rule

    def one_of(self, option: str, allowed: tuple[object, ...]) -> object:
        value = self._options.get(option, allowed[0])
        if not any(value is each or (isinstance(value, str) and value == each) for each in allowed):
            hint = (
                suggestion(value, (each for each in allowed if isinstance(each, str))) if isinstance(value, str) else ""
            )
            raise self._invalid(option, f"one of {', '.join(map(repr, allowed))} is wanted{hint}", value)
        return value

    def seconds(self, option: str) -> float | None:
        value = self._options.get(option)
        if value is None:
            return None
        seconds = value.total_seconds() if isinstance(value, timedelta) else value
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds > 0:
            raise self._invalid(option, "seconds above 0 or a timedelta are wanted; math.inf for never", value)
        return math.inf if math.isinf(seconds) else float(seconds)

    def number(self, option: str) -> int | None:
        value = self._options.get(option)
        if value is None:
            return None
        if type(value) is not int or value < 1:
            raise self._invalid(option, "an int from 1 on is wanted", value)
        return value

    def _invalid(self, option: str, wanted: str, value: object) -> InvalidGrain:
        return InvalidGrain(f"{self._where}: {option}={value!r}: {wanted}")
