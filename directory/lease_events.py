"""What the lease core is told, and what it orders: events in the past tense, orders in the imperative."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from silo.directory.addresses import SiloAddress
from silo.directory.errors import SiloError
from silo.directory.lease_messages import LeaseMessage
from silo.directory.membership import ProcessIdentity, SiloInfo, SiloStatus, TableAnswer, TableRequest, View

# ---- events


@dataclass(frozen=True, slots=True)
class JoinAsked:
    token: int
    silo: SiloAddress
    info: SiloInfo


@dataclass(frozen=True, slots=True)
class AdvanceAsked:
    token: int
    status: SiloStatus


@dataclass(frozen=True, slots=True)
class CordonAsked:
    token: int
    cordoned: bool


@dataclass(frozen=True, slots=True)
class ReadAsked:
    token: int


@dataclass(frozen=True, slots=True)
class GoodbyeAsked:
    token: int


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The directory has confirmed what this silo serves, by the claims of all members of the table of this run."""

    run: str


@dataclass(frozen=True, slots=True)
class Ticked:
    """The time that `wake_at` named has come; early and late ticks do no harm."""


@dataclass(frozen=True, slots=True)
class Hinted:
    """Somebody says that the table has this version: a reason to look, nothing more."""

    version: int


@dataclass(frozen=True, slots=True)
class ProcessEnded:
    """The operating system says that the process of this silo has ended."""

    silo: SiloAddress


@dataclass(frozen=True, slots=True)
class Answered:
    """The table answered; `sent_at` was read before the request left."""

    request: TableRequest
    sent_at: float
    answer: TableAnswer


@dataclass(frozen=True, slots=True)
class Failed:
    """The table could not be asked; the request may have been carried out all the same."""

    request: TableRequest
    sent_at: float
    because: SiloError


@dataclass(frozen=True, slots=True)
class PeerSaid:
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


@dataclass(frozen=True, slots=True)
class AskTable:
    request: TableRequest


@dataclass(frozen=True, slots=True)
class Tell:
    """Send this to the lease of another silo; it may be lost."""

    peer: SiloAddress
    message: LeaseMessage


@dataclass(frozen=True, slots=True)
class HoldRight:
    """Turns may start until then; a later order may also name an earlier time."""

    until: float
    leased_until: float = field(default=-math.inf, compare=False)
    """The part of it that the store has given; the rest is what others have acknowledged while it does not answer."""


@dataclass(frozen=True, slots=True)
class ResignRight:
    """No turn may start any more, for ever; `dead` where others decided so."""

    dead: bool
    because: str


@dataclass(frozen=True, slots=True)
class AdoptView:
    view: View


@dataclass(frozen=True, slots=True)
class WatchProcess:
    silo: SiloAddress
    process: ProcessIdentity


@dataclass(frozen=True, slots=True)
class UnwatchProcess:
    silo: SiloAddress


@dataclass(frozen=True, slots=True)
class Conclude:
    """What was asked under this token is done, or has failed for good."""

    token: int
    error: SiloError | None = None


Order = AskTable | Tell | HoldRight | ResignRight | AdoptView | WatchProcess | UnwatchProcess | Conclude
