"""Rules: what one serializer sends and receives, and how it says no."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable
from typing import NoReturn

from silo.directory.addresses import GrainId
from silo.directory.errors import SerializationError
from silo.serialization.registry import TypeRegistry


@dataclasses.dataclass(frozen=True, slots=True)
class References:
    """How grain references travel: by identity, bound anew where they arrive."""

    cls: type | None = None
    """The base class of references; values of its subclasses are references too."""
    id_of: Callable[[object], GrainId] | None = None
    """The identity of a reference."""
    bind: Callable[[GrainId], object] | None = None
    """A reference to a grain, for whoever receives the value."""

    def include(self, value: object) -> bool:
        """Whether the value is a grain reference."""
        return self.cls is not None and self.id_of is not None and isinstance(value, self.cls)

    def identity(self, value: object) -> GrainId:
        """The identity of a value that `include` accepted."""
        if self.id_of is None:
            raise SerializationError("grain references cannot be sent from here")
        return self.id_of(value)

    def bound(self, grain: GrainId) -> object:
        """A reference for the receiver; raises SerializationError where nothing can make calls."""
        if self.bind is None:
            raise SerializationError(f"the reference to {grain} arrived where no client or silo can bind it")
        return self.bind(grain)


@dataclasses.dataclass(frozen=True, slots=True)
class Rules:
    """What the parts of one serializer go by."""

    registry: TypeRegistry
    references: References
    depth_max: int

    def refuse(self, value: object) -> NoReturn:
        """Raise the SerializationError that names the value's class and the fix."""
        if isinstance(value, (types.FunctionType, types.BuiltinFunctionType, types.MethodType)):
            raise SerializationError(
                f"the function {value.__qualname__!r} cannot be sent: send a value that says what to do, such as an "
                "enum or a grain reference, or allow cloudpickle where all peers are trusted"
            )
        self.registry.name_of(type(value))
        raise SerializationError(f"a value of {type(value).__qualname__} cannot be sent")

    def refuse_depth(self) -> NoReturn:
        """Raise the SerializationError for a value that nests too deep."""
        raise SerializationError(
            f"a value that contains itself, or nests deeper than {self.depth_max} levels, cannot be sent or received"
        )
