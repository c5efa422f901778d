"""Errors on their way: the stand-in for classes that cannot travel, and the traceback as text."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Sequence
from typing import Final, cast

from silo.directory.errors import SiloError

TRACEBACK_BYTES_MAX: Final = 16_384
"""The longest traceback text that travels with an error, in bytes of UTF-8; the middle of a longer one is left out."""
TRACEBACK_FRAMES_MAX: Final = 50
"""The most frames of each traceback that are written out: the innermost ones."""
MESSAGE_BYTES_MAX: Final = 16_384
"""The longest message of a RemoteError, and the longest note of any error, in bytes of UTF-8."""
NOTES_MAX: Final = 16
"""The most notes that travel with one error: the newest ones."""
CAUSES_MAX: Final = 8
"""The most causes that travel with one error as errors of their own; the traceback text shows the others."""

REMOTE_TRACEBACK: Final = "Remote traceback:\n"
"""How the note with a remote traceback begins."""

_CONTROL_FLOW: Final = (StopIteration, StopAsyncIteration, asyncio.CancelledError)


class RemoteError(SiloError):
    """An exception of a class that is not registered here, or that could not be sent as it was.

    Register the class with `silo.register` in both processes to receive it as itself.
    """

    def __init__(self, type_name: str, message: str) -> None:
        super().__init__(f"{type_name}: {message}" if message else type_name)
        self.type_name = type_name
        """Module and name of the class that was raised."""
        self.message = message


def may_be_raised(error: BaseException) -> bool:
    """Whether the error can be raised in the caller as it is.

    Those that steer the interpreter or the event loop (StopIteration, CancelledError, SystemExit …) are sent as a
    RemoteError: in the caller they would stop something other than the call.
    """
    return issubclass(type(error), Exception) and not issubclass(type(error), _CONTROL_FLOW)


def is_group(error: BaseException) -> bool:
    """Whether the error is a group, which may be raised once its members may."""
    return issubclass(type(error), BaseExceptionGroup)


def type_name_of(error: BaseException) -> str:
    """Module and name of the error's class; the name alone for builtin ones."""
    cls = type(error)
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def message_of(error: BaseException) -> str:
    """What the error says; never raises, whatever its `__str__` does."""
    try:
        return shortened(str(error), MESSAGE_BYTES_MAX)
    except Exception as broken:  # the application's __str__ may raise anything
        return f"<its message could not be obtained: {type(broken).__name__}>"


def described(error: BaseException) -> str:
    """Class and message in one line, for the message of another error; never raises."""
    return f"{type_name_of(error)}: {message_of(error)}"


def stand_in(error: BaseException, reason: str) -> RemoteError:
    """The RemoteError that travels in the place of an error, with its notes and the reason."""
    remote = RemoteError(type_name_of(error), message_of(error))
    for note in notes_of(error):
        remote.add_note(note)
    if reason:
        remote.add_note(reason)
    return remote


def notes_of(error: BaseException) -> list[str]:
    """The error's notes that are text, the newest NOTES_MAX of them, each of bounded length; never raises."""
    try:
        notes: object = getattr(error, "__notes__", ())
    except Exception as broken:  # attributes of the application may raise anything
        return [f"Its notes could not be obtained: {type(broken).__name__}"]
    if not isinstance(notes, (list, tuple)):
        return []
    texts = [note for note in cast("Sequence[object]", notes) if isinstance(note, str)]
    return [shortened(note, MESSAGE_BYTES_MAX) for note in texts[-NOTES_MAX:]]


def traceback_note(error: BaseException) -> str:
    """The note with the error's traceback and those of its causes; never raises."""
    try:
        if isinstance(error, SiloError) and _has_no_story(error):
            return REMOTE_TRACEBACK + shortened(described(error).removesuffix(": "), TRACEBACK_BYTES_MAX)
        story = traceback.TracebackException.from_exception(error, limit=-TRACEBACK_FRAMES_MAX)
        _leave_out_remote_notes(story, set())
        text = "".join(story.format())
    except Exception as broken:  # the traceback formats objects of the application, which may raise anything
        text = f"{type_name_of(error)}: <its traceback could not be formatted: {type(broken).__name__}>"
    return REMOTE_TRACEBACK + shortened(text, TRACEBACK_BYTES_MAX).rstrip()


def _has_no_story(error: SiloError) -> bool:
    """Whether it was never raised, and nothing led to it: what the runtime says of thousands of calls at once, say,
    when a silo is lost. Its class and its message are all that the traceback module would make of it, much slower."""
    return (
        error.__traceback__ is None
        and error.__cause__ is None
        and error.__context__ is None
        and not hasattr(error, "__notes__")
    )


def _leave_out_remote_notes(story: traceback.TracebackException, seen: set[int]) -> None:
    """Earlier hops travel as notes of their own; printed within this hop's text they would double at each hop."""
    if id(story) in seen:
        return
    seen.add(id(story))
    notes: object = getattr(story, "__notes__", None)
    if isinstance(notes, (list, tuple)):
        kept = [str(note) for note in cast("Sequence[object]", notes)]
        story.__notes__ = [note for note in kept if not note.startswith(REMOTE_TRACEBACK)]
    for other in (story.__cause__, story.__context__, *(story.exceptions or ())):
        if other is not None:
            _leave_out_remote_notes(other, seen)


def shortened(text: str, bytes_max: int) -> str:
    """The text, or its beginning and its end where it has more than `bytes_max` bytes; always valid Unicode."""
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= bytes_max:
        return data.decode("utf-8")
    head, tail = data[: bytes_max // 4], data[len(data) - bytes_max // 2 :]
    left_out = len(data) - len(head) - len(tail)
    return f"{head.decode('utf-8', 'ignore')}\n… {left_out} bytes left out …\n{tail.decode('utf-8', 'ignore')}"
