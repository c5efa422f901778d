"""The handover protocol: how one live grain goes from one silo to another, as two cores without I/O, clock or task.

Events in, orders out. The source keeps the frozen instance until the target has opened; the commit is the target's
compare-and-set of the entry; before it everything can be taken back, and in doubt the directory judges: the source
fences the entry with a compare-and-set of its own, and whoever loses yields.

    source   ASKING -> DRAINING -> DEACTIVATING -> DEHYDRATING -> OFFERED -> MOVED -> DONE
                                                     (in doubt)   FENCING -> MOVED or back
                                    (the target died, or cannot give back)   PARTING -> DONE or back
    target   REHYDRATING -> REGISTERING -> STARTING -> DONE, open
                                              RETURNING (on_activate failed for good: the entry goes back to the source)

The source lets the frozen instance go on two grounds only: the target has said that it is open, or somebody else has
taken the entry over. For as long as the target lives it may still fail to open, and the state it would give back to is
the source's. So a lost link alone decides nothing after the commit: the target says its last word again on the next
one. If the target dies first, the source takes the entry back by compare-and-set against the dead one's, and goes on
with what it has: whether the target had opened, only the dead one knows, and what it did since died with it.
"""

from __future__ import annotations

import enum
from typing import TypeGuard

import msgspec

from silo.directory.addresses import Entry, SiloAddress
from silo.migration.outcome import MoveStatus

# --------------------------------------------------------------------------------------------------------------- events


class AskAnswered(msgspec.Struct, frozen=True):
    """The target would take the grain, or `refused` says why not."""

    refused: str


class Retargeted(msgspec.Struct, frozen=True):
    """The move shall go to another silo than before."""


class Drained(msgspec.Struct, frozen=True):
    """No turn runs any more, and none starts."""


class Deactivated(msgspec.Struct, frozen=True):
    """`on_deactivate` has ended, well or not: its failure does not stop the move."""


class Dehydrated(msgspec.Struct, frozen=True):
    """The payload is packed."""

    payload: bytes


class Failed(msgspec.Struct, frozen=True):
    """The step under way failed for good: a participant raised, the payload is too large or does not decode."""

    why: str


class OfferAnswered(msgspec.Struct, frozen=True):
    """The target holds the entry now, or has refused and will not take it.

    Args:
        lost: it did send its compare-and-set, and lost: somebody else holds the entry, or nobody does.
    """

    entry: Entry | None
    refused: str = ""
    lost: bool = False


class TimedOut(msgspec.Struct, frozen=True):
    """The step under way took longer than it may."""

    why: str


class PeerLost(msgspec.Struct, frozen=True):
    """The link to the other silo is lost: what was sent may or may not have arrived."""

    why: str


class PeerDied(msgspec.Struct, frozen=True):
    """The other silo was declared dead: nothing that it still does takes effect."""

    why: str


class Found(msgspec.Struct, frozen=True):
    """Somebody has looked the grain up: who holds the entry."""

    entry: Entry | None


class Registered(msgspec.Struct, frozen=True):
    """The directory's answer to the compare-and-set: who holds the entry now, or None where the row is gone."""

    entry: Entry | None


class TargetOpened(msgspec.Struct, frozen=True):
    """The target's last word: the grain is open there; or it could not be, and the entry is the source's again."""

    failed: str
    entry: Entry | None = None


class Withdrawn(msgspec.Struct, frozen=True):
    """The source no longer waits."""


class Rehydrated(msgspec.Struct, frozen=True):
    """The instance stands, closed, with its state."""


class Activated(msgspec.Struct, frozen=True):
    """`on_activate` has run."""


Event = (
    AskAnswered
    | Retargeted
    | Drained
    | Deactivated
    | Dehydrated
    | Failed
    | OfferAnswered
    | TimedOut
    | PeerLost
    | PeerDied
    | Found
    | Registered
    | TargetOpened
    | Withdrawn
    | Rehydrated
    | Activated
)

# --------------------------------------------------------------------------------------------------------------- orders


class SendAsk(msgspec.Struct, frozen=True):
    """Ask the target whether it would take the grain."""


class Drain(msgspec.Struct, frozen=True):
    """Notify the grain, hold new calls, wait for the running turns."""


class Deactivate(msgspec.Struct, frozen=True):
    """Run `on_deactivate(MIGRATING)`."""


class Dehydrate(msgspec.Struct, frozen=True):
    """Take the soft state out and pack it."""


class SendOffer(msgspec.Struct, frozen=True):
    """Offer the payload to the target."""

    payload: bytes


