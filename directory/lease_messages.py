"""What silos say to each other about their leases. Every message may be lost, delayed or repeated: no harm is done.

An `echo` is a reading of the clock of whoever asked, sent back unread: evidence counts from when it was asked for.
"""

from __future__ import annotations

import msgspec

from silo.directory.membership import Renew, TableAnswer, Verdict


class Probe(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Asks for an acknowledgement of the sender."""

    echo: float


class Acknowledgement(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Promises to assent to no verdict on the receiver for W from now."""

    echo: float


class AssentAsked(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Asks for the assent to this very verdict."""

    verdict: Verdict


class Assent(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Assents to this verdict and to no other; the sender acknowledges the target no more until it has read on."""

    verdict: Verdict


class Forward(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """Asks to pass a renewal on to the table, which the sender cannot reach."""

    echo: float
    renewal: Renew


class Forwarded(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """What the table answered to a renewal that was passed on."""

    echo: float
    renewal: Renew
    answer: TableAnswer


LeaseMessage = Probe | Acknowledgement | AssentAsked | Assent | Forward | Forwarded
