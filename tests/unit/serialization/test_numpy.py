"""numpy arrays travel by buffer and arrive writable, with dtype and shape; object arrays are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from silo.directory.errors import SerializationError
from tests.unit.serialization.vocabulary import serializer

SERIALIZER = serializer()
ARRAYS: list[Any] = [
    *(np.arange(6).reshape(2, 3), np.arange(6).reshape(2, 3).T, np.arange(10)[::-2], np.array(5), np.zeros((2, 0, 3))),
    *(
        np.array([1.5, np.nan], ">f4"),
        np.array([1 + 2j]),
        np.array([True, False]),
        np.array(["a", "bcd"]),
        np.array([b"x"]),
    ),
    *(np.array(["2026-01-01"], "M8[ns]"), np.array([5], "m8[15m]"), np.array([b"abc"], "V3"), np.array([1], "f2")),
    np.array([(1, 2.5, [3, 4])], [("a", "<i2"), ("b", ">f8"), ("c", "u1", (2,))]),
    np.zeros(2, np.dtype([("a", "i1"), ("b", "f8")], align=True)),
    np.zeros(2, np.dtype({"names": ["b", "a"], "formats": ["i4", "i4"], "offsets": [4, 0], "itemsize": 16})),
    np.zeros(2, [("outer", [("inner", "i4"), ("x", "S3")]), ("y", "f4")]),
]
SCALARS: list[Any] = [
    *(np.float64(1.5), np.float32("nan"), np.int8(-3), np.uint64(2**64 - 1), np.bool_(True), np.complex64(1j)),
    *(
        np.str_("aä\0"),
        np.bytes_(b"x\0"),
        np.datetime64("2026-01-01", "us"),
        np.timedelta64(3, "h"),
        np.longdouble(1) / 3,
    ),
    np.zeros(1, [("a", "i4"), ("b", "f8")])[0],
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{array.dtype} {array.shape}")
def test_an_array_arrives_with_its_dtype_shape_and_values(array: Any) -> None:
    for arrived in (SERIALIZER.decode(*SERIALIZER.encode({"a": array})), SERIALIZER.isolate({"a": array})):
        got: Any = arrived
        assert type(got["a"]) is np.ndarray
        assert got["a"].dtype == array.dtype
        assert got["a"].dtype.isalignedstruct == array.dtype.isalignedstruct
        assert got["a"].shape == array.shape
        assert np.array_equal(got["a"], array) or got["a"].tobytes() == array.tobytes()
        assert got["a"].flags.owndata
        assert got["a"].flags.writeable
        assert got["a"].flags.c_contiguous
        assert not np.shares_memory(got["a"], array)


@pytest.mark.parametrize("scalar", SCALARS, ids=lambda scalar: type(scalar).__name__)
def test_a_scalar_stays_a_numpy_scalar(scalar: Any) -> None:
    for arrived in (SERIALIZER.decode(*SERIALIZER.encode((scalar,))), SERIALIZER.isolate((scalar,))):
        got: Any = arrived
        assert type(got[0]) is type(scalar)
        assert got[0].dtype == scalar.dtype
        assert got[0].tobytes() == scalar.tobytes()


REFUSED: list[Any] = [
    *(np.array([object()]), np.array([(1, "x")], [("a", "i4"), ("b", object)]), np.ma.array([1], mask=[True])),
    *(np.zeros(1, [(("title", "a"), "i4")]), np.dtype("i4"), np.array(["x"], np.dtypes.StringDType())),
]


@pytest.mark.parametrize("value", REFUSED, ids=lambda value: f"{type(value).__name__}")
def test_what_is_no_plain_buffer_is_refused(value: Any) -> None:
    for refuse in (SERIALIZER.encode, SERIALIZER.isolate):
        with pytest.raises(SerializationError, match="cannot be sent"):
            refuse(value)


def test_a_large_array_is_not_copied_piece_by_piece() -> None:
    array = np.arange(1_000_000, dtype="f8")
    payload, codec = SERIALIZER.encode(array)
    assert array.nbytes < len(payload) < array.nbytes + 100
    arrived: Any = SERIALIZER.decode(payload, codec)
    assert np.array_equal(arrived, array)


def test_what_pads_a_structured_array_is_not_sent() -> None:
    padded = np.frombuffer(b"\xaa" * 32, np.dtype([("a", "i1"), ("b", "f8")], align=True))
    payload, codec = SERIALIZER.encode(padded)
    assert payload.count(b"\xaa") == 2 * (1 + 8)
    arrived: Any = SERIALIZER.decode(payload, codec)
    assert np.array_equal(arrived, padded)
