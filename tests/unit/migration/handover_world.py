"""Everything that can happen to one handover, explored whole: two silos, a link, a directory, and their mishaps.

A state holds both cores and their surroundings as values. `steps` names every step that may come next: what must happen
some time, such as an answer that is on its way, and what merely may, such as a crash. `explore` walks all states that
can be reached.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeAlias

from silo.directory.addresses import Entry, GrainId, SiloAddress
from silo.migration import handover as h
from silo.migration.handover import Source, SourcePhase, Target, TargetPhase

GRAIN = GrainId("room", "lobby")
SOURCE, TARGET = SiloAddress("source:1", 1), SiloAddress("target:1", 2)
OLD, NEW = "old", "new"
"""The ids of the two activations."""
OFFERED = Entry(GRAIN, SOURCE, OLD, 1)

Message: TypeAlias = h.SendAsk | h.SendOffer | h.SendWithdraw | h.AskAnswered | h.SendOfferAnswer | h.SendOpened
LAST_WORDS = (h.SendOfferAnswer, h.SendOpened)
"""What a target says again when its link is lost."""


class Violation(AssertionError):
    """A promise is broken; the message tells the story that led there."""


@dataclass(frozen=True)
class Ask:
    """One request to the directory: a compare-and-set, the removal of a row, or a look."""

    owner: SiloAddress
    kind: str
    expected: Entry | None = None
    new: Entry | None = None
    answer: Entry | None = None
    carried_out: bool = False


@dataclass(frozen=True)
class Bounds:
    """How often each fault may happen in one story."""

    crashes: int = 1
    link_losses: int = 1
    answer_losses: int = 1


@dataclass(frozen=True)
class World:
    """One state of everything. A core of None is one that does not exist: not yet, or no more."""

    source: Source | None
    target: Target | None = None
    row: Entry | None = OFFERED
    epoch: int = 1
    serving: frozenset[SiloAddress] = frozenset({SOURCE})
    """Who would start turns."""
    has_state: frozenset[SiloAddress] = frozenset({SOURCE})
    """Who has the grain's state in memory."""
    crashed: frozenset[SiloAddress] = frozenset()
    work: tuple[tuple[SiloAddress, str], ...] = ()
    """Local steps under way, such as hooks."""
    asks: tuple[Ask, ...] = ()
    to_target: tuple[Message, ...] = ()
    to_source: tuple[Message, ...] = ()
    limbo: tuple[Message, ...] = ()
    """What the target said on a link whose loss it has not noticed yet."""
    said: tuple[Message, ...] = ()
    """What it said on the present link, and was delivered: it may not know that."""
    unnoticed_loss: frozenset[SiloAddress] = frozenset()
    unnoticed_death: frozenset[SiloAddress] = frozenset()
    """Who has yet to learn that the other one is dead."""
    knows_death: frozenset[SiloAddress] = frozenset()
    left: Bounds = field(default_factory=Bounds)

    def key(self) -> tuple[Any, ...]:
        return tuple(frozen_core(getattr(self, each.name)) for each in fields(self))


def frozen_core(value: Any) -> Any:
    if isinstance(value, (Source, Target)):
        return tuple(getattr(value, each.name) for each in fields(value))
    return value


Step: TypeAlias = tuple[str, bool, World]
"""What happens, whether it must some time, and what comes of it."""


