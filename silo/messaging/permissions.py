"""Which frames a peer may send, by the role that it proved."""

from __future__ import annotations

import enum

from silo.wire.frames import Cancel, Flag, Frame, Request


class Role(enum.StrEnum):
    """What a peer is to the cluster."""

    SILO = "silo"
    """Hosts grains; may say everything."""
    CLIENT = "client"
    """Calls grains."""
    ADMIN = "admin"
    """Calls grains and the runtime's own verbs."""


CODEC_PLAIN = 1
"""The only codec of payloads from outside of the cluster: what it carries runs no code."""

_FLAGS_REFUSED = {
    Role.CLIENT: Flag.FORWARDED | Flag.CONTROL | Flag.PLACED,
    Role.ADMIN: Flag.FORWARDED | Flag.PLACED,
}


_FLAG_NAMES = {Flag.CONTROL: "for the runtime", Flag.PLACED: "placed", Flag.FORWARDED: "forwarded"}


def _said(flags: int) -> str:
    return " and ".join(name for flag, name in _FLAG_NAMES.items() if flag & flags)


def refused(role: Role, frame: Frame) -> str:
    """Why a peer of this role may not send this frame; empty if it may.

    Args:
        role: as proved in the greeting.
        frame: as it arrived, large ones put together.
    """
    if role is Role.SILO:
        return ""
    match frame:
        case Request():
            if flags := frame.flags & _FLAGS_REFUSED[role]:
                return f"a request that is {_said(flags)} from a {role}"
            if frame.reply_to is not None or frame.expected is not None:
                return f"a request that names another silo's entry or answer from a {role}"
            if frame.codec != CODEC_PLAIN:
                return f"a payload of codec {frame.codec} from a {role}: only plain ones run no code"
            return ""
        case Cancel():
            return "" if frame.reply_to is None else f"a cancel in a silo's name from a {role}"
        case _:
            return f"a {type(frame).__name__} from a {role}"