class SendWithdraw(msgspec.Struct, frozen=True):
    """Tell the target that the source no longer waits."""


class Fence(msgspec.Struct, frozen=True):
    """Take the entry again under a new epoch, by compare-and-set against this one, or an empty place."""

    expected: Entry | None


class Resume(msgspec.Struct, frozen=True):
    """Serve again, here, with the state as it is; `reactivate` where `on_deactivate` has run."""

    reactivate: bool
    why: str


class Forward(msgspec.Struct, frozen=True):
    """The grain is there now: send the held calls after it, in order."""

    entry: Entry


class Release(msgspec.Struct, frozen=True):
    """Let the frozen instance go."""


class Finish(msgspec.Struct, frozen=True):
    """The move has ended this way."""

    status: MoveStatus
    why: str = ""


class Rehydrate(msgspec.Struct, frozen=True):
    """Build the instance and give it its state, closed."""


class Register(msgspec.Struct, frozen=True):
    """Take the entry by compare-and-set against the source's: the commit."""


class SendOfferAnswer(msgspec.Struct, frozen=True):
    """Tell the source that the entry is the target's now, or why it is not."""

    entry: Entry | None
    refused: str = ""
    lost: bool = False


class Activate(msgspec.Struct, frozen=True):
    """Run `on_activate(MIGRATION)`, with its bounded retries."""


class Open(msgspec.Struct, frozen=True):
    """Start turns."""


class SendOpened(msgspec.Struct, frozen=True):
    """Tell the source that it may let go; or that it has the entry again."""

    failed: str = ""
    entry: Entry | None = None


class GiveBack(msgspec.Struct, frozen=True):
    """Write the entry back to the source by compare-and-set against one's own."""


class Discard(msgspec.Struct, frozen=True):
    """Let the unopened instance go; calls that wait for it go to whoever holds the entry, or fail as not executed."""

    entry: Entry | None
    why: str


Order = (
    SendAsk
    | Drain
    | Deactivate
    | Dehydrate
    | SendOffer
    | SendWithdraw
    | Fence
    | Resume
    | Forward
    | Release
    | Finish
    | Rehydrate
    | Register
    | SendOfferAnswer
    | Activate
    | Open
    | SendOpened
    | GiveBack
    | Discard
)

# --------------------------------------------------------------------------------------------------------------- source


class SourcePhase(enum.Enum):
    """Where a move stands, at its source."""

    ASKING = "asking"
    DRAINING = "draining"
    DEACTIVATING = "deactivating"
    DEHYDRATING = "dehydrating"
    OFFERED = "offered"
    FENCING = "fencing"
    MOVED = "moved"
    PARTING = "parting"
    DONE = "done"


