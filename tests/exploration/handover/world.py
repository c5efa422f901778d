"""One state of everything that takes part in a handover, as a value; and what must hold in it.

Three silos: the source, the target, and a third one that stands for whoever takes over from the dead. Between source
and target a link, which may break and be made anew; behind all of them the directory. One call is on its way.
"""

from __future__ import annotations

import enum
from typing import Any, TypeAlias

import msgspec

from silo.directory.addresses import Entry, GrainId, SiloAddress
from silo.migration import handover as h
from silo.migration.handover import SourcePhase, TargetPhase

GRAIN = GrainId("room", "lobby")
SOURCE, TARGET, THIRD = SiloAddress("source", 1), SiloAddress("target", 2), SiloAddress("third", 3)
OLD, NEW, FRESH = "old", "new", "fresh"
"""The ids of the activations: the one that moves, the one that it becomes, and one that starts without its state."""
NEXT = {1: NEW, 2: "new again", 3: "new once more"}
"""What it becomes in each of its moves."""
OFFERED = Entry(GRAIN, SOURCE, OLD, 1)
BECAUSE = "fault"
"""The one reason for everything: reasons that differ would make states differ that do not."""

Word: TypeAlias = h.SendAsk | h.SendOffer | h.SendWithdraw | h.AskAnswered | h.SendOfferAnswer | h.SendOpened
LAST_WORDS = (h.SendOfferAnswer, h.SendOpened)
"""What a target says again when its link is lost."""


class Sent(msgspec.Struct, frozen=True, cache_hash=True, gc=False):
    """A message of one move; an offer names the entry that is offered, and the id of the activation it becomes."""

    move: int
    word: Word
    entry: Entry | None = None
    successor: str = ""

    @property
    def is_last_word(self) -> bool:
        return isinstance(self.word, LAST_WORDS)

    @property
    def name(self) -> str:
        return type(self.word).__name__ if self.move == 1 else f"{type(self.word).__name__} of move {self.move}"


class Violation(AssertionError):
    """A promise is broken; the message tells the shortest story that leads there."""


class Work(enum.IntEnum):
    """A local step under way, such as a hook."""

    NOTICE = enum.auto()
    DRAIN = enum.auto()
    DEACTIVATE = enum.auto()
    DEHYDRATE = enum.auto()
    REACTIVATE = enum.auto()
    REHYDRATE = enum.auto()
    ACTIVATE = enum.auto()


class Ask(msgspec.Struct, frozen=True, cache_hash=True, gc=False):
    """One request to the directory: a compare-and-set, or the removal of a dead silo's row."""

    owner: SiloAddress
    expected: Entry | None = None
    new: Entry | None = None
    answer: Entry | None = None
    carried_out: bool = False
    move: int = 1

    @property
    def name(self) -> str:
        return "sweep" if self.new is None else "compare-and-set"


class Stage(enum.IntEnum):
    """Where the call stands."""

    UNSENT = enum.auto()
    SEEKING = enum.auto()
    """Some silo looks for the grain."""
    TRAVELLING = enum.auto()
    FORWARDED = enum.auto()
    """On the link from the source to the target."""
    QUEUED = enum.auto()
    RUNNING = enum.auto()
    ENDED = enum.auto()


class Call(msgspec.Struct, frozen=True, cache_hash=True, gc=False):
    """The call, and how often it has been begun."""

    stage: Stage = Stage.UNSENT
    at: SiloAddress | None = None
    runs: int = 0
    answer: str = ""
    caller_gone: bool = False


class Bounds(msgspec.Struct, frozen=True, cache_hash=True, gc=False):
    """How often each fault may happen in one story, and whether a call is made in it."""

    crashes: int = 0
    """Of the source or the target."""
    verdicts: int = 0
    """The source or the target is declared dead while it stands still, and goes on before it hears of that."""
    link_losses: int = 0
    answer_losses: int = 0
    """The directory's answer is lost, after its write or before the next."""
    failures: int = 0
    """The directory fails source or target for good, in a way that nobody foresaw, before its write or after."""
    sweeps: int = 0
    """The row of a dead silo is removed."""
    caller_crashes: int = 0
    retargets: int = 0
    calls: int = 0
    moves: int = 0
    """How often the grain is moved again after a move that was taken back."""


