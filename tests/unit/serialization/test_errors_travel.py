"""DESIGN, "Exceptions": S089 (what cannot be sent), S090 (what cannot be rebuilt), S108 (what steers the loop)."""

from __future__ import annotations

import asyncio
import threading
import traceback
import urllib.error
from email.message import Message
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from silo.directory import errors
from silo.directory.errors import CallTimeout, Overloaded, SerializationError, SiloError
from silo.serialization import exceptions
from silo.serialization.exceptions import REMOTE_TRACEBACK, RemoteError
from silo.serialization.serializer import Codec, Serializer
from tests.unit.serialization.vocabulary import OutOfStock, Player, registry, serializer

SERIALIZER = serializer()


def sent(error: BaseException, to: Serializer = SERIALIZER, by: Serializer = SERIALIZER) -> Any:
    """The error as the caller gets it, after it was raised in the callee."""
    try:
        raise error
    except BaseException as raised:
        return to.decode_error(*by.encode_error(raised))


def notes(error: BaseException) -> list[str]:
    return list(getattr(error, "__notes__", []))


def members(group: Any) -> list[type]:
    return [type(member) for member in group.exceptions]


class Unregistered(Exception):
    pass


class Plain:
    pass


class Hostile(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no message for you")

    __repr__ = __str__


class Slotted(Exception):
    __slots__ = ("code",)

    def __init__(self, code: int) -> None:
        self.code = code


class Quitting(BaseException):
    pass


@pytest.mark.parametrize(
    "error",
    [
        *(ValueError("x", 1, (2, [3])), KeyError("k"), ZeroDivisionError(), TimeoutError("late"), LookupError(b"\xff")),
        *(
            OSError(2, "no such file", "/a"),
            FileNotFoundError(2, "no"),
            OSError("text"),
            ConnectionResetError(104, "reset"),
        ),
        *(UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), UnicodeEncodeError("ascii", "ä", 0, 1, "bad")),
        *(
            ImportError("x", name="n", path="p"),
            SyntaxError("bad", ("f.py", 3, 4, "a b", 3, 5)),
            AttributeError("a", name="b"),
        ),
        *(CallTimeout("late"), Overloaded("full", limit="queue"), SiloError(), OutOfStock(item="nut", left=0)),
    ],
    ids=lambda error: type(error).__name__,
)
def test_S090_an_error_of_a_registered_class_arrives_as_itself(error: Exception) -> None:
    arrived = sent(error)
    assert type(arrived) is type(error)
    assert arrived.args == error.args
    assert str(arrived) == str(error)
    assert {k: v for k, v in vars(arrived).items() if k != "__notes__"} == vars(error)
    for name in ("errno", "filename", "start", "reason", "name", "path", "lineno", "end_offset", "limit"):
        assert getattr(arrived, name, None) == getattr(error, name, None)
    assert [note for note in notes(arrived) if note.startswith(REMOTE_TRACEBACK)] == notes(arrived)
    assert "in sent" in notes(arrived)[0]


@pytest.mark.parametrize(
    "cls", [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, SiloError)]
)
def test_every_error_of_the_runtime_can_be_sent(cls: type[Exception]) -> None:
    error = cls({"room/x": "why"}) if cls.__name__ == "DirectoryRowUnreadable" else cls("why")  # it takes rows
    arrived = sent(error)
    assert type(arrived) is cls
    assert str(arrived) == str(error)


def test_slots_of_an_error_travel() -> None:
    known = serializer(Slotted)
    assert sent(Slotted(7), known, known).code == 7


@pytest.mark.parametrize("by", [SERIALIZER, serializer(Unregistered)], ids=["unknown to both", "unknown to the caller"])
def test_S090_an_error_of_an_unregistered_class_becomes_a_remote_error(by: Serializer) -> None:
    arrived = sent(Unregistered("out of nuts"), by=by)
    assert type(arrived) is RemoteError
    assert arrived.type_name.endswith("test_errors_travel.Unregistered")
    assert arrived.message == "out of nuts"
    assert "Unregistered: out of nuts" in str(arrived)
    assert any("register it with silo.register" in note for note in notes(arrived))
    assert any(note.startswith(REMOTE_TRACEBACK) and "in sent" in note for note in notes(arrived))