class Source(msgspec.Struct):
    """The source's side of one move.

    Args:
        entry: the entry under which the source serves the grain.
        successor: the id that the activation at the target has.
    """

    entry: Entry
    successor: str
    phase: SourcePhase = SourcePhase.ASKING
    why: str = ""
    """Why the move is being taken back, while it is."""
    agreed: bool = False
    """Whether the present target would take the grain."""
    drained: bool = False
    refused: bool = False
    """Whether the target has said that it does not hold the entry and will not take it."""
    target_gone: bool = False
    """Whether the target is dead, or has said that the grain will not open there."""
    moved_to: Entry | None = None
    """The target's entry, once it is known to have committed."""

    @property
    def epoch(self) -> int:
        """The epoch of the grain's newest entry that is known here."""
        return max(self.entry.epoch, self.moved_to.epoch if self.moved_to is not None else 0)

    @property
    def is_retargetable(self) -> bool:
        """Whether the move may still go elsewhere: the grain has not been told to deactivate."""
        return self.phase in (SourcePhase.ASKING, SourcePhase.DRAINING)

    def start(self) -> list[Order]:
        return [SendAsk()]

    def on(self, event: Event) -> list[Order]:
        """What follows from the event; nothing, where it comes too late to matter."""
        match (self.phase, event):
            # How nearly every move goes comes first: each case that is passed over takes time.
            case (SourcePhase.ASKING, AskAnswered(refused="")):
                self.phase = SourcePhase.DRAINING
                self.agreed = True
                return [Drain()]
            case (SourcePhase.DRAINING, Drained()):
                self.drained = True
                return self._deactivated_next()
            case (SourcePhase.DEACTIVATING, Deactivated()):
                if self.why:
                    return self._aborted(self.why, reactivate=True)
                self.phase = SourcePhase.DEHYDRATING
                return [Dehydrate()]
            case (SourcePhase.DEHYDRATING, Dehydrated(payload)):
                self.phase = SourcePhase.OFFERED
                return [SendOffer(payload)]
            case (SourcePhase.OFFERED | SourcePhase.FENCING, OfferAnswered(entry=Entry() as entry)):
                return self._moved(entry)
            case (SourcePhase.MOVED, TargetOpened(failed="")):
                return self._done(Release(), Finish(MoveStatus.MOVED))

            case (SourcePhase.ASKING, AskAnswered(refused=why)):
                return self._done(Finish(MoveStatus.REFUSED, why))
            case (SourcePhase.ASKING, TimedOut(why) | PeerLost(why) | PeerDied(why) | Failed(why)):
                return self._done(Finish(MoveStatus.REFUSED, why))

            case (SourcePhase.ASKING | SourcePhase.DRAINING, Retargeted()):
                self.agreed = False
                return [SendAsk()]
            case (SourcePhase.DRAINING, AskAnswered(refused="")):
                self.agreed = True
                return self._deactivated_next()
            case (SourcePhase.DRAINING, AskAnswered(why) | TimedOut(why) | PeerLost(why) | PeerDied(why) | Failed(why)):
                return self._aborted(why, reactivate=False)

            case (SourcePhase.DEACTIVATING, PeerLost(why) | PeerDied(why)):
                self.why = why  # on_deactivate is never interrupted; seen again when it ends
                return []
            case (SourcePhase.DEACTIVATING, Failed(why)):
                return self._aborted(why, reactivate=True)

            case (SourcePhase.DEHYDRATING, Failed(why) | TimedOut(why) | PeerLost(why) | PeerDied(why)):
                return self._aborted(why, reactivate=True)

            case (SourcePhase.OFFERED, OfferAnswered(refused=why, lost=False)):
                return self._aborted(why, reactivate=True)  # it has not sent its compare-and-set, and will not
            case (SourcePhase.OFFERED, OfferAnswered(refused=why)):
                self.refused = True
                return self._in_doubt(why)
            case (SourcePhase.OFFERED, TimedOut(why) | PeerLost(why) | Failed(why)):
                return [SendWithdraw(), *self._in_doubt(why)]
            case (SourcePhase.OFFERED, PeerDied(why)):
                self.target_gone = True
                return self._in_doubt(why)

            case (SourcePhase.FENCING, OfferAnswered()):
                self.refused = True  # the compare-and-set is out already, and resuming waits for its answer
                return []
            case (SourcePhase.FENCING, PeerDied()):
                self.target_gone = True
                return []
            case (SourcePhase.FENCING, TargetOpened(failed=why)) if why:
                self.target_gone = True
                return []
            case (SourcePhase.FENCING, Registered(entry)):
                return self._judged(entry)

            case (SourcePhase.MOVED, TargetOpened(failed=why, entry=Entry() as entry)):
                return self._given_back(entry, why)
            case (SourcePhase.MOVED, TargetOpened(failed=why) | PeerDied(why)):
                return self._parting(self.moved_to, why)
            case (SourcePhase.MOVED | SourcePhase.PARTING, Registered(entry) | Found(entry)) if self._is_own(entry):
                return self._given_back(entry, self.why or "the target gave the grain back")
            case (SourcePhase.PARTING, Registered(entry)):
                if entry is None or entry.activation == self.successor:
                    return self._parting(entry, self.why)  # swept, or renewed before it died: nobody else has the state
                return self._yielded(entry, f"the entry is held by {entry}")
            case (SourcePhase.FENCING | SourcePhase.PARTING, Failed(why)):
                return self._yielded(None, f"the directory could not be asked whose the entry is: {why}")

            case _:
                return []  # late: an answer to a step that has been decided otherwise, or after the end

    def _deactivated_next(self) -> list[Order]:
        if not (self.agreed and self.drained):
            return []
        self.phase = SourcePhase.DEACTIVATING
        return [Deactivate()]

    def _in_doubt(self, why: str) -> list[Order]:
        self.phase = SourcePhase.FENCING
        self.why = why
        return [Fence(self.entry)]

    def _moved(self, entry: Entry) -> list[Order]:
        self.moved_to = entry
        if self.target_gone:
            return self._parting(entry, self.why)
        self.phase = SourcePhase.MOVED
        self.why = ""
        return [Forward(entry)]

    def _parting(self, expected: Entry | None, why: str) -> list[Order]:
        """The target will not open, or no more: take the grain back, unless somebody else has it by now."""
        self.phase = SourcePhase.PARTING
        self.why = why
        return [Fence(expected)]

    def _judged(self, entry: Entry | None) -> list[Order]:
        if self._is_own(entry):
            self.entry = entry
            return self._aborted(self.why, reactivate=True)
        if entry is None and (self.refused or self.target_gone):
            return [Fence(None)]  # the row is gone, and not to a living target: nobody else has the grain's state
        if entry is None or entry.activation != self.successor:
            return self._yielded(entry, f"the entry is held by {entry}" if entry else "the directory has no row for it")
        return self._moved(entry)

    def _yielded(self, entry: Entry | None, gone: str) -> list[Order]:
        return self._done(Discard(entry, gone), Finish(MoveStatus.LOST, f"{gone}; {self.why}"))

    def _is_own(self, entry: Entry | None) -> TypeGuard[Entry]:
        """Whether the entry is the source's again; the one that was offered says nothing of what came after it."""
        return entry is not None and entry.activation == self.entry.activation and entry.epoch > self.entry.epoch

    def _given_back(self, entry: Entry, why: str) -> list[Order]:
        self.entry = entry
        return self._aborted(why, reactivate=True)

    def _aborted(self, why: str, *, reactivate: bool) -> list[Order]:
        return self._done(Resume(reactivate, why), Finish(MoveStatus.ABORTED, why))

    def _done(self, *orders: Order) -> list[Order]:
        self.phase = SourcePhase.DONE
        return list(orders)


