"""numpy arrays and scalars by their buffers. numpy is imported only once a value of it is there."""

from __future__ import annotations

import math
import re
import sys
from typing import Any, Final

from silo.directory.errors import SerializationError
from silo.serialization.tags import Node

_DTYPE: Final = re.compile(r"[<>|=]?[biufcSUVmM?]\d*(\[[\w/]+\])?")
"""The type strings that are read: numbers, fixed-size text and bytes, times. Objects are not among them."""
_FIELD_DEPTH_MAX: Final = 8
"""How deep structured types may nest."""
_ITEM_BYTES_MAX: Final = 2**24
"""The largest item of an array, in bytes: even an empty array takes the memory of one."""


def taken_apart(value: object) -> tuple[Node, Any, Any, Any] | None:
    """The tag, dtype, shape and buffer of an array or scalar; None for a value that is not numpy's.

    Raises:
        SerializationError: it holds Python objects, or is a masked array or other subclass.
    """
    np: Any = sys.modules.get("numpy")
    if np is None:
        return None
    if type(value) is np.ndarray:
        array: Any = value
        data = _owned(np, array) if array.dtype.names is not None else np.ascontiguousarray(array)
        return Node.ARRAY, _described(np, array.dtype), list(array.shape), _buffer(np, data)
    if isinstance(value, np.generic):
        scalar: Any = value
        if isinstance(value, (np.str_, np.bytes_)) and type(value) in (np.str_, np.bytes_):
            return Node.ARRAY_SCALAR, "U" if isinstance(value, np.str_) else "S", [], _text_bytes(scalar)
        if type(value).__module__ == "numpy":
            return Node.ARRAY_SCALAR, _described(np, scalar.dtype), [], scalar.tobytes()
    return None


def put_together(tag: Node, dtype: Any, shape: list[int], data: bytes) -> object:
    """The array or scalar with this dtype, shape and buffer; an array owns its memory and may be written."""
    try:
        import numpy as np
    except ImportError as error:
        raise SerializationError("a numpy array arrived where numpy is not installed; install numpy here") from error
    if tag is Node.ARRAY_SCALAR and dtype == "U":
        return np.str_(data.decode("utf-8", "surrogatepass"))
    if tag is Node.ARRAY_SCALAR and dtype == "S":
        return np.bytes_(data)
    kind = _built(np, dtype, _FIELD_DEPTH_MAX)
    if not 0 < kind.itemsize <= _ITEM_BYTES_MAX:
        raise SerializationError("the payload cannot be read: an array has items of a size out of range")
    if not all(type(length) is int and length >= 0 for length in shape) or math.prod(shape) * kind.itemsize != len(
        data
    ):
        raise SerializationError("the payload cannot be read: an array's shape does not match its bytes")
    array = _owned(np, np.ndarray(tuple(shape), kind, buffer=data))
    return array if tag is Node.ARRAY else array[()]


def copied(value: object) -> object:
    """What `put_together` would make of the value, in one copy; numbers and times are immutable and stay as they are.

    Raises:
        SerializationError: as `taken_apart`.
    """
    parts = taken_apart(value)
    if parts is None or not hasattr(value, "copy"):
        return value
    item: Any = value
    if parts[0] is Node.ARRAY:
        return _owned(sys.modules["numpy"], item)
    return item.copy() if item.dtype.kind == "V" else item


def _owned(np: Any, array: Any) -> Any:
    """A copy in C order that owns its memory; what pads a structured dtype is zero in it, not what lay there before."""
    if array.dtype.names is None:
        return array.copy(order="C")
    copy = np.zeros(array.shape, array.dtype)
    copy[...] = array
    return copy


def _buffer(np: Any, array: Any) -> Any:
    return memoryview(array.reshape(-1).view(np.uint8)) if array.size else b""


def _text_bytes(scalar: Any) -> bytes:
    return scalar.encode("utf-8", "surrogatepass") if isinstance(scalar, str) else bytes(scalar)


def _described(np: Any, dtype: Any) -> Any:
    """The dtype as plain values: a type string, [base, shape] of a subarray, or a map of fields with their offsets."""
    description = _description(dtype)
    if _built(np, description, _FIELD_DEPTH_MAX) != dtype:
        raise SerializationError(f"a numpy array of dtype {dtype} cannot be sent; convert it to one of plain fields")
    return description


def _description(dtype: Any) -> Any:
    is_known = dtype.names or dtype.subdtype or _DTYPE.fullmatch(dtype.str)
    if dtype.hasobject or not is_known or not 0 < dtype.itemsize <= _ITEM_BYTES_MAX:
        raise SerializationError(
            f"a numpy array of dtype {dtype} cannot be sent; convert it to numbers, times, or fixed-size text or bytes"
        )
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return [_description(base), list(shape)]
    if dtype.names is None:
        return dtype.str
    fields = [dtype.fields[name] for name in dtype.names]
    return {
        "names": list(dtype.names),
        "formats": [_description(field[0]) for field in fields],
        "offsets": [field[1] for field in fields],
        "itemsize": dtype.itemsize,
        "aligned": dtype.isalignedstruct,
    }


def _built(np: Any, description: Any, left: int) -> Any:
    if left <= 0:
        raise SerializationError(f"a structured dtype nests deeper than {_FIELD_DEPTH_MAX} levels")
    if isinstance(description, str):
        if not _DTYPE.fullmatch(description):
            raise SerializationError(
                f"the payload cannot be read: {description[:100]!r} is not the dtype of an array that may be received"
            )
        return np.dtype(description)
    parts: Any = description
    if isinstance(description, list):
        base, shape = parts
        return np.dtype((_built(np, base, left - 1), tuple(shape)))
    formats = [_built(np, each, left - 1) for each in description["formats"]]
    fields = {key: description[key] for key in ("names", "offsets", "itemsize")} | {"formats": formats}
    return np.dtype(fields, align=description["aligned"])
