"""What the lease core is told, and what it orders: events in the past tense, orders in the imperative."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import msgspec

from silo.directory.addresses import SiloAddress
from silo.directory.errors import SiloError
from silo.directory.lease_messages import LeaseMessage
from silo.directory.membership import ProcessIdentity, SiloInfo, SiloStatus, TableAnswer, TableRequest, View

# ---- events


class JoinAsked(msgspec.Struct, frozen=True):
    token: int
    silo: SiloAddress
    info: SiloInfo
    bootstrap: bool = False


class AdvanceAsked(msgspec.Struct, frozen=True):
    token: int
    status: SiloStatus


class CordonAsked(msgspec.Struct, frozen=True):
    token: int
    cordoned: bool


class ReadAsked(msgspec.Struct, frozen=True):
    token: int


class GoodbyeAsked(msgspec.Struct, frozen=True):
    token: int


class Confirmed(msgspec.Struct, frozen=True):
    """The directory has confirmed what this silo serves, by the claims of all members of the table of this run."""

    run: str


class Ticked(msgspec.Struct, frozen=True):
    """The time that `wake_at` named has come; early and late ticks do no harm."""


class Hinted(msgspec.Struct, frozen=True):
    """Somebody says that the table has this version: a reason to look, nothing more."""

    version: int


class ProcessEnded(msgspec.Struct, frozen=True):
    """The operating system says that the process of this silo has ended."""

    silo: SiloAddress


class Answered(msgspec.Struct, frozen=True):
    """The table answered; `sent_at` was read before the request left."""

    request: TableRequest
    sent_at: float
    answer: TableAnswer


class Failed(msgspec.Struct, frozen=True):
    """The table could not be asked; the request may have been carried out all the same."""

    request: TableRequest
    sent_at: float
    because: SiloError


class PeerSaid(msgspec.Struct, frozen=True):
    """The lease of another silo has sent this."""

    peer: SiloAddress
    message: LeaseMessage


Event = (
    JoinAsked
    | AdvanceAsked
    | CordonAsked
    | ReadAsked
    | GoodbyeAsked
    | Confirmed
    | Ticked
    | Hinted
    | ProcessEnded
    | Answered
    | Failed
    | PeerSaid
)


# ---- orders


class AskTable(msgspec.Struct, frozen=True):
    request: TableRequest


class Tell(msgspec.Struct, frozen=True):
    """Send this to the lease of another silo; it may be lost."""

    peer: SiloAddress
    message: LeaseMessage


@dataclass(frozen=True, slots=True)
class HoldRight:
    """Turns may start until then; a later order may also name an earlier time."""

    until: float
    leased_until: float = field(default=-math.inf, compare=False)
    """The part of it that the store has given; the rest is what others have acknowledged while it does not answer. Two
    orders are alike whatever it is, which a msgspec struct cannot say.
    """


class ResignRight(msgspec.Struct, frozen=True):
    """No turn may start any more, for ever; `dead` where others decided so."""

    dead: bool
    because: str


class AdoptView(msgspec.Struct, frozen=True):
    view: View


class WatchProcess(msgspec.Struct, frozen=True):
    silo: SiloAddress
    process: ProcessIdentity


class UnwatchProcess(msgspec.Struct, frozen=True):
    silo: SiloAddress


class Conclude(msgspec.Struct, frozen=True):
    """What was asked under this token is done, or has failed for good."""

    token: int
    error: SiloError | None = None


Order = AskTable | Tell | HoldRight | ResignRight | AdoptView | WatchProcess | UnwatchProcess | Conclude