class Play:
    """The rules by which a world goes on. `source` and `target` make the cores: faulty ones can be played, too."""

    def __init__(
        self,
        source: Callable[[], Source] = lambda: Source(OFFERED, NEW),
        target: Callable[[], Target] = lambda: Target(TARGET, NEW, OFFERED),
        *,
        says_again: bool = True,
        bounds: Bounds | None = None,
    ) -> None:
        self._new_source = source
        self._new_target = target
        self._says_again = says_again
        self._bounds = bounds or Bounds()

    def begin(self) -> World:
        source = self._new_source()
        return self._obey_source(World(source, left=self._bounds), source.start())

    # What the shells do

    def _on_source(self, world: World, event: h.Event) -> World:
        if world.source is None:
            return world
        core = copy.copy(world.source)
        orders = core.on(event)
        return self._obey_source(replace(world, source=core), orders)

    def _on_target(self, world: World, event: h.Event) -> World:
        if world.target is None:
            return world
        core = copy.copy(world.target)
        orders = core.on(event)
        return self._obey_target(replace(world, target=core), orders)

    def _obey_source(self, world: World, orders: list[h.Order]) -> World:
        for order in orders:
            match order:
                case h.SendAsk() | h.SendWithdraw() | h.SendOffer():
                    world = self._send(world, SOURCE, order)
                case h.Drain():
                    world = replace(world, work=(*world.work, (SOURCE, "drain")), serving=world.serving - {SOURCE})
                case h.Deactivate():
                    world = replace(world, work=(*world.work, (SOURCE, "deactivate")))
                case h.Dehydrate():
                    world = replace(world, work=(*world.work, (SOURCE, "dehydrate")))
                case h.Fence(expected):
                    mine = Entry(GRAIN, SOURCE, OLD, 0)
                    world = replace(world, asks=(*world.asks, Ask(SOURCE, "register", expected, mine)))
                case h.Look():
                    world = replace(world, asks=(*world.asks, Ask(SOURCE, "look")))
                case h.Resume():
                    world = replace(world, serving=world.serving | {SOURCE})
                case h.Release() | h.Discard():
                    world = replace(world, has_state=world.has_state - {SOURCE})
                case h.Forward() | h.Finish():
                    pass
                case _:
                    raise Violation(f"the source ordered {order}")
        return world

    def _obey_target(self, world: World, orders: list[h.Order]) -> World:
        core = world.target
        assert core is not None
        for order in orders:
            match order:
                case h.Rehydrate():
                    world = replace(world, work=(*world.work, (TARGET, "rehydrate")))
                case h.Register():
                    mine = Entry(GRAIN, TARGET, NEW, 0)
                    world = replace(world, asks=(*world.asks, Ask(TARGET, "register", OFFERED, mine)))
                case h.SendOfferAnswer() | h.SendOpened():
                    world = self._send(world, TARGET, order)
                case h.Activate():
                    world = replace(world, work=(*world.work, (TARGET, "activate")))
                case h.Open():
                    world = replace(world, serving=world.serving | {TARGET})
                case h.GiveBack() if TARGET in world.knows_death:
                    world = replace(world, asks=(*world.asks, Ask(TARGET, "unregister", core.entry)))
                case h.GiveBack():
                    back = Entry(GRAIN, SOURCE, OLD, 0)
                    world = replace(world, asks=(*world.asks, Ask(TARGET, "register", core.entry, back)))
                case h.Discard():
                    world = replace(world, has_state=world.has_state - {TARGET})
                case _:
                    raise Violation(f"the target ordered {order}")
        return world

    @staticmethod
    def _send(world: World, sender: SiloAddress, message: Message) -> World:
        if sender == SOURCE:
            is_lost = SOURCE in world.unnoticed_loss or TARGET in world.crashed
            return world if is_lost else replace(world, to_target=(*world.to_target, message))
        if TARGET in world.unnoticed_loss:
            return replace(world, limbo=(*world.limbo, message))
        return world if SOURCE in world.crashed else replace(world, to_source=(*world.to_source, message))

    # What happens

    def steps(self, world: World) -> Iterator[Step]:
        yield from self._time_passes(world)
        yield from self._work_ends(world)
        yield from self._messages_arrive(world)
        yield from self._directory_acts(world)
        yield from self._losses_are_noticed(world)
        yield from self._faults(world)

    def _time_passes(self, world: World) -> Iterator[Step]:
        if world.source is not None and world.source.phase in (
            SourcePhase.ASKING,
            SourcePhase.DRAINING,
            SourcePhase.OFFERED,
        ):
            yield "the source's patience ends", True, self._on_source(world, h.TimedOut("late"))

    def _work_ends(self, world: World) -> Iterator[Step]:
        results: dict[str, tuple[h.Event, ...]] = {
            "drain": (h.Drained(),),
            "deactivate": (h.Deactivated(),),
            "dehydrate": (h.Dehydrated(b"state"), h.Failed("a participant raised")),
            "rehydrate": (h.Rehydrated(), h.Failed("the payload does not decode")),
            "activate": (h.Activated(), h.Failed("on_activate raised")),
        }
        for index, (silo, what) in enumerate(world.work):
            rest = replace(world, work=world.work[:index] + world.work[index + 1 :])
            for event in results[what]:
                on = self._on_source if silo == SOURCE else self._on_target
                yield f"{what}: {event}", True, on(rest, event)

    def _messages_arrive(self, world: World) -> Iterator[Step]:
        if world.to_target and TARGET not in world.unnoticed_loss:
            message, rest = world.to_target[0], replace(world, to_target=world.to_target[1:])
            yield f"{message} arrives", True, self._at_target(rest, message)
        if world.to_source and SOURCE not in world.unnoticed_loss:
            message, rest = world.to_source[0], replace(world, to_source=world.to_source[1:])
            rest = replace(rest, said=(*rest.said, message))
            yield f"{message} arrives", True, self._at_source(rest, message)

    def _at_target(self, world: World, message: Message) -> World:
        match message:
            case h.SendAsk():
                return self._send(world, TARGET, h.AskAnswered(""))
            case h.SendOffer():
                core = self._new_target()
                world = replace(world, target=core, has_state=world.has_state | {TARGET})
                return self._obey_target(world, core.start())
            case _:
                return self._on_target(world, h.Withdrawn())

    def _at_source(self, world: World, message: Message) -> World:
        match message:
            case h.SendOfferAnswer(entry, refused, lost):
                return self._on_source(world, h.OfferAnswered(entry, refused, lost))
            case h.SendOpened(failed, entry):
                return self._on_source(world, h.TargetOpened(failed, entry))
            case h.AskAnswered():
                return self._on_source(world, message)
            case _:
                raise Violation(f"the target said {message}")

    def _directory_acts(self, world: World) -> Iterator[Step]:
        for index, ask in enumerate(world.asks):
            rest = replace(world, asks=world.asks[:index] + world.asks[index + 1 :])
            if ask.carried_out:
                event = h.Found(ask.answer) if ask.kind == "look" else h.Registered(ask.answer)
                on = self._on_source if ask.owner == SOURCE else self._on_target
                yield f"the directory answers: {event}", True, on(rest, event)
                if world.left.answer_losses:
                    left = replace(world.left, answer_losses=world.left.answer_losses - 1)
                    again = replace(ask, carried_out=False, answer=None)
                    yield "the directory's answer is lost", False, replace(rest, asks=(*rest.asks, again), left=left)
                continue
            row, epoch = carry_out(ask, world.row, world.epoch)
            done = replace(rest, row=row, epoch=epoch)
            if ask.owner in world.crashed:
                yield f"a dead silo's {ask.kind} arrives", True, done
                yield f"a dead silo's {ask.kind} does not arrive", True, rest
            else:
                answer = None if ask.kind == "unregister" else row
                carried_out = replace(ask, carried_out=True, answer=answer)
                yield f"{ask.owner} {ask.kind}s", True, replace(done, asks=(*rest.asks, carried_out))
        if self._is_frozen(world) and world.row is not None and world.row.activation == OLD and world.row.epoch > 2:
            yield "a call finds that it was given back", False, self._on_source(world, h.Found(world.row))
        if self._is_frozen(world):
            yield "a look from before the move is answered", False, self._on_source(world, h.Found(OFFERED))

    @staticmethod
    def _is_frozen(world: World) -> bool:
        return world.source is not None and world.source.phase is SourcePhase.MOVED

    def _losses_are_noticed(self, world: World) -> Iterator[Step]:
        for silo in world.unnoticed_loss:
            rest = replace(world, unnoticed_loss=world.unnoticed_loss - {silo})
            if silo == SOURCE:
                yield "the source notices the loss of the link", True, self._on_source(rest, h.PeerLost("lost"))
                continue
            rest = replace(rest, limbo=(), said=())
            words = [each for each in world.limbo if isinstance(each, LAST_WORDS)]
            heard = [each for each in world.said if isinstance(each, LAST_WORDS)]
            for again in {tuple(words), (*heard, *words)} if self._says_again else {()}:
                said = rest
                for word in again:
                    said = self._send(said, TARGET, word)
                yield f"the target notices it and says {again} again", True, self._on_target(said, h.PeerLost("lost"))
        for silo in world.unnoticed_death:
            rest = replace(
                world, unnoticed_death=world.unnoticed_death - {silo}, knows_death=world.knows_death | {silo}
            )
            on = self._on_source if silo == SOURCE else self._on_target
            yield f"{silo} hears that the other one is dead", True, on(rest, h.PeerDied("dead"))

    def _faults(self, world: World) -> Iterator[Step]:
        if world.left.link_losses and not world.unnoticed_loss and not world.crashed:
            left = replace(world.left, link_losses=world.left.link_losses - 1)
            yield (
                "the link is lost",
                False,
                replace(self._cut(world), unnoticed_loss=frozenset({SOURCE, TARGET}), left=left),
            )
        if not world.left.crashes:
            return
        left = replace(world.left, crashes=world.left.crashes - 1)
        for silo, other in ((SOURCE, TARGET), (TARGET, SOURCE)):
            gone = replace(
                self._cut(world),
                left=left,
                serving=world.serving - {silo},
                has_state=world.has_state - {silo},
                crashed=world.crashed | {silo},
                work=tuple(each for each in world.work if each[0] != silo),
                asks=tuple(each for each in world.asks if each.owner != silo or not each.carried_out),
                unnoticed_loss=frozenset({other}),
                unnoticed_death=frozenset({other}),
            )
            gone = replace(gone, source=None) if silo == SOURCE else replace(gone, target=None, limbo=(), said=())
            yield f"{silo} crashes", False, gone

    @staticmethod
    def _cut(world: World) -> World:
        """What was under way on the link is lost; the target keeps what it said."""
        return replace(world, to_target=(), to_source=(), limbo=(*world.limbo, *world.to_source))


