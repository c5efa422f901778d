"""The extension codes of the plain codec. They are part of the wire contract: codes are only ever added."""

from __future__ import annotations

import enum
from typing import Final

MARKED: Final = 0xC1
"""The first byte of a payload whose arrays may open with a node tag. MessagePack never uses this byte."""


class Leaf:
    """Extensions that carry a value in their own bytes."""

    BIG_INT: Final = 1
    TEXT: Final = 2
    """Text with lone surrogates, which UTF-8 proper cannot hold."""
    BYTEARRAY: Final = 3
    COMPLEX: Final = 4
    DATETIME: Final = 5
    DATE: Final = 6
    TIME: Final = 7
    TIMEDELTA: Final = 8
    TIMEZONE: Final = 9
    ZONE_INFO: Final = 10
    UUID: Final = 11
    DECIMAL: Final = 12
    FRACTION: Final = 13
    RANGE: Final = 14
    ENUM: Final = 15
    CLASS: Final = 16
    REFERENCE: Final = 17
    GRAIN_ID: Final = 18
    SILO_ADDRESS: Final = 19
    ENTRY: Final = 20
    PURE_POSIX_PATH: Final = 21
    POSIX_PATH: Final = 22
    IPV4: Final = 23
    IPV6: Final = 24


class Node(enum.IntEnum):
    """Empty extensions that open an array and say what the rest of it is, so that nesting copies nothing."""

    TUPLE = 64
    SET = 65
    FROZENSET = 66
    MAP = 67
    """A dict with keys other than text and 64-bit integers: key, value, key, value …"""
    OBJECT = 68
    """A value of a class of fields: name of the class, fields, and further attributes where there are any."""
    ERROR = 69
    """An exception: name of the class, message, args, attributes, notes, cause, whether its context is hidden."""
    ARRAY = 70
    """A numpy array: dtype, shape, bytes."""
    ARRAY_SCALAR = 71
    DEQUE = 72
    ORDERED_DICT = 73
    COUNTER = 74
    DEFAULT_DICT = 75


NODES: Final[dict[int, Node]] = {int(node): node for node in Node}

SCALARS: Final[frozenset[type]] = frozenset({int, float, str, bytes, bool, type(None)})
"""Classes whose values MessagePack gives back as they were; an int has at most 64 bits, a str no lone surrogates."""