@pytest.mark.parametrize("control", [StopIteration(1), StopAsyncIteration(), GeneratorExit(), KeyboardInterrupt()])
def test_S108_errors_that_steer_the_caller_are_wrapped(control: BaseException) -> None:
    arrived = sent(control)
    assert type(arrived) is RemoteError
    assert arrived.type_name == type(control).__name__


@pytest.mark.parametrize("control", [asyncio.CancelledError("stop"), SystemExit(3), Quitting("x")])
def test_S108_cancellation_raised_by_user_code_arrives_as_an_error(control: BaseException) -> None:
    arrived = sent(control)
    assert type(arrived) is RemoteError
    assert type(control).__qualname__ in arrived.type_name
    assert arrived.message == str(control)


def test_a_forged_payload_cannot_stop_the_caller() -> None:
    payload, codec = SERIALIZER.encode(KeyboardInterrupt("ha"))
    assert type(SERIALIZER.decode_error(payload, codec)) is RemoteError


class Opaque(Exception):
    """Every look at it raises."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)


def test_S089_an_error_that_resists_every_look_is_reported() -> None:
    known = serializer(Opaque)
    arrived = known.decode_error(*known.encode_error(Opaque("x")))
    assert isinstance(arrived, RemoteError)
    assert arrived.type_name.endswith("Opaque")
    group: Any = known.decode_error(*known.encode_error(ExceptionGroup("two", [Opaque("x"), ValueError("y")])))
    assert members(group) == [RemoteError, ValueError]


@pytest.mark.parametrize(
    "error",
    [
        *(ValueError(threading.Lock()), ValueError(lambda: 1), ValueError(Player), ValueError(object()), Hostile()),
        *(RuntimeError([[[Plain()]]]), urllib.error.HTTPError("u", 404, "gone", Message(), None)),
    ],
    ids=lambda error: type(error).__name__,
)
def test_S089_an_error_that_cannot_be_sent_is_reported_all_the_same(error: Exception) -> None:
    stranger = Serializer(registry(OutOfStock))
    arrived = sent(error, stranger, stranger)
    assert type(arrived) is RemoteError
    assert arrived.type_name.endswith(type(error).__qualname__)
    assert any(note.startswith(REMOTE_TRACEBACK) for note in notes(arrived))
    assert any("It was not sent as it is" in note for note in notes(arrived))


def test_an_error_inside_of_another_degrades_alone() -> None:
    arrived = sent(RuntimeError(["two", Unregistered("x")]))
    assert type(arrived) is RuntimeError
    assert [type(part) for part in arrived.args[0]] == [str, RemoteError]


def test_S089_a_message_that_cannot_be_obtained_says_so() -> None:
    assert sent(Hostile()).message == "<its message could not be obtained: RuntimeError>"


def test_an_attribute_that_cannot_be_sent_is_left_behind_and_named() -> None:
    error: Any = ValueError("x")
    error.lock, error.size = threading.Lock(), 3
    arrived = sent(error)
    assert (type(arrived), arrived.args, arrived.size) == (ValueError, ("x",), 3)
    assert any("attribute 'lock' was left behind" in note for note in notes(arrived))


def test_an_error_whose_args_the_caller_cannot_read_keeps_its_text() -> None:
    arrived = sent(ValueError(Player("ada")), to=Serializer(registry(OutOfStock)), by=SERIALIZER)
    assert type(arrived) is RemoteError
    assert arrived.type_name == "builtins.ValueError"
    assert "Player(name='ada'" in arrived.message
    arrived = sent(ValueError(Player), to=Serializer(registry(OutOfStock)), by=SERIALIZER)
    assert "Player" in arrived.message
    assert any("did not arrive as it is" in note for note in notes(arrived))


def test_S090_a_group_keeps_its_members() -> None:
    inner = ExceptionGroup("in", [Unregistered("b"), OutOfStock(item="n", left=1)])
    arrived = sent(ExceptionGroup("two", [ValueError("a"), inner]))
    assert type(arrived) is ExceptionGroup
    assert str(arrived) == "two (2 sub-exceptions)"
    assert members(arrived) == [ValueError, ExceptionGroup]
    assert members(arrived.exceptions[1]) == [RemoteError, OutOfStock]


def test_S108_a_group_with_a_cancellation_becomes_a_group_that_may_be_raised() -> None:
    arrived = sent(BaseExceptionGroup("two", [ValueError("a"), asyncio.CancelledError()]))
    assert type(arrived) is ExceptionGroup
    assert members(arrived) == [ValueError, RemoteError]


def test_S090_causes_travel_to_a_bounded_depth() -> None:
    error: Exception = ValueError(0)
    for number in range(1, 20):
        outer = ValueError(number)
        outer.__cause__ = error
        error = outer
    depth, cause = 0, sent(error)
    while cause.__cause__ is not None:
        depth, cause = depth + 1, cause.__cause__
    assert depth == exceptions.CAUSES_MAX


def test_S090_a_cycle_of_causes_ends() -> None:
    one, two = ValueError(1), KeyError(2)
    one.__cause__, two.__cause__ = two, one
    arrived = SERIALIZER.decode_error(*SERIALIZER.encode_error(one))
    assert isinstance(arrived.__cause__, KeyError)


def test_the_traceback_is_bounded_and_keeps_both_ends() -> None:
    arrived = sent(ValueError("a" * 100_000 + "the end"))
    (note,) = notes(arrived)
    assert len(note.encode()) < exceptions.TRACEBACK_BYTES_MAX + 200
    assert note.startswith(f"{REMOTE_TRACEBACK}Traceback (most recent call last)")
    assert note.endswith("the end")
    assert "bytes left out" in note


@pytest.mark.parametrize(
    "error",
    [errors.CallExpired("room/x.say: late"), errors.NotExecuted(""), errors.GrainUnplaceable("a\nb")],
    ids=repr,
)
def test_an_error_that_was_never_raised_is_told_as_the_traceback_module_would(error: Exception) -> None:
    told = "".join(traceback.format_exception(error)).rstrip()
    assert exceptions.traceback_note(error) == f"{REMOTE_TRACEBACK}{told}"


def test_an_error_that_others_led_to_is_told_with_them_though_it_was_never_raised() -> None:
    error = errors.CallExpired("late")
    error.__cause__ = ValueError("the reason")
    assert "the reason" in exceptions.traceback_note(error)


def test_over_many_hops_notes_do_not_grow_without_bound() -> None:
    error: Any = ValueError("x")
    error.add_note("mine")
    sizes: list[int] = []
    for _ in range(40):
        error = sent(error)
        sizes.append(sum(map(len, notes(error))))
    assert notes(error).count("mine") <= 1
    assert len(notes(error)) <= exceptions.NOTES_MAX + 1
    assert sizes[-1] < 3 * sizes[exceptions.NOTES_MAX]


def test_an_error_sent_as_a_value_is_not_changed() -> None:
    error = ValueError("x")
    error.add_note("mine")
    arrived: Any = SERIALIZER.decode(*SERIALIZER.encode([error]))
    assert (type(arrived[0]), arrived[0].args, notes(arrived[0])) == (ValueError, ("x",), ["mine"])
    with pytest.raises(SerializationError, match="Unregistered' cannot be sent"):
        SERIALIZER.encode([Unregistered()])


def test_a_local_caller_gets_the_error_that_a_remote_one_would() -> None:
    error = OutOfStock(item="nut", left=0)
    arrived = SERIALIZER.isolate_error(error)
    assert type(arrived) is OutOfStock
    assert arrived is not error
    assert vars(arrived).keys() >= {"item", "left"}


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60), st.integers(-1, 3))
def test_S090_damaged_bytes_of_an_error_give_an_error_and_raise_nothing(payload: bytes, codec: int) -> None:
    assert isinstance(SERIALIZER.decode_error(payload, codec), Exception)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_S090_a_damaged_error_never_raises(data: st.DataObject) -> None:
    payload, _ = SERIALIZER.encode_error(OutOfStock(item="nut", left=2**70))
    damaged = bytearray(payload)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    assert isinstance(SERIALIZER.decode_error(bytes(damaged), Codec.PLAIN), Exception)