def carry_out(ask: Ask, row: Entry | None, epoch: int) -> tuple[Entry | None, int]:
    """What the directory does with a request: the row afterwards, and the bucket's counter."""
    if ask.kind == "look" or row != ask.expected:
        return row, epoch
    if ask.new is None:
        return None, epoch
    return Entry(ask.new.grain, ask.new.silo, ask.new.activation, epoch + 1), epoch + 1


# What must hold


def check(world: World) -> None:
    """What holds at every moment."""
    if len(world.serving) > 1:
        raise Violation("two activations are open")
    for silo in world.serving:
        core = world.source if silo == SOURCE else world.target
        assert core is not None
        if world.row is None or world.row != core.entry:
            raise Violation(f"{silo} is open under {core.entry}, and the directory says {world.row}")
        if silo not in world.has_state:
            raise Violation(f"{silo} is open without the grain's state")


def check_end(world: World) -> None:
    """What holds when nothing more must happen."""
    if world.source is not None and world.source.phase is not SourcePhase.DONE:
        raise Violation(f"the source waits for ever, {world.source.phase.value}")
    if world.target is not None and world.target.phase is not TargetPhase.DONE:
        raise Violation(f"the target waits for ever, {world.target.phase.value}")
    if world.serving:
        return
    if not world.crashed:
        raise Violation(f"nobody crashed, and nobody has the grain; the directory says {world.row}")
    if world.row is None or world.row.silo in world.crashed:
        return  # the next call takes it over
    if TARGET in world.crashed and world.row.silo == SOURCE and world.source is not None:
        return  # given back with the target's last breath, when the source had let go: the next call replaces it
    raise Violation(f"a living silo is named by {world.row}, and does not serve the grain")


def explore(play: Play, *, states_max: int = 1_000_000) -> int:
    """Walk all states; how many there are. Raises Violation with the shortest story that breaks a promise."""
    first = play.begin()
    stories: dict[tuple[Any, ...], tuple[tuple[Any, ...] | None, str]] = {first.key(): (None, "begin")}
    ahead = deque([first])
    while ahead:
        world = ahead.popleft()
        key = world.key()
        is_end = True
        try:
            check(world)
            for what, must, after in play.steps(world):
                after_key = after.key()
                if must and after_key != key:
                    is_end = False
                if after_key not in stories:
                    stories[after_key] = (key, what)
                    ahead.append(after)
            if is_end:
                check_end(world)
        except Violation as violation:
            raise Violation(f"{violation}, after:\n{story_of(stories, key)}") from None
        if len(stories) > states_max:
            raise AssertionError(f"more than {states_max} states")
    return len(stories)


def story_of(stories: dict[tuple[Any, ...], tuple[tuple[Any, ...] | None, str]], key: tuple[Any, ...] | None) -> str:
    lines: list[str] = []
    while key is not None:
        key, what = stories[key]
        lines.append(f"  {what}")
    return "\n".join(reversed(lines))