# --------------------------------------------------------------------------------------------------------------- target


class TargetPhase(enum.Enum):
    """Where a move stands, at its target."""

    REHYDRATING = "rehydrating"
    REGISTERING = "registering"
    STARTING = "starting"
    RETURNING = "returning"
    DONE = "done"


class Target(msgspec.Struct):
    """The target's side of one move.

    Args:
        silo: this silo.
        activation: the id that the new activation has.
        offered: the source's entry, against which the compare-and-set goes.
    """

    silo: SiloAddress
    activation: str
    offered: Entry
    phase: TargetPhase = TargetPhase.REHYDRATING
    entry: Entry | None = None
    why: str = ""

    def start(self) -> list[Order]:
        return [Rehydrate()]

    def on(self, event: Event) -> list[Order]:
        """What follows from the event; nothing, where it comes too late to matter."""
        match (self.phase, event):
            case (TargetPhase.REHYDRATING, Withdrawn()):
                return self._refused("the source withdrew its offer")
            case (TargetPhase.REHYDRATING, Failed(why) | TimedOut(why)):
                return self._refused(why)
            case (TargetPhase.REHYDRATING, PeerLost() | PeerDied()):
                return []  # the state is here, whole: a source that died has nothing better
            case (TargetPhase.REHYDRATING, Rehydrated()):
                self.phase = TargetPhase.REGISTERING
                return [Register()]

            case (TargetPhase.REGISTERING, Registered(entry)):
                if entry is not None and entry.activation == self.activation:
                    self.entry = entry
                    self.phase = TargetPhase.STARTING
                    return [SendOfferAnswer(entry), Activate()]
                self.phase = TargetPhase.DONE
                why = f"the entry is held by {entry}" if entry else "the source's row is gone"
                return [SendOfferAnswer(None, why, lost=True), Discard(entry, why)]
            case (TargetPhase.REGISTERING, Failed(why)):
                # Its compare-and-set may be carried out yet: told both, the source takes the entry back wherever it is.
                self.phase = TargetPhase.DONE
                return [SendOfferAnswer(None, why, lost=True), SendOpened(why), Discard(None, why)]
            case (TargetPhase.REGISTERING, Withdrawn() | PeerLost() | PeerDied()):
                return []  # the compare-and-set is out; the directory judges

            case (TargetPhase.STARTING, Activated()):
                self.phase = TargetPhase.DONE
                return [Open(), SendOpened()]
            case (TargetPhase.STARTING, Failed(why) | TimedOut(why)):
                self.phase = TargetPhase.RETURNING
                self.why = why
                return [GiveBack()]

            case (TargetPhase.RETURNING, Registered(entry)):
                self.phase = TargetPhase.DONE
                back = entry if entry is not None and entry.activation == self.offered.activation else None
                return [SendOpened(self.why, back), Discard(entry, self.why)]
            case (TargetPhase.RETURNING, Failed()):  # what it could not give back, the source takes back
                self.phase = TargetPhase.DONE
                return [SendOpened(self.why), Discard(None, self.why)]

            case _:
                return []  # late, or of no consequence: the entry is held, and only the directory takes it away

    def _refused(self, why: str) -> list[Order]:
        self.phase = TargetPhase.DONE
        return [SendOfferAnswer(None, why), Discard(self.offered, why)]
