"""The cloudpickle codec: an explicit opt-in for closures and local classes among trusted peers of one Python version.

Unpickling runs code of the sender's choosing. Nothing here is reached unless the serializer was built with
`allow_cloudpickle`.
"""

from __future__ import annotations

import importlib
import io
import pickle
import sys
from typing import Any, Final

from silo.directory.addresses import GrainId
from silo.directory.errors import SerializationError
from silo.serialization.exceptions import described
from silo.serialization.rules import References

_FORMAT: Final = 1
_HEADER: Final = bytes([_FORMAT, sys.version_info.major, sys.version_info.minor])
"""Format, and the Python version whose pickles these are: code objects of another one crash the interpreter."""


class PickledCodec:
    """Any value that cloudpickle takes, to bytes and back; grain references are bound anew on arrival.

    Raises:
        SerializationError: cloudpickle is not installed.
    """

    def __init__(self, references: References) -> None:
        try:
            cloudpickle: Any = importlib.import_module("cloudpickle")  # optional, and needed only where it is allowed
        except ImportError as error:
            raise SerializationError(
                "values by cloudpickle need its package: install grain-silo with its extra, grain-silo[cloudpickle]"
            ) from error

        class ReferencePickler(cloudpickle.Pickler):  # type: ignore[misc] # cloudpickle has no types
            def persistent_id(self, value: object) -> tuple[str, str] | None:
                if not references.include(value):
                    return None
                grain = references.identity(value)
                return grain.kind, grain.key

        class ReferenceUnpickler(pickle.Unpickler):
            def persistent_load(self, pid: Any) -> object:
                return references.bound(GrainId.of(*pid))

        self._pickler: Any = ReferencePickler
        self._unpickler = ReferenceUnpickler

    def encode(self, value: object) -> bytes:
        """The payload of a value; raises SerializationError."""
        buffer = io.BytesIO(_HEADER)
        buffer.seek(len(_HEADER))
        try:
            self._pickler(buffer, protocol=5).dump(value)
        except Exception as error:  # __reduce__ of the application may raise anything
            raise SerializationError(
                f"a value of {type(value).__qualname__} cannot be pickled: {described(error)}"
            ) from error
        return buffer.getvalue()

    def decode(self, payload: bytes | memoryview) -> Any:
        """The value in a payload; runs code of the sender.

        Raises:
            SerializationError: the sender's Python is another (nothing has run then), or the pickle cannot be read.
        """
        header = bytes(payload[: len(_HEADER)])
        if header != _HEADER:
            raise SerializationError(
                f"a pickled value arrived with the header {list(header)}, and this process reads {list(_HEADER)} "
                "(format and Python version): run one Python version everywhere, or send plain values"
            )
        try:
            return self._unpickler(io.BytesIO(payload[len(_HEADER) :])).load()
        except Exception as error:  # the pickled code may raise anything
            raise SerializationError(f"a pickled value cannot be read: {described(error)}") from error

    def decode_call(self, payload: bytes | memoryview) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments in a payload; as `decode`."""
        call = self.decode(payload)
        try:
            args, kwargs = call
            return tuple(args), dict(kwargs)
        except (TypeError, ValueError) as error:
            raise SerializationError("the payload does not hold the arguments of a call") from error