class World(msgspec.Struct, frozen=True, cache_hash=True, gc=False):
    """One state of everything. A core is held as its fields; None is one that is not there, yet or any more."""

    source: tuple[Any, ...] | None
    target: tuple[Any, ...] | None = None
    move: int = 1
    """Which move the source is at, or was at last; and the target."""
    target_move: int = 0
    row: Entry | None = OFFERED
    epoch: int = 1
    """The counter of the directory's bucket."""
    serving: frozenset[SiloAddress] = frozenset({SOURCE})
    """Who would start turns."""
    hosting: frozenset[SiloAddress] = frozenset({SOURCE})
    """Who has an activation to queue calls at."""
    has_state: frozenset[SiloAddress] = frozenset({SOURCE})
    """Who has the grain's state in memory."""
    crashed: frozenset[SiloAddress] = frozenset()
    """Who is dead, as far as the membership goes."""
    fenced: frozenset[SiloAddress] = frozenset()
    """Who is dead and does not know it: it starts no turn and asks the directory nothing, and may still speak."""
    work: tuple[tuple[SiloAddress, Work], ...] = ()
    asks: tuple[Ask, ...] = ()
    to_target: tuple[Sent, ...] = ()
    to_source: tuple[Sent, ...] = ()
    late_to_target: tuple[Sent, ...] = ()
    late_to_source: tuple[Sent, ...] = ()
    """On their way on the link that is lost: they may arrive until that is noticed."""
    limbo: tuple[Sent, ...] = ()
    """What the target said on a link whose loss it has not noticed yet."""
    said: tuple[Sent, ...] = ()
    """What it said on the present link, and was delivered: it may not know that."""
    unnoticed_loss: frozenset[SiloAddress] = frozenset()
    unnoticed_death: frozenset[SiloAddress] = frozenset()
    """Who has yet to learn that the other one is dead."""
    knows_death: frozenset[SiloAddress] = frozenset()
    call: Call = Call()
    left: Bounds = Bounds()
    opened_there: bool = False
    """Whether the target has opened in the present move."""
    taken_over: bool = False
    """Whether the third silo has taken the grain over."""
    has_failed: bool = False
    """Whether the directory has failed somebody for good."""
    has_faults: bool = False
    """Whether a silo has crashed or a link been lost: a call may be told of it then."""

    def with_(self, **changes: Any) -> World:
        return msgspec.structs.replace(self, **changes)


SOURCE_ENTRY, SOURCE_SUCCESSOR, SOURCE_PHASE = 0, 1, 2
TARGET_ACTIVATION, TARGET_OFFERED, TARGET_PHASE, TARGET_ENTRY = 1, 2, 3, 4
"""Where these fields of the cores stand."""


def carry_out(ask: Ask, row: Entry | None, epoch: int) -> tuple[Entry | None, int]:
    """What the directory does with a request: the row afterwards, and the bucket's counter."""
    if row != ask.expected:
        return row, epoch
    if ask.new is None:
        return None, epoch
    return Entry(ask.new.grain, ask.new.silo, ask.new.activation, epoch + 1), epoch + 1


def check(world: World) -> None:
    """What holds at every moment."""
    if len(world.serving) > 1:
        raise Violation("two activations may start turns")
    for silo in world.serving:
        entry = _entry_of(world, silo)
        if world.row is None or world.row != entry:
            raise Violation(f"{silo} is open under {entry}, and the directory says {world.row}")
        if silo not in world.has_state:
            raise Violation(f"{silo} is open without the grain's state")
    if world.call.runs > 1:
        raise Violation("the call ran twice")
    is_unknown = world.row is not None and world.row.silo == TARGET and not world.hosting | world.crashed >= {TARGET}
    if is_unknown and not world.has_failed:
        raise Violation("the target is named by the directory, and knows nothing of the grain")
    if any(ask.name == "sweep" and ask.owner != THIRD for ask in world.asks):
        raise Violation("a move deletes the row")
    if THIRD in world.serving and not world.crashed and not world.has_failed:
        raise Violation("the grain starts without its state, and nobody has crashed")


def _entry_of(world: World, silo: SiloAddress) -> Entry | None:
    if silo == THIRD:
        return world.row if world.row is not None and world.row.silo == THIRD else None
    fields, at = (world.source, SOURCE_ENTRY) if silo == SOURCE else (world.target, TARGET_ENTRY)
    entry: Entry | None = fields[at] if fields is not None else None
    return entry


def check_end(world: World) -> None:
    """What holds when nothing more must happen."""
    if world.source is not None and world.source[SOURCE_PHASE] is not SourcePhase.DONE:
        raise Violation(f"the source waits for ever, {world.source[SOURCE_PHASE].value}")
    if world.target is not None and world.target[TARGET_PHASE] is not TargetPhase.DONE:
        raise Violation(f"the target waits for ever, {world.target[TARGET_PHASE].value}")
    call = world.call
    if call.stage not in (Stage.UNSENT, Stage.ENDED):
        raise Violation(f"the call is lost, {call.stage.name.lower()}")
    if call.stage is Stage.ENDED and call.answer != "value" and not world.has_faults and not call.caller_gone:
        raise Violation(f"the call ended as {call.answer}, though nothing has crashed and no link was lost")
    if world.serving or world.has_failed:
        return  # the next call to one who is named, and has nothing, replaces the row
    if not world.crashed:
        raise Violation(f"nobody crashed, and nobody has the grain; the directory says {world.row}")
    if world.row is None or world.row.silo in world.crashed:
        return  # the next call takes it over
    if TARGET in world.crashed and world.row.silo == SOURCE and world.source is not None:
        return  # given back with the target's last breath, when the source had let go: the next call replaces it
    raise Violation(f"a living silo is named by {world.row}, and does not serve the grain")
