"""What a grain class consists of, read once where it is written: methods, hooks and soft state, or what is wrong."""

from __future__ import annotations

import difflib
import enum
import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, Final, cast

from silo.directory.errors import InvalidGrain
from silo.persistence.declaration import PersistentField, check_fields
from silo.soft_state import SoftStateField

MARKS = "__silo_marks__"
BASE = "__silo_base__"
REFERENCE_ATTRIBUTES = frozenset({"id", "key"})
"""What a reference has beside the grain's methods; no method may be named so."""

FITTING_SHAPES_MAX = 64
"""The most forms of a call (count and names of arguments) that one method remembers as right."""


class DefaultTimeout(enum.Enum):
    """Told apart from every number and from None: the caller's configured call timeout."""

    DEFAULT = "default"


DEFAULT_TIMEOUT: Final = DefaultTimeout.DEFAULT
TimeoutChoice = float | None | DefaultTimeout
"""Seconds; None for no deadline; or DEFAULT_TIMEOUT."""


@dataclass(frozen=True, slots=True)
class MethodMarks:
    """What method decorators said."""

    read_only: bool = False
    always_interleave: bool = False
    one_way: bool = False
    timeout_s: TimeoutChoice = DEFAULT_TIMEOUT


@dataclass(frozen=True, slots=True)
class MethodSpec:
    """One method of a grain kind, as callers and silos treat it."""

    name: str
    function: Callable[..., Any]
    """The plain function; its first argument is the instance."""
    signature: inspect.Signature
    """What callers pass: without the instance."""
    positional_min: int
    positional_max: int
    """Calls with so many positional arguments and no others need no closer look; -1 if every call needs one."""
    read_only: bool = False
    always_interleave: bool = False
    one_way: bool = False
    timeout_s: TimeoutChoice = DEFAULT_TIMEOUT
    _fitting: set[tuple[object, ...]] = field(default_factory=set[tuple[object, ...]], compare=False, repr=False)

    def check(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Raise TypeError where these arguments do not fit, as Python would on a direct call."""
        if not kwargs and self.positional_min <= len(args) <= self.positional_max:
            return
        shape = (len(args), *kwargs)  # whether arguments fit depends on their number and names alone
        if shape in self._fitting:
            return
        try:
            self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.function.__qualname__}(): {error}; it takes {self.signature}") from None
        if len(self._fitting) < FITTING_SHAPES_MAX:
            self._fitting.add(shape)


@dataclass(frozen=True, slots=True)
class Hook:
    """One lifecycle hook of a grain class; it may leave its argument out where the form says so."""

    function: Callable[..., Any]
    takes_argument: bool

    def __call__(self, instance: object, argument: object = None) -> Any:
        """Call it on an instance; the result of an async hook is to be awaited."""
        return self.function(instance, argument) if self.takes_argument else self.function(instance)


@dataclass(frozen=True, slots=True)
class Hooks:
    """The lifecycle hooks that a grain class has; None for each one that it has not."""

    on_activate: Hook | None = None
    """`async (self[, reason: ActivationReason])`."""
    on_deactivate: Hook | None = None
    """`async (self[, reason: DeactivationReason])`. A process that is killed runs no hook: what must survive is stored
    when it changes, not here."""
    on_migrating: Hook | None = None
    """`async (self[, notice: MigrationNotice])`."""
    on_dehydrate: Hook | None = None
    """`(self, context: DehydrateContext)`."""
    on_rehydrate: Hook | None = None
    """`(self, context: RehydrateContext)`."""
    can_migrate: Hook | None = None
    """`(self) -> bool`."""
    migration_cost: Hook | None = None
    """`(self) -> float`; an ordinary grain costs 1."""


@dataclass(frozen=True, slots=True)
class _HookForm:
    is_async: bool
    arguments_min: int
    arguments_max: int
    text: str


_HOOK_FORMS: Mapping[str, _HookForm] = {
    "on_activate": _HookForm(True, 0, 1, "async def on_activate(self, reason: ActivationReason)"),
    "on_deactivate": _HookForm(True, 0, 1, "async def on_deactivate(self, reason: DeactivationReason)"),
    "on_migrating": _HookForm(True, 0, 1, "async def on_migrating(self, notice: MigrationNotice)"),
    "on_dehydrate": _HookForm(False, 1, 1, "def on_dehydrate(self, context: DehydrateContext)"),
    "on_rehydrate": _HookForm(False, 1, 1, "def on_rehydrate(self, context: RehydrateContext)"),
    "can_migrate": _HookForm(False, 0, 0, "def can_migrate(self) -> bool"),
    "migration_cost": _HookForm(False, 0, 0, "def migration_cost(self) -> float"),
}


@dataclass(frozen=True, slots=True)
class ClassParts:
    """What a grain class consists of."""

    methods: Mapping[str, MethodSpec]
    hooks: Hooks
    soft_state: tuple[SoftStateField, ...]
    persistent: tuple[PersistentField, ...]


def suggestion(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """`; did you mean …?` where something known is written much like it, else nothing."""
    close = difflib.get_close_matches(name, sorted(known), n=1, cutoff=cutoff)
    return f"; did you mean {close[0]!r}?" if close else ""


def read_class(cls: type) -> ClassParts:
    """The parts of a class that is to be a grain kind.

    Raises:
        InvalidGrain: the class cannot be one; the message names the member and the fix.
    """
    where = f"grain class {cls.__module__}.{cls.__qualname__}"
    members, reserved = _members(cls)
    _check_constructor(cls, where)
    methods: dict[str, MethodSpec] = {}
    hooks: dict[str, Hook] = {}
    soft_state: list[SoftStateField] = []
    persistent: list[PersistentField] = []
    for name, member in members.items():
        if name in reserved:
            raise InvalidGrain(
                f"{where}: {name!r} hides what Grain offers its subclasses under that name; choose another name"
            )
        if isinstance(member, SoftStateField):
            soft_state.append(member)
        elif isinstance(member, PersistentField):
            persistent.append(member)
        elif name in _HOOK_FORMS:
            hooks[name] = _hook(name, member, f"{where}: the hook {name}")
        elif name.startswith("_"):
            if hasattr(member, MARKS):
                raise InvalidGrain(f"{where}: {name} is private, so a method decorator has no effect on it")
        elif _is_method(member, f"{where}: {name}"):
            methods[name] = _method(name, member, f"{where}: the method {name}")
    _check_soft_state(cls, soft_state, where)
    named = [(each.name, each.attribute) for each in soft_state]
    check_fields(persistent, named, where, has_dict=bool(cls.__dictoffset__))
    if "on_dehydrate" in hooks and "on_rehydrate" not in hooks:
        raise InvalidGrain(f"{where} has on_dehydrate and no on_rehydrate: what it hands over would be lost on arrival")
    return ClassParts(methods, Hooks(**hooks), tuple(soft_state), tuple(persistent))


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """The signature, with annotations that name what is not defined (yet) left as they are written."""
    if sys.version_info >= (3, 14):
        from annotationlib import Format  # new there, as annotations are evaluated on demand

        return inspect.signature(function, annotation_format=Format.FORWARDREF)
    return inspect.signature(function)


def annotated_names(cls: type) -> tuple[str, ...]:
    """The names that the class itself annotates."""
    if sys.version_info >= (3, 14):
        from annotationlib import Format, get_annotations

        return tuple(get_annotations(cls, format=Format.FORWARDREF))
    return tuple(inspect.get_annotations(cls))


def require_coroutine_function(function: object, where: str) -> None:
    """Raise InvalidGrain unless it is an `async def`."""
    if inspect.isasyncgenfunction(function):
        raise InvalidGrain(f"{where} is an async generator; a call has one result: return a list, or give out pages")
    if not inspect.iscoroutinefunction(function):
        raise InvalidGrain(
            f"{where} is not async; make it `async def` if others may call it, or begin its name with an underscore"
        )


def _members(cls: type) -> tuple[dict[str, object], set[str]]:
    """All members of the class, inherited ones included, and the public names of the runtime's own base."""
    members: dict[str, object] = {}
    reserved: set[str] = set()
    for origin in reversed(cls.__mro__[:-1]):
        if BASE in vars(origin):
            reserved.update(name for name in vars(origin) if not name.startswith("_"))
        else:
            members.update(vars(origin))
    return members, reserved


def _check_constructor(cls: type, where: str) -> None:
    if inspect.isabstract(cls):
        missing = ", ".join(sorted(getattr(cls, "__abstractmethods__", ())))
        raise InvalidGrain(f"{where} is abstract and cannot be activated; it lacks {missing}")
    constructor = vars(cls).get("__init__") or cls.__init__  # type: ignore[misc] # it is only looked at
    if constructor is object.__init__:
        return
    needed = [
        parameter.name
        for parameter in list(signature_of(constructor).parameters.values())[1:]
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    if needed:
        raise InvalidGrain(
            f"{where}: the runtime makes grains without arguments, but __init__ wants {', '.join(needed)}"
        )


def _check_soft_state(cls: type, fields: list[SoftStateField], where: str) -> None:
    if fields and not cls.__dictoffset__:
        raise InvalidGrain(
            f"{where} has __slots__ and no __dict__, so the soft state {fields[0].attribute!r} has no place in its"
            " instances; remove __slots__"
        )
    seen: dict[str, str] = {}
    for each in fields:
        other = seen.setdefault(each.name, each.attribute)
        if other != each.attribute:
            raise InvalidGrain(f"{where}: the soft states {other!r} and {each.attribute!r} would travel under one name")


def _is_method(member: object, where: str) -> bool:
    """Whether a public member is for callers; raises InvalidGrain for one that looks so and cannot be."""
    if isinstance(member, (staticmethod, classmethod)):
        function = cast("object", member.__func__)
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            raise InvalidGrain(f"{where} is async and takes no instance; a grain's method takes self")
        return False
    if isinstance(member, (functools.partialmethod, functools.singledispatchmethod)):
        raise InvalidGrain(f"{where} is a partial or single-dispatch method; write it as an `async def`")
    if isinstance(member, FunctionType):
        return True
    return callable(member) and not isinstance(member, type) and hasattr(type(member), "__get__")


def _method(name: str, function: Any, where: str) -> MethodSpec:
    if name in REFERENCE_ATTRIBUTES:
        raise InvalidGrain(f"{where} has the name of an attribute that every reference has; choose another name")
    if name.startswith("on_") and (meant := suggestion(name, _HOOK_FORMS, cutoff=0.8)):
        raise InvalidGrain(f"{where} is no hook{meant} A method for callers should not begin with on_")
    require_coroutine_function(function, where)
    marks: MethodMarks = getattr(function, MARKS, MethodMarks())
    signature = signature_of(function)
    parameters = list(signature.parameters.values())
    if not parameters or parameters[0].kind in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD):
        raise InvalidGrain(f"{where} takes no self")
    if parameters[0].kind is not inspect.Parameter.VAR_POSITIONAL:
        parameters = parameters[1:]
    if marks.one_way and signature.return_annotation not in (signature.empty, None, "None"):
        raise InvalidGrain(f"{where} is one-way, so nobody gets its result; it returns None")
    low, high = _positional_range(parameters)
    return MethodSpec(
        name,
        function,
        signature.replace(parameters=parameters),
        low,
        high,
        read_only=marks.read_only,
        always_interleave=marks.always_interleave,
        one_way=marks.one_way,
        timeout_s=marks.timeout_s,
    )


def _positional_range(parameters: list[inspect.Parameter]) -> tuple[int, int]:
    """How many positional arguments are enough and how many are allowed; (0, -1) where counting does not suffice."""
    if any(
        each.kind is each.VAR_POSITIONAL or (each.kind is each.KEYWORD_ONLY and each.default is each.empty)
        for each in parameters
    ):
        return 0, -1
    positional = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    return sum(each.default is each.empty for each in positional), len(positional)


def _hook(name: str, function: Any, where: str) -> Hook:
    form = _HOOK_FORMS[name]
    if not isinstance(function, FunctionType) or inspect.isasyncgenfunction(function):
        raise InvalidGrain(f"{where} is not a method; it is written `{form.text}`")
    if inspect.iscoroutinefunction(function) != form.is_async:
        problem = "has to be async" if form.is_async else "must not be async"
        raise InvalidGrain(f"{where} {problem}; it is written `{form.text}`")
    if hasattr(function, MARKS):
        raise InvalidGrain(f"{where} is called by the runtime only; method decorators have no effect on it")
    low, high = _positional_range(list(signature_of(function).parameters.values())[1:])
    if high == -1:  # *args takes whatever comes; a required keyword never comes
        low, high = 0, form.arguments_max
        keywords = [each for each in signature_of(function).parameters.values() if each.kind is each.KEYWORD_ONLY]
        if any(each.default is each.empty for each in keywords):
            low = form.arguments_max + 1
    if low > form.arguments_max or high < form.arguments_min:
        raise InvalidGrain(f"{where} takes other arguments than it is given; it is written `{form.text}`")
    return Hook(function, takes_argument=form.arguments_max > 0 and high > 0)
