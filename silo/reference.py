"""References: what stands for a grain wherever it is. Typed as the grain class; holding one activates nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NoReturn, Protocol, TypeVar, cast, runtime_checkable

from silo.class_checks import (
    BASE,
    DEFAULT_TIMEOUT,
    MethodSpec,
    TimeoutChoice,
    annotated_names,
    signature_of,
    suggestion,
)
from silo.directory.addresses import GrainId, SiloAddress, require_key
from silo.directory.errors import NotExecuted
from silo.eager import Later
from silo.grain_context import GrainContext
from silo.kinds import KIND, GrainKind, KindRegistry

T = TypeVar("T")
REFERENCE_TYPE = "__silo_reference__"


class ReferenceUnbound(NotExecuted, RuntimeError):
    """The reference was made where no client or silo runs, so its calls have no way to go."""


@dataclass(frozen=True, slots=True)
class CallOptions:
    """What the caller wants of the calls made by one reference."""

    timeout_s: TimeoutChoice = DEFAULT_TIMEOUT
    """Beats the method's own `@timeout`."""
    hint: str | SiloAddress | None = None
    """The silo where the grain should be activated, if it is nowhere active. Advisory."""


NO_OPTIONS: Final = CallOptions()


@runtime_checkable
class Abandonable(Protocol):
    """What is to be told that whoever awaits it was cancelled; a coroutine sees that by itself."""

    def abandon(self) -> None: ...


class CallAtOnce(Protocol):
    """What makes a call that can be run at once, in its caller's own step; see `silo.routing.at_once`."""

    def __call__(
        self,
        grain: GrainId,
        kind: GrainKind,
        method: MethodSpec,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: CallOptions,
    ) -> object:
        """The value, raising what the call raises; or a `Later`, with the answer, or without where it is to be sent."""
        ...


class CallTarget(Protocol):
    """Where the calls of a reference go: a client, or an activation in its silo."""

    @property
    def at_once(self) -> CallAtOnce | None:
        """What calls that are not one-way are tried with before they are sent; None for nothing."""
        ...

    def call(
        self,
        grain: GrainId,
        kind: GrainKind,
        method: MethodSpec,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: CallOptions,
    ) -> Awaitable[Any]:
        """Send the call, and give what its result can be awaited from; for a one-way method that is once it is sent."""
        ...


class Unbound:
    """The call target of references that nobody has bound."""

    at_once = None

    def call(
        self,
        grain: GrainId,
        kind: GrainKind,
        method: MethodSpec,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: CallOptions,
    ) -> NoReturn:
        """Say why this call has no way to go."""
        raise ReferenceUnbound(
            f"{grain}.{method.name}: this reference was decoded where no client or silo runs;"
            f" make one that is bound: client.grain({kind.cls.__name__}, {grain.key!r})"
        )


UNBOUND: Final = Unbound()


class Reference:
    """The base of all references. Compared and hashed by the grain's identity alone; immutable.

    An instance of this very class stands for a grain whose kind this process does not know: it can be compared, sent on
    and stored.
    """

    __slots__ = ("__weakref__", "_silo_id", "_silo_way")
    _silo_id: GrainId
    _silo_way: tuple[CallTarget, GrainId, CallOptions]
    """What each call goes by, together: each attribute takes time, in a class that says why one is missing."""
    _silo_kind: ClassVar[GrainKind | None] = None

    def __init__(self, grain: GrainId, target: CallTarget = UNBOUND, options: CallOptions = NO_OPTIONS) -> None:
        write = object.__setattr__
        write(self, "_silo_id", grain)
        write(self, "_silo_way", (target, grain, options))

    @property
    def id(self) -> GrainId:
        """The grain's identity."""
        return self._silo_id

    @property
    def key(self) -> str:
        """The grain's key."""
        return self._silo_id.key

    def __eq__(self, other: object) -> bool:
        return self._silo_id == other._silo_id if isinstance(other, Reference) else NotImplemented

    def __lt__(self, other: object) -> bool:
        return self._silo_id < other._silo_id if isinstance(other, Reference) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._silo_id)

    def __repr__(self) -> str:
        return f"<reference {self._silo_id}>"

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(
            f"a reference is immutable: {self._silo_id}.{name} cannot be set; a grain's state changes by its methods"
        )

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a reference is immutable: {self._silo_id}.{name} cannot be deleted")

    def __getattr__(self, name: str) -> NoReturn:
        """Only reached for what a reference has not."""
        raise AttributeError(_why_missing(type(self)._silo_kind, self._silo_id, name), name=name, obj=self)

    def __copy__(self) -> Reference:
        return self

    def __deepcopy__(self, memo: object) -> Reference:
        return self

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        kind = type(self)._silo_kind
        return _restored, (self._silo_id.kind, self._silo_id.key, None if kind is None else kind.cls)


def make_reference(kind: GrainKind, key: str, caller: CallTarget) -> object:
    """A reference to the grain of that kind and key, whose calls go through `caller`; raises InvalidIdentity."""
    require_key(key)
    return reference_type(kind)(GrainId(kind.name, key), caller)


def reference_to(grain: GrainId, kind: GrainKind | None, target: CallTarget) -> Reference:
    """A reference to a grain of which the identity was received; `kind` is None where it is not known."""
    return (Reference if kind is None else reference_type(kind))(grain, target)


def reference_binder(kinds: KindRegistry, target: CallTarget) -> Callable[[GrainId], Reference]:
    """What makes the references that a serializer decodes: those kinds, and calls through that target."""
    return lambda grain: reference_to(grain, kinds.get(grain.kind), target)


