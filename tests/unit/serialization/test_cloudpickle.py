"""cloudpickle is an opt-in on both sides; by default bytes execute no code."""

from __future__ import annotations

import pickle
import sys
from typing import Any

import pytest

from silo.directory.addresses import GrainId
from silo.directory.errors import SerializationError
from silo.serialization.serializer import Codec
from tests.unit.serialization.vocabulary import Player, Reference, serializer

PLAIN = serializer()
TRUSTING = serializer(allow_cloudpickle=True)
LOBBY = GrainId.of("room", "lobby")


class Bomb:
    fuse: list[int] = []  # noqa: RUF012 - the witness of its going off

    def __reduce__(self) -> Any:
        return (self.fuse.append, (1,))


def test_plain_values_stay_plain_where_pickles_are_allowed() -> None:
    assert TRUSTING.encode(Player("ada"))[1] == Codec.PLAIN
    assert TRUSTING.encode_call((1, (2,)), {"a": {3}})[1] == Codec.PLAIN


def test_closures_and_local_classes_travel_where_pickles_are_allowed() -> None:
    class Local:
        def __init__(self, x: int) -> None:
            self.x = x

    base = 40

    def add(n: int) -> int:
        return n + base

    payload, codec = TRUSTING.encode([add, Local(3)])
    arrived: Any = TRUSTING.decode(payload, codec)
    assert codec == Codec.CLOUDPICKLE
    assert (arrived[0](2), arrived[1].x) == (42, 3)
    args, kwargs = TRUSTING.decode_call(*TRUSTING.encode_call((lambda: 1,), {"f": lambda: 2}))
    assert (args[0](), kwargs["f"]()) == (1, 2)
    args, kwargs = TRUSTING.isolate_call((lambda: 1,), {"f": lambda: 2})
    assert (args[0](), kwargs["f"]()) == (1, 2)
    isolated: Any = TRUSTING.isolate(Local(4))
    assert isolated.x == 4


def test_references_inside_a_pickle_are_bound_anew() -> None:
    arrived: Any = TRUSTING.decode(*TRUSTING.encode([lambda: 1, Reference(LOBBY)]))
    assert arrived[1] == Reference(LOBBY, "receiver")


def test_a_value_that_contains_itself_travels_as_a_pickle() -> None:
    loop: list[Any] = []
    loop.append(loop)
    arrived: Any = TRUSTING.decode(*TRUSTING.encode(loop))
    assert arrived[0] is arrived


@pytest.mark.parametrize("decode", [PLAIN.decode, PLAIN.decode_call])
def test_a_pickle_is_refused_unread_where_it_is_not_allowed(decode: Any) -> None:
    payload, codec = TRUSTING.encode(Bomb())
    assert codec == Codec.CLOUDPICKLE
    with pytest.raises(SerializationError, match="allow_cloudpickle=True"):
        decode(payload, codec)
    with pytest.raises(SerializationError):
        decode(payload, Codec.PLAIN)
    assert Bomb.fuse == []


@pytest.mark.parametrize("header", [b"", b"\x01", bytes([1, 3, sys.version_info.minor + 1]), bytes([2, 3, 11])])
def test_a_pickle_of_another_python_is_refused_unread(header: bytes) -> None:
    with pytest.raises(SerializationError, match="Python version"):
        TRUSTING.decode(header + pickle.dumps(Bomb()), Codec.CLOUDPICKLE)
    assert Bomb.fuse == []


def test_a_pickle_that_cannot_be_made_or_read_is_an_error_of_ours() -> None:
    with pytest.raises(SerializationError, match="cannot be pickled"):
        TRUSTING.encode(i for i in "a")
    payload, codec = TRUSTING.encode(lambda: 1)
    with pytest.raises(SerializationError, match="cannot be read"):
        TRUSTING.decode(payload[:-5], codec)
    with pytest.raises(SerializationError, match="arguments of a call"):
        TRUSTING.decode_call(payload, codec)


def test_errors_are_never_pickled() -> None:
    class Local(Exception):
        pass

    assert TRUSTING.encode_error(Local("x"))[1] == Codec.PLAIN
    with pytest.raises(SerializationError, match="errors are always plain"):
        raise PLAIN.decode_error(b"", Codec.CLOUDPICKLE)
