"""The plain codec: values to MessagePack and back, exactly, by an allow-list.

What MessagePack gives back as it was (None, bool, int, float, str, bytes, lists, dicts with text or integer keys) is
written directly. Other values are leaves (an extension with the value in it) or nodes (an array opened by an empty
extension). A payload with nodes begins with the byte MARKED, so that reading one without them needs no walk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

from msgspec.msgpack import Decoder, Encoder

from silo.directory.errors import SerializationError
from silo.serialization.exceptions import RemoteError, described
from silo.serialization.leaves import LEAF_DECODERS, to_grain_id
from silo.serialization.reading import Reading, check_depth
from silo.serialization.rules import Rules
from silo.serialization.shapes import EnumShape
from silo.serialization.tags import MARKED, NODES, SCALARS, Leaf, Node
from silo.serialization.writing import SCALARS_CHECKED, Writing

_MARK: Final = bytes([MARKED])
_decode_enum: Final = Decoder(tuple[str, str]).decode


class PlainCodec:
    """Values to bytes and back. Stateless: one serves any number of calls."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._to_bytes = Encoder().encode
        self._flat = Decoder(ext_hook=self._leaf).decode
        self._marked = Decoder(ext_hook=self._leaf_or_node).decode
        self._texts = Decoder(ext_hook=_text_or_node).decode

    def encode(self, value: object) -> bytes:
        """The payload of a value; raises SerializationError naming what cannot be sent and the fix."""
        return self._encode(lambda writing: writing.walk(value, self._rules.depth_max))

    def encode_call(self, args: tuple[object, ...], kwargs: dict[str, object]) -> bytes:
        """The payload of a call's arguments: an array, or a map with the positional ones under the key 0."""

        def walk(writing: Writing) -> object:
            positional = [writing.walk(item, self._rules.depth_max) for item in args]
            if not kwargs:
                return positional
            return {0: positional} | {name: writing.walk(item, self._rules.depth_max) for name, item in kwargs.items()}

        return self._encode(walk)

    def encode_error(self, error: BaseException, note: str) -> bytes:
        """The payload of an error that ended a call, with one more note; what cannot be sent becomes a RemoteError."""
        return self._encode(lambda writing: writing.error(error, self._rules.depth_max, note), degrades=True)

    def decode(self, payload: bytes | memoryview) -> object:
        """The value in a payload; raises SerializationError, and nothing else, whatever the bytes are."""
        if 0 < len(payload) <= self._rules.depth_max and payload[0] != MARKED:  # too short to be too deep, as most are
            try:
                return self._flat(payload)
            except Exception:  # what is wrong with it is found, and said, there
                return self._decode(payload)
        return self._decode(payload)

    def decode_error(self, payload: bytes | memoryview) -> BaseException:
        """The error in a payload; one whose class or parts are not known here becomes a RemoteError.

        Raises:
            SerializationError: there is no error in these bytes.
        """
        try:
            error = self._decode(payload, degrades=True)
        except SerializationError as refused:
            return self._texts_of_error(payload, refused)
        if isinstance(error, BaseException):
            return error
        raise SerializationError("the payload of an error holds something else")

    def decode_call(self, payload: bytes | memoryview) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments in a payload; raises SerializationError."""
        if 0 < len(payload) <= self._rules.depth_max and payload[0] != MARKED:  # as in `decode`
            try:
                root = self._flat(payload)
            except Exception:
                root = self._decode(payload, around=2)
            else:
                if type(root) is list:
                    return tuple(cast("list[object]", root)), {}
        else:
            root = self._decode(payload, around=2)
        if type(root) is list:
            return tuple(cast("list[object]", root)), {}
        if type(root) is dict:
            kwargs = cast("dict[str, object]", root)
            positional = cast("dict[object, object]", root).pop(0, None)
            if type(positional) is list and all(type(name) is str for name in kwargs):
                return tuple(cast("list[object]", positional)), kwargs
        raise SerializationError("the payload does not hold the arguments of a call")

    def _encode(self, walk: Callable[[Writing], object], *, degrades: bool = False) -> bytes:
        writing = Writing(self._rules, SCALARS, degrades=degrades)
        try:
            try:
                root = walk(writing)
                data = self._to_bytes(root)
            except (OverflowError, UnicodeEncodeError):
                # A long int or a lone surrogate is among the scalars: look at each of them.
                writing = Writing(self._rules, SCALARS_CHECKED, degrades=degrades)
                root = walk(writing)
                data = self._to_bytes(root)
        except SerializationError:
            raise
        except Exception as error:  # fields and attributes belong to the application, which may raise anything
            raise SerializationError(f"a value could not be sent: {described(error)}") from error
        return _MARK + data if writing.has_nodes else data

    def _decode(self, payload: bytes | memoryview, *, degrades: bool = False, around: int = 0) -> object:
        """The value in a payload; `around` is how many levels stand around what the sender counted."""
        depth_max = self._rules.depth_max + around
        try:
            if payload[0] == MARKED:
                root = self._marked(memoryview(payload)[1:])
                return Reading(self._rules, degrades=degrades).walk(root, depth_max)
            value = self._flat(payload)
            if len(payload) > depth_max:
                check_depth(value, self._rules, depth_max)
        except SerializationError:
            raise
        except Exception as error:  # the bytes are anybody's: whatever reading them raises says that they are damaged
            raise SerializationError(f"the payload cannot be read: {described(error)}") from error
        return value

    def _texts_of_error(self, payload: bytes | memoryview, refused: SerializationError) -> RemoteError:
        """What can be said of an error that cannot be read as a whole: class, message and notes."""
        try:
            opening, name, message, _, _, notes, *_ = self._texts(memoryview(payload)[1:])
            if opening is not Node.ERROR:
                raise refused
            remote = RemoteError(name.replace(":", "."), str(message))
            for note in notes:
                remote.add_note(note)
        except Exception:  # these bytes are damaged further than that; what was wrong with them at first says it best
            raise refused from None
        remote.add_note(f"It did not arrive as it is: {refused}")
        return remote

    def _leaf(self, code: int, data: memoryview) -> object:
        decoder = LEAF_DECODERS.get(code)
        if decoder is not None:
            return decoder(data)
        if code == Leaf.REFERENCE:
            return self._rules.references.bound(to_grain_id(data))
        if code == Leaf.CLASS:
            return self._rules.registry.lookup(str(data, "utf-8"))
        if code == Leaf.ENUM:
            name, member = _decode_enum(data)
            shape = self._rules.registry.shape_named(name)
            if isinstance(shape, EnumShape):
                return shape.build(member)
            raise SerializationError(f"{name} is not an enum here: the sender runs another version of it")
        raise SerializationError(
            f"the payload has an extension {code} that this version does not know; update this process first"
        )

    def _leaf_or_node(self, code: int, data: memoryview) -> object:
        node = NODES.get(code)
        return self._leaf(code, data) if node is None else node


def _text_or_node(code: int, data: memoryview) -> object:
    return LEAF_DECODERS[Leaf.TEXT](data) if code == Leaf.TEXT else NODES.get(code)
