"""The serializer: what the runtime calls to turn arguments, results, errors and soft state into payloads and back."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, Final

from msgspec.msgpack import Encoder

from silo.directory.addresses import GrainId
from silo.directory.errors import SerializationError
from silo.serialization.exceptions import may_be_raised, stand_in, traceback_note
from silo.serialization.isolation import Isolation
from silo.serialization.pickled import PickledCodec
from silo.serialization.plain import PlainCodec
from silo.serialization.registry import TypeRegistry
from silo.serialization.rules import References, Rules
from silo.serialization.tags import SCALARS

DEPTH_MAX: Final = 100
"""How deep a value may nest, in levels."""


class Codec(enum.IntEnum):
    """The id that travels beside a payload and says how to read it."""

    PLAIN = 1
    """MessagePack, by the allow-list."""
    CLOUDPICKLE = 2
    """Runs code of the sender; refused unless this process allows it."""


_PLAIN: Final = int(Codec.PLAIN)
_CLOUDPICKLE: Final = int(Codec.CLOUDPICKLE)


class Serializer:
    """Values to payloads and back, by one registry. Errors are always SerializationError, naming the class and the fix.

    Args:
        allow_cloudpickle: send what the plain codec refuses as a pickle, and accept pickles. Only among authenticated
            peers.
        reference_type: the class of grain references; values of its subclasses travel by identity.
        bind_reference: makes the receiver's reference to a grain.
        reference_id: the identity of a reference.
        depth_max: how deep a value may nest, in levels.
    """

    def __init__(
        self,
        registry: TypeRegistry,
        *,
        allow_cloudpickle: bool = False,
        reference_type: type | None = None,
        bind_reference: Callable[[GrainId], object] | None = None,
        reference_id: Callable[[object], GrainId] | None = None,
        depth_max: int = DEPTH_MAX,
    ) -> None:
        references = References(reference_type, reference_id, bind_reference)
        self.registry: Final = registry
        rules = Rules(registry, references, depth_max)
        self._plain = PlainCodec(rules)
        self._isolation = Isolation(rules, self._plain)
        self._pickled = PickledCodec(references) if allow_cloudpickle else None
        self._scalars_to_bytes = Encoder().encode

    def encode(self, value: object) -> tuple[bytes, int]:
        """The payload of a value, and the id of its codec."""
        if type(value) in SCALARS:
            try:
                return self._scalars_to_bytes(value), _PLAIN
            except (OverflowError, UnicodeEncodeError):
                pass  # a long int or a lone surrogate, for which the codec has its own form
        try:
            return self._plain.encode(value), _PLAIN
        except SerializationError:
            if self._pickled is None:
                raise
        return self._pickled.encode(value), _CLOUDPICKLE

    def decode(self, payload: bytes | memoryview, codec: int) -> object:
        """The value in a payload."""
        if codec == _PLAIN:
            return self._plain.decode(payload)
        return self._pickled_codec(codec).decode(payload)

    def encode_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[bytes, int]:
        """The payload of a call's arguments, and the id of its codec."""
        if not kwargs:
            for item in args:
                if type(item) not in SCALARS:
                    break
            else:
                try:
                    return self._scalars_to_bytes(args), _PLAIN
                except (OverflowError, UnicodeEncodeError):
                    pass  # as above
        try:
            return self._plain.encode_call(args, kwargs), _PLAIN
        except SerializationError:
            if self._pickled is None:
                raise
        return self._pickled.encode((args, kwargs)), _CLOUDPICKLE

    def decode_call(self, payload: bytes | memoryview, codec: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments in a payload."""
        if codec == _PLAIN:
            return self._plain.decode_call(payload)
        return self._pickled_codec(codec).decode_call(payload)

    def isolate(self, value: object) -> object:
        """What the receiver of a local call gets: immutable values as they are, others copied as by a round trip."""
        if type(value) in SCALARS:
            return value
        try:
            return self._isolation.copy(value)
        except SerializationError:
            if self._pickled is None:
                raise
        return self._pickled.decode(self._pickled.encode(value))

    def isolate_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """As `isolate`, for the arguments of a call."""
        if not kwargs:
            for item in args:
                if type(item) not in SCALARS:
                    break
            else:
                return args, kwargs
        try:
            copies = {name: self._isolation.copy(item) for name, item in kwargs.items()}
            return tuple([self._isolation.copy(item) for item in args]), copies
        except SerializationError:
            if self._pickled is None:
                raise
        return self.decode_call(self._pickled.encode((args, kwargs)), _CLOUDPICKLE)

    def encode_error(self, error: BaseException) -> tuple[bytes, int]:
        """The payload of an error that ended a call, with its traceback as a note. Never raises; always plain.

        What cannot be sent as it is, or cannot be raised in the caller without stopping something else, becomes a
        RemoteError.
        """
        note = traceback_note(error)
        try:
            return self._plain.encode_error(error, note), _PLAIN
        except SerializationError as refused:
            return self._plain.encode_error(stand_in(error, f"It was not sent as it is: {refused}"), note), _PLAIN

    def decode_error(self, payload: bytes | memoryview, codec: int) -> BaseException:
        """The error in a payload, ready to be raised. Never raises: damaged bytes give a SerializationError instead."""
        if codec != _PLAIN:
            return SerializationError(f"an error arrived in codec {codec}; errors are always plain")
        try:
            error = self._plain.decode_error(payload)
        except SerializationError as refused:
            return refused
        return error if may_be_raised(error) else stand_in(error, "")

    def isolate_error(self, error: BaseException) -> BaseException:
        """What the caller of a local call gets: the same as of a remote one."""
        return self.decode_error(*self.encode_error(error))

    def _pickled_codec(self, codec: int) -> PickledCodec:
        if codec != _CLOUDPICKLE:
            raise SerializationError(
                f"the payload is in codec {codec}, which this version does not know; update this process first"
            )
        if self._pickled is None:
            raise SerializationError(
                "a pickled value arrived and was not read: pickles run code of their sender, so this process must be "
                "started with allow_cloudpickle=True, or the sender must send plain values"
            )
        return self._pickled
