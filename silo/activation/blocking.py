"""Which grain's code a thread runs, read from its stack: for the log line about a loop that is blocked."""

from __future__ import annotations

from types import FrameType

from silo.activation.activation import Activation
from silo.routing.call import Call


def grain_code_of(frame: FrameType | None) -> str:
    """The grain and method that run in this frame, or in one that called it; empty where no code of a grain does.

    It may be called from another thread, with the frame of one that goes on meanwhile.
    """
    while frame is not None:
        found = frame.f_locals
        activation = found.get("self")
        grain = getattr(activation, "id", None)  # none yet in one that is being made at this moment
        if isinstance(activation, Activation) and grain is not None:  # the runtime's own frame, right above the grain's
            call = found.get("call")
            return f"{grain}.{call.method}" if isinstance(call, Call) else f"a hook or task of {grain}"
        frame = frame.f_back
    return ""