def grain_id(grain: object) -> GrainId:
    """The identity behind a reference; of a grain itself; or the identity given; raises TypeError for anything else."""
    if isinstance(grain, Reference):
        return grain._silo_id  # pyright: ignore[reportPrivateUsage] - a method of the grain may be named `id`
    if isinstance(grain, GrainId):
        return grain
    context: GrainContext | None = getattr(grain, "_silo_context", None)
    if context is None:
        raise TypeError(f"a reference to a grain is wanted, not {type(grain).__name__}: {grain!r}")
    return context.id


def with_timeout(reference: T, seconds: float | None) -> T:
    """The same grain, called with this deadline; None for none. It beats the method's own `@timeout`."""
    if seconds is not None:
        require_seconds(seconds, "with_timeout")
    own = _own(reference)
    target, grain, options = own._silo_way  # pyright: ignore[reportPrivateUsage] - this module's own class
    return cast("T", type(own)(grain, target, CallOptions(seconds, options.hint)))


def with_hint(reference: T, silo: str | SiloAddress) -> T:
    """The same grain; if a call has to activate it, then rather on this silo. A hint: placement has the last word."""
    own = _own(reference)
    target, grain, options = own._silo_way  # pyright: ignore[reportPrivateUsage] - this module's own class
    return cast("T", type(own)(grain, target, CallOptions(options.timeout_s, silo)))


def require_seconds(seconds: float, where: str) -> None:
    """Raise ValueError unless these are finite seconds above 0."""
    if isinstance(seconds, bool) or not 0 < seconds < float("inf"):
        raise ValueError(f"{where}: finite seconds above 0 are wanted, or None for no deadline; not {seconds!r}")


def reference_type(kind: GrainKind) -> type[Reference]:
    """The class of references to this kind: made once, with the kind's methods."""
    known = vars(kind.cls).get(REFERENCE_TYPE)
    if known is not None and known._silo_kind is kind:
        return cast("type[Reference]", known)
    members: dict[str, object] = {
        "__slots__": (),
        "__module__": kind.cls.__module__,
        "__qualname__": f"{kind.cls.__qualname__}Reference",
        "__doc__": f"A reference to a grain of the kind {kind.name!r}.",
        "_silo_kind": kind,
        KIND: kind,
    }
    members.update((spec.name, _method(kind, spec)) for spec in kind.methods.values())
    made = type(f"{kind.cls.__name__}Reference", (Reference,), members)
    setattr(kind.cls, REFERENCE_TYPE, made)
    return made


def _method(kind: GrainKind, spec: MethodSpec) -> Callable[..., Any]:
    low, high, one_way = spec.positional_min, spec.positional_max, spec.one_way

    async def call(self: Reference, *args: Any, **kwargs: Any) -> Any:
        if kwargs or not low <= len(args) <= high:
            spec.check(args, kwargs)
        target, grain, options = self._silo_way  # pyright: ignore[reportPrivateUsage] - becomes a method
        answer: Awaitable[Any] | None = None
        at_once = target.at_once
        if at_once is not None and not one_way:
            value = at_once(grain, kind, spec, args, kwargs, options)
            if type(value) is not Later:
                return value
            answer = value.answer
        if answer is None:
            answer = target.call(grain, kind, spec, args, kwargs, options)
        try:
            return await answer
        except asyncio.CancelledError:
            if isinstance(answer, Abandonable):
                answer.abandon()
            raise

    function = spec.function
    call.__name__ = spec.name
    call.__qualname__ = function.__qualname__
    call.__module__ = function.__module__
    call.__doc__ = function.__doc__
    signature = signature_of(function)
    annotations = {
        name: each.annotation for name, each in signature.parameters.items() if each.annotation is not each.empty
    }
    call.__annotations__ = annotations | {"return": signature.return_annotation}
    vars(call)["__signature__"] = signature
    return call


def _own(reference: object) -> Reference:
    if not isinstance(reference, Reference):
        raise TypeError(f"a reference to a grain is wanted, not {type(reference).__name__}")
    return reference


def _restored(kind_name: str, key: str, cls: type | None) -> Reference:
    """An unpickled reference: unbound, since bytes know no client or silo."""
    kind: GrainKind | None = None if cls is None else vars(cls).get(KIND)
    return reference_to(GrainId(kind_name, key), kind, UNBOUND)


def _why_missing(kind: GrainKind | None, grain: GrainId, name: str) -> str:
    if name.startswith("__") or kind is None:
        unknown = (
            ""
            if kind is not None
            else f"; this process does not know the kind {grain.kind!r}: import and register its class"
        )
        return f"the reference {grain} has no {name!r}{unknown}"
    cls = kind.cls
    if any(BASE in vars(base) and name in vars(base) for base in cls.__mro__):
        return f"{name!r} is for the grain {grain} itself, not for those who hold a reference to it"
    if kind.hooks.__dataclass_fields__.get(name) is not None:
        return f"{name!r} of {grain} is a lifecycle hook; the runtime alone calls it"
    if name in _attributes(cls):
        return f"{name!r} of {grain} is no method for callers; a reference has only the grain's public async methods"
    return f"{cls.__name__} has no method {name!r}{suggestion(name, kind.methods)} (grain {grain})"


def _attributes(cls: type) -> Mapping[str, None]:
    found: dict[str, None] = {}
    for base in cls.__mro__[:-1]:
        found.update(dict.fromkeys((*vars(base), *annotated_names(base))))
    return found
