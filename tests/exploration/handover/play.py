"""The rules by which a world goes on: what the shells do with the orders of the cores, and all that can happen to them.

The cores are the product's own. `steps` names every step that may come next: what must happen some time, such as an
answer that is on its way, and what merely may, such as a crash.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import msgspec

from silo.directory.addresses import Entry, SiloAddress
from silo.migration import handover as h
from silo.migration.handover import Source, SourcePhase, Target, TargetPhase
from tests.exploration.handover.calls import (
    call_steps,
    crashed_with,
    cut_off,
    forwarded,
    sought_again,
    without_caller,
)
from tests.exploration.handover.world import (
    BECAUSE,
    FRESH,
    GRAIN,
    NEW,
    NEXT,
    OFFERED,
    OLD,
    SOURCE,
    SOURCE_ENTRY,
    SOURCE_PHASE,
    SOURCE_SUCCESSOR,
    TARGET,
    TARGET_ACTIVATION,
    TARGET_ENTRY,
    TARGET_OFFERED,
    THIRD,
    Ask,
    Bounds,
    Sent,
    Stage,
    Violation,
    Word,
    Work,
    World,
    carry_out,
)

Step: TypeAlias = tuple[str, bool, World]
"""What happens, whether it must some time, and what comes of it."""

PAIRS = ((SOURCE, TARGET), (TARGET, SOURCE))
PATIENT = (SourcePhase.ASKING, SourcePhase.DRAINING, SourcePhase.OFFERED)
"""The phases that a timer ends."""
RESULTS: dict[Work, tuple[h.Event, ...]] = {
    Work.DRAIN: (h.Drained(), h.Failed(BECAUSE)),
    Work.DEACTIVATE: (h.Deactivated(), h.Failed(BECAUSE)),
    Work.DEHYDRATE: (h.Dehydrated(b"state"), h.Failed(BECAUSE)),
    Work.REHYDRATE: (h.Rehydrated(), h.Failed(BECAUSE)),
    Work.ACTIVATE: (h.Activated(), h.Failed(BECAUSE)),
}


def values_of(core: Source | Target) -> tuple[Any, ...]:
    return msgspec.structs.astuple(core)


class Play:
    """The rules. `source` and `target` are the classes of the cores: faulty ones can be played, too.

    Args:
        says_again: whether a target says its last words again when the link is lost.
    """

    def __init__(
        self,
        source: type[Source] = Source,
        target: type[Target] = Target,
        *,
        says_again: bool = True,
    ) -> None:
        self._source_class = source
        self._target_class = target
        self._says_again = says_again
        self.cells: set[tuple[SourcePhase | TargetPhase, str]] = set()
        """Which events the cores were told of, in which phases."""

    def begin(self, bounds: Bounds) -> World:
        core = self._source_class(OFFERED, NEW)
        orders = core.start()
        return self._obey_source(World(values_of(core), left=bounds), orders)

    # ------------------------------------------------------------------------------------------- what the shells do

    def on_source(self, world: World, event: h.Event) -> World:
        if world.source is None:
            return world
        core = self._source_class(*world.source)
        self.cells.add((core.phase, type(event).__name__))
        orders = core.on(event)
        return self._obey_source(world.with_(source=values_of(core)), orders)

    def _on_target(self, world: World, event: h.Event) -> World:
        if world.target is None:
            return world
        core = self._target_class(*world.target)
        self.cells.add((core.phase, type(event).__name__))
        orders = core.on(event)
        return self._obey_target(world.with_(target=values_of(core)), orders)

    def _obey_source(self, world: World, orders: list[h.Order]) -> World:
        for order in orders:
            match order:
                case h.SendAsk() | h.SendWithdraw() | h.SendOffer():
                    world = self._send(world, SOURCE, order)
                case h.Drain():
                    world = self._begin(world, SOURCE, Work.NOTICE)
                case h.Deactivate():
                    world = self._begin(world, SOURCE, Work.DEACTIVATE)
                case h.Dehydrate():
                    world = self._begin(world, SOURCE, Work.DEHYDRATE)
                case h.Fence(expected):
                    mine = Entry(GRAIN, SOURCE, OLD, 0)
                    world = ask_directory(world, Ask(SOURCE, expected, mine, move=world.move))
                case h.Resume(reactivate):
                    world = world.with_(hosting=world.hosting | {SOURCE})
                    world = self._begin(world, SOURCE, Work.REACTIVATE) if reactivate else opened(world, SOURCE)
                case h.Forward():
                    world = forwarded(world.with_(hosting=world.hosting - {SOURCE}))
                case h.Release():
                    if not world.opened_there:
                        raise Violation("the source lets its state go, and the target has not opened")
                    world = world.with_(has_state=world.has_state - {SOURCE})
                case h.Discard():
                    if not (world.taken_over or world.has_failed or SOURCE in world.fenced):
                        raise Violation("the source lets its state go, and nobody else has the grain")
                    gone = world.with_(hosting=world.hosting - {SOURCE}, has_state=world.has_state - {SOURCE})
                    world = sought_again(gone, SOURCE)
                case h.Finish():
                    pass
                case _:
                    raise Violation(f"the source ordered {order}")
        return world

    def _obey_target(self, world: World, orders: list[h.Order]) -> World:
        for order in orders:
            match order:
                case h.Rehydrate():
                    world = self._begin(world, TARGET, Work.REHYDRATE)
                case h.Register():
                    assert world.target is not None
                    offered: Entry = world.target[TARGET_OFFERED]
                    mine = Entry(GRAIN, TARGET, world.target[TARGET_ACTIVATION], 0)
                    world = ask_directory(world, Ask(TARGET, offered, mine))
                case h.SendOfferAnswer() | h.SendOpened():
                    world = self._send(world, TARGET, order)
                case h.Activate():
                    world = self._begin(world, TARGET, Work.ACTIVATE)
                case h.Open():
                    world = opened(world, TARGET)
                    world = world.with_(opened_there=TARGET in world.serving)
                case h.GiveBack():
                    assert world.target is not None
                    entry: Entry = world.target[TARGET_ENTRY]
                    world = ask_directory(world, Ask(TARGET, entry, Entry(GRAIN, SOURCE, OLD, 0)))
                case h.Discard():
                    gone = world.with_(hosting=world.hosting - {TARGET}, has_state=world.has_state - {TARGET})
                    world = sought_again(gone, TARGET)
                case _:
                    raise Violation(f"the target ordered {order}")
        return world

    @staticmethod
    def _begin(world: World, silo: SiloAddress, work: Work) -> World:
        return world.with_(work=(*world.work, (silo, work)))

    def _send(self, world: World, sender: SiloAddress, word: Word, move: int = 0) -> World:
        if sender == TARGET:
            return self._put(world, TARGET, Sent(move or world.target_move, word))
        assert world.source is not None
        if isinstance(word, h.SendOffer):
            offer = Sent(world.move, word, world.source[SOURCE_ENTRY], world.source[SOURCE_SUCCESSOR])
            return self._put(world, SOURCE, offer)
        return self._put(world, SOURCE, Sent(world.move, word))

    @staticmethod
    def _put(world: World, sender: SiloAddress, message: Sent) -> World:
        if world.knows_death:
            return world  # nothing is sent to the dead, and nothing taken from them
        if sender == SOURCE:
            is_lost = SOURCE in world.unnoticed_loss or TARGET in world.crashed
            return world if is_lost else world.with_(to_target=(*world.to_target, message))
        if TARGET in world.unnoticed_loss:
            return world.with_(limbo=(*world.limbo, message))
        return world if SOURCE in world.crashed else world.with_(to_source=(*world.to_source, message))

    # ------------------------------------------------------------------------------------------------- what happens

    def steps(self, world: World) -> Iterator[Step]:
        yield from self._time_passes(world)
        yield from self._work_ends(world)
        yield from self._messages_arrive(world)
        yield from self._directory_acts(world)
        yield from call_steps(world, self._found)
        yield from self._losses_are_noticed(world)
        yield from self._faults(world)
        yield from self._moves_again(world)

    def _time_passes(self, world: World) -> Iterator[Step]:
        if world.source is not None and world.source[SOURCE_PHASE] in PATIENT:
            yield "the source's patience ends", True, self.on_source(world, h.TimedOut(BECAUSE))

    def _work_ends(self, world: World) -> Iterator[Step]:
        for index, (silo, work) in enumerate(world.work):
            rest = world.with_(work=world.work[:index] + world.work[index + 1 :])
            match work:
                case Work.NOTICE:
                    yield "the notice has been given", True, self._held(rest)
                case Work.REACTIVATE:
                    yield "the source has activated it again", True, opened(rest, SOURCE)
                case Work.DRAIN if world.call.stage is Stage.RUNNING and world.call.at == SOURCE:
                    pass
                case Work.ACTIVATE if TARGET in world.fenced:
                    pass  # it opens, and says so, only while it has the right to start turns
                case _:
                    on = self.on_source if silo == SOURCE else self._on_target
                    for event in RESULTS[work]:
                        yield f"{work.name.lower()}: {type(event).__name__}", True, on(rest, event)

    def _held(self, world: World) -> World:
        if world.source is None or world.source[SOURCE_PHASE] is not SourcePhase.DRAINING:
            return world  # taken back meanwhile
        return self._begin(world.with_(serving=world.serving - {SOURCE}), SOURCE, Work.DRAIN)

    def _messages_arrive(self, world: World) -> Iterator[Step]:
        if TARGET not in world.crashed:
            if TARGET in world.unnoticed_loss:
                if world.late_to_target:
                    message, rest = world.late_to_target[0], world.with_(late_to_target=world.late_to_target[1:])
                    yield from self._at_target(rest, message, "arrives, by the link that is lost")
            elif world.to_target:
                message, rest = world.to_target[0], world.with_(to_target=world.to_target[1:])
                yield from self._at_target(rest, message, "arrives")
        if SOURCE not in world.crashed:
            if SOURCE in world.unnoticed_loss:
                if world.late_to_source:
                    message, rest = world.late_to_source[0], world.with_(late_to_source=world.late_to_source[1:])
                    what = f"{message.name} arrives, by the link that is lost"
                    yield what, False, self._at_source(rest, message)
            elif world.to_source:
                message, rest = world.to_source[0], world.with_(to_source=world.to_source[1:])
                if message.is_last_word:
                    rest = rest.with_(said=(*rest.said, message))
                yield f"{message.name} arrives", True, self._at_source(rest, message)

    def _at_target(self, world: World, message: Sent, how: str) -> Iterator[Step]:
        must = how == "arrives"
        is_refused = TARGET in world.hosting  # it has the grain, or an earlier move of it
        match message.word:
            case h.SendAsk():
                for refused in (BECAUSE,) if is_refused else ("", BECAUSE):
                    answered = self._send(world, TARGET, h.AskAnswered(refused), message.move)
                    yield f"{message.name} {how}, and is {'refused' if refused else 'granted'}", must, answered
            case h.SendOffer() if is_refused:
                answered = self._send(world, TARGET, h.SendOfferAnswer(None, BECAUSE), message.move)
                yield f"{message.name} {how}, and is refused", must, answered
            case h.SendOffer():
                assert message.entry is not None
                core = self._target_class(TARGET, message.successor, message.entry)
                orders = core.start()
                world = world.with_(
                    target=values_of(core),
                    target_move=message.move,
                    has_state=world.has_state | {TARGET},
                    hosting=world.hosting | {TARGET},
                    work=tuple(each for each in world.work if each[0] != TARGET),  # an earlier arrival is over
                )
                yield f"{message.name} {how}", must, self._obey_target(world, orders)
            case _ if message.move == world.target_move:
                yield f"{message.name} {how}", must, self._on_target(world, h.Withdrawn())
            case _:
                yield f"{message.name} {how}, and is of no move here", must, world

    def _at_source(self, world: World, message: Sent) -> World:
        if message.move != world.move:
            return world
        match message.word:
            case h.SendOfferAnswer(entry, refused, lost):
                return self.on_source(world, h.OfferAnswered(entry, refused and BECAUSE, lost))
            case h.SendOpened(failed, entry):
                return self.on_source(world, h.TargetOpened(failed, entry))
            case h.AskAnswered(refused):
                return self.on_source(world, h.AskAnswered(refused))
            case _:
                raise Violation(f"the target said {message}")

    def _directory_acts(self, world: World) -> Iterator[Step]:
        for index, ask in enumerate(world.asks):
            rest = world.with_(asks=world.asks[:index] + world.asks[index + 1 :])
            if ask.carried_out:
                yield f"the directory answers {ask.owner.endpoint}", True, self._answered(rest, ask)
                if world.left.answer_losses:
                    left = msgspec.structs.replace(world.left, answer_losses=world.left.answer_losses - 1)
                    again = msgspec.structs.replace(ask, carried_out=False, answer=None)
                    lost = rest.with_(asks=(*rest.asks, again), left=left)
                    yield f"the directory's answer to {ask.owner.endpoint} is lost, and it asks again", False, lost
                continue
            row, epoch = carry_out(ask, world.row, world.epoch)
            is_taken = row is not None and row.silo == THIRD
            done = rest.with_(row=row, epoch=epoch, taken_over=world.taken_over or is_taken)
            if ask.owner in world.crashed - world.fenced:
                yield f"the {ask.name} of {ask.owner.endpoint}, which is dead, arrives", True, done
                yield f"the {ask.name} of {ask.owner.endpoint}, which is dead, is lost", True, rest
            else:
                if world.left.failures and ask.owner != THIRD:
                    left = msgspec.structs.replace(world.left, failures=world.left.failures - 1)
                    for carried, what in ((rest, "before"), (done, "after")):
                        failing = carried.with_(left=left, has_failed=True)
                        yield (
                            f"the directory fails {ask.owner.endpoint} for good, {what} its write",
                            False,
                            self._told(failing, ask, h.Failed(BECAUSE)),
                        )
                asked = msgspec.structs.replace(ask, carried_out=True, answer=row)
                yield f"the {ask.name} of {ask.owner.endpoint} arrives", True, done.with_(asks=(*rest.asks, asked))
        if self._is_frozen(world):
            yield "a look from before the move is answered", False, self.on_source(world, h.Found(OFFERED))

    def _answered(self, world: World, ask: Ask) -> World:
        if ask.owner == THIRD:
            if ask.name == "sweep":
                return world
            if ask.answer is not None and ask.answer.activation == FRESH:
                world = world.with_(
                    serving=world.serving | {THIRD},
                    hosting=world.hosting | {THIRD},
                    has_state=world.has_state | {THIRD},
                )
            return world
        if ask.owner == SOURCE and ask.answer is None and SOURCE in world.unnoticed_death:
            world = self._source_hears_of_death(world)  # it reads the table: whoever swept the row has it from there
        return self._told(world, ask, h.Registered(ask.answer))

    def _told(self, world: World, ask: Ask, event: h.Event) -> World:
        if ask.owner == TARGET:
            return self._on_target(world, event)
        return self.on_source(world, event) if ask.move == world.move else world

    def _found(self, world: World) -> World:
        """A call has found that the directory names the source again, whose instance is frozen."""
        return self.on_source(world, h.Found(world.row)) if self._is_frozen(world) else world

    @staticmethod
    def _is_frozen(world: World) -> bool:
        phases = (SourcePhase.MOVED, SourcePhase.PARTING)
        return world.source is not None and world.source[SOURCE_PHASE] in phases and SOURCE not in world.hosting

    def _losses_are_noticed(self, world: World) -> Iterator[Step]:
        if SOURCE in world.unnoticed_loss:
            rest = world.with_(unnoticed_loss=world.unnoticed_loss - {SOURCE}, late_to_source=())
            yield "the source notices the loss of the link", True, self.on_source(rest, h.PeerLost(BECAUSE))
        if TARGET in world.unnoticed_loss:
            rest = world.with_(unnoticed_loss=world.unnoticed_loss - {TARGET}, late_to_target=(), limbo=(), said=())
            unheard = tuple(each for each in world.limbo if each.is_last_word)
            for again in {unheard, (*world.said, *unheard)} if self._says_again else {()}:
                told = rest
                for word in again:
                    told = self._put(told, TARGET, word)
                what = f"the target notices the loss of the link, and says {[each.name for each in again]} again"
                yield what, True, self._on_target(told, h.PeerLost(BECAUSE))
        for silo, other in PAIRS:
            if silo in world.fenced:
                yield f"the {silo.endpoint} hears that it was declared dead", True, crash(world, silo, other)
        for silo in world.unnoticed_death:
            if silo == SOURCE:
                yield "the source hears that the target is dead", True, self._source_hears_of_death(world)
            else:
                rest = world.with_(
                    unnoticed_death=world.unnoticed_death - {TARGET}, knows_death=world.knows_death | {TARGET}
                )
                rest = rest.with_(
                    to_target=(), late_to_target=(), limbo=(), said=(), unnoticed_loss=rest.unnoticed_loss - {TARGET}
                )
                yield "the target hears that the source is dead", True, self._on_target(rest, h.PeerDied(BECAUSE))

    def _source_hears_of_death(self, world: World) -> World:
        rest = world.with_(
            unnoticed_death=world.unnoticed_death - {SOURCE},
            knows_death=world.knows_death | {SOURCE},
            to_source=(),
            late_to_source=(),
            unnoticed_loss=world.unnoticed_loss - {SOURCE},
        )
        return self.on_source(rest, h.PeerDied(BECAUSE))

    def _moves_again(self, world: World) -> Iterator[Step]:
        if not (world.left.moves and SOURCE in world.serving and world.source is not None):
            return
        if world.source[SOURCE_PHASE] is not SourcePhase.DONE:
            return
        move = world.move + 1
        core = self._source_class(world.source[SOURCE_ENTRY], NEXT[move])
        orders = core.start()
        begun = world.with_(
            source=values_of(core),
            move=move,
            opened_there=False,
            work=tuple(
                each for each in world.work if each[0] != SOURCE
            ),  # what an earlier move waited for it waits alone
            left=msgspec.structs.replace(world.left, moves=world.left.moves - 1),
        )
        yield "the grain is moved once more", False, self._obey_source(begun, orders)

    # ------------------------------------------------------------------------------------------------------- faults

    def _faults(self, world: World) -> Iterator[Step]:
        left = world.left
        if left.link_losses and not world.unnoticed_loss and not world.crashed:
            fewer = msgspec.structs.replace(left, link_losses=left.link_losses - 1)
            lost = cut(world).with_(unnoticed_loss=frozenset({SOURCE, TARGET}), left=fewer, has_faults=True)
            yield "the link is lost", False, lost
        if left.crashes:
            fewer = msgspec.structs.replace(left, crashes=left.crashes - 1)
            for silo, other in PAIRS:
                if silo not in world.crashed:
                    yield (
                        f"the {silo.endpoint} crashes",
                        False,
                        crash(world, silo, other).with_(left=fewer, has_faults=True),
                    )
        if left.verdicts and not world.crashed:
            fewer = msgspec.structs.replace(left, verdicts=left.verdicts - 1)
            for silo, other in PAIRS:
                stood_still = world.with_(
                    serving=world.serving - {silo},
                    crashed=frozenset({silo}),
                    fenced=frozenset({silo}),
                    unnoticed_death=frozenset({other}),
                    left=fewer,
                    has_faults=True,
                )
                yield f"the {silo.endpoint} is declared dead, and goes on", False, stood_still
        if left.caller_crashes and world.call.stage is not Stage.ENDED:
            fewer = msgspec.structs.replace(left, caller_crashes=left.caller_crashes - 1)
            yield "the caller crashes", False, without_caller(world).with_(left=fewer)
        is_dead_row = world.row is not None and world.row.silo in world.crashed
        if left.sweeps and is_dead_row and not any(ask.owner == THIRD for ask in world.asks):
            fewer = msgspec.structs.replace(left, sweeps=left.sweeps - 1)
            yield (
                "the row of the dead is swept",
                False,
                world.with_(asks=(*world.asks, Ask(THIRD, world.row)), left=fewer),
            )
        if left.retargets and world.source is not None and world.source[SOURCE_PHASE] in PATIENT[:2]:
            fewer = msgspec.structs.replace(left, retargets=left.retargets - 1)
            forgotten = world.with_(
                to_target=tuple(each for each in world.to_target if not isinstance(each.word, h.SendAsk)),
                to_source=tuple(each for each in world.to_source if not isinstance(each.word, h.AskAnswered)),
                late_to_target=(),
                late_to_source=(),
                left=fewer,
            )
            yield "the move is given another target", False, self.on_source(forgotten, h.Retargeted())


def ask_directory(world: World, ask: Ask) -> World:
    return world if ask.owner in world.fenced else world.with_(asks=(*world.asks, ask))


def opened(world: World, silo: SiloAddress) -> World:
    return world if silo in world.fenced else world.with_(serving=world.serving | {silo})


def cut(world: World) -> World:
    """What is under way on the link may still arrive, until the loss is noticed; the target knows what it has said."""
    return cut_off(world).with_(
        to_target=(),
        to_source=(),
        late_to_target=(*world.late_to_target, *world.to_target),
        late_to_source=(*world.late_to_source, *world.to_source),
        limbo=(*world.limbo, *world.to_source),
    )


def crash(world: World, silo: SiloAddress, other: SiloAddress) -> World:
    """A silo is gone, with all that it held; what it has sent may still arrive."""
    gone = crashed_with(cut(world), silo)
    gone = gone.with_(
        serving=world.serving - {silo},
        hosting=world.hosting - {silo},
        has_state=world.has_state - {silo},
        crashed=world.crashed | {silo},
        fenced=world.fenced - {silo},
        work=tuple(each for each in world.work if each[0] != silo),
        asks=tuple(each for each in world.asks if each.owner != silo or not each.carried_out),
        unnoticed_loss=frozenset({other}) - world.crashed - world.knows_death,
        unnoticed_death=frozenset({other}) - world.crashed - world.knows_death,
    )
    if silo == SOURCE:
        return gone.with_(source=None, late_to_source=())
    return gone.with_(target=None, late_to_target=(), limbo=(), said=())
