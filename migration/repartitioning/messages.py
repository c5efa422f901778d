"""What silos say to each other about grains that might move, what befalls one of them, and what it orders.

Messages travel as positional msgpack: fields are only ever appended. Each of them may be lost, doubled or overtaken.
No reading of a clock is among them: times are ages, in seconds.
"""

from __future__ import annotations

import enum

import msgspec

from silo.directory.addresses import GrainId, SiloAddress

# ------------------------------------------------------------------------------------------------------------- messages


class Why(enum.StrEnum):
    """Why a grain is to move."""

    HUB = "hub"
    """Most of its traffic is with the target."""
    LEAF = "leaf"
    """It follows the one grain with which most of its traffic is."""
    ROOM = "room"
    """What it talks to does not fit where it is, but would at the target."""
    LOAD = "load"
    """Its silo has too much to do."""
    PAIR = "pair"
    """Two silos agreed on it, under `pairwise`."""


class Report(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a silo tells all others of itself, now and then, and with each proposal and grant."""

    count: int
    """Its activations."""
    load: float
    """The messages per second of its grains, at both ends."""
    capacity: float = 1.0
    """How much it can carry, relative to the others."""


class MoveRecord(msgspec.Struct, frozen=True, array_like=True):
    """How often a grain has been moved for locality; goes with it, so that its back-off does not begin anew."""

    moves: int = 0
    room_moves: int = 0
    since_s: float | None = None
    """Since its last move."""
    before_s: float | None = None
    """Since the move before that."""
    around: tuple[GrainId, ...] = ()
    """Its heaviest peers at its last move."""


class Proposal(msgspec.Struct, frozen=True, array_like=True):
    """One grain that would move to the silo that is asked."""

    grain: GrainId
    why: Why
    gain: float
    """Messages per second that become local, less those that become remote."""
    load: float
    towards: GrainId | None = None
    """Its heaviest peer at the silo that is asked."""
    record: MoveRecord = MoveRecord()


class Propose(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """All that one silo asks of another in one phase of one round."""

    proposals: tuple[Proposal, ...]
    report: Report


class Grant(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """A place is kept for each of these grains. The others are not answered, and may be granted later."""

    grains: tuple[GrainId, ...]
    report: Report


class Decline(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """These do not come: their places are free."""

    grains: tuple[GrainId, ...]


class Announce(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Where grains are about to be, to the silos of those they talk to; and which have ended."""

    places: tuple[tuple[GrainId, SiloAddress], ...] = ()
    gone: tuple[tuple[GrainId, GrainId], ...] = ()
    """A grain there, and a peer of it that has ended."""


class Neighbour(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One peer of a grain that has moved, as its former silo knew it."""

    peer: GrainId
    silo: SiloAddress
    mass: float
    age_s: float
    count: int


class Neighbourhood(msgspec.Struct, frozen=True, array_like=True):
    """What a grain's former silo knew of its peers, for its new one."""

    grain: GrainId
    total: float
    age_s: float
    peers: tuple[Neighbour, ...]


class Handover(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """The neighbourhood of a grain that has moved. Should it be lost, it is learnt anew."""

    neighbourhood: Neighbourhood


class Candidate(msgspec.Struct, frozen=True, array_like=True):
    """One grain of an offer: its score, and its peers at the two silos of the exchange, with their rates."""

    grain: GrainId
    score: float
    load: float
    peers: tuple[tuple[GrainId, float], ...]
    record: MoveRecord = MoveRecord()


class Offer(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """Pairwise: what one silo would give to another."""

    round: int
    candidates: tuple[Candidate, ...]
    report: Report


class Accept(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """Pairwise: which of them the other takes, and what it would give in turn."""

    round: int
    takes: tuple[GrainId, ...]
    gives: tuple[Candidate, ...]
    report: Report


class Confirm(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """Pairwise: what was to be given in turn may come."""

    round: int


class Refuse(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """Pairwise: not now; the silo has just exchanged with another."""

    round: int


Message = Propose | Grant | Decline | Announce | Handover | Offer | Accept | Confirm | Refuse

# --------------------------------------------------------------------------------------------------------------- events


class Tick(msgspec.Struct, frozen=True, gc=False):
    """Time has passed: about once a second, and when `Exchange.next_at` has come."""


class Heard(msgspec.Struct, frozen=True, gc=False):
    """A silo has reported its load."""

    silo: SiloAddress
    report: Report


class Received(msgspec.Struct, frozen=True):
    """A message has come from another silo."""

    silo: SiloAddress
    message: Message


class Moved(msgspec.Struct, frozen=True, gc=False):
    """A grain has left this silo, by whichever order."""

    grain: GrainId
    target: SiloAddress


class Aborted(msgspec.Struct, frozen=True, gc=False):
    """A move that was ordered has not come about: the grain is where it was."""

    grain: GrainId


class Arrived(msgspec.Struct, frozen=True, gc=False):
    """A grain that moved here is open."""

    grain: GrainId


class Deactivated(msgspec.Struct, frozen=True, gc=False):
    """A grain has ended here, and is nowhere."""

    grain: GrainId


class MembersChanged(msgspec.Struct, frozen=True):
    """The silos that may host grains are these now, this one included."""

    members: frozenset[SiloAddress]


class Suspended(msgspec.Struct, frozen=True, gc=False):
    """Nothing is to be moved for so long, or until `Resumed`."""

    for_s: float


class Resumed(msgspec.Struct, frozen=True, gc=False):
    """Grains may be moved again."""


Event = Tick | Heard | Received | Moved | Aborted | Arrived | Deactivated | MembersChanged | Suspended | Resumed

# --------------------------------------------------------------------------------------------------------------- orders


class Send(msgspec.Struct, frozen=True):
    """Send a message to another silo, once, without waiting for anything."""

    silo: SiloAddress
    message: Message


class Move(msgspec.Struct, frozen=True, gc=False):
    """Move a grain, and say `Moved` or `Aborted` with what comes of it."""

    grain: GrainId
    target: SiloAddress
    why: Why
    gain: float


Order = Send | Move
