"""The way of the one call through a handover: queued, sent after its grain, run, and answered once."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from silo.directory.addresses import Entry, SiloAddress
from silo.migration.handover import SourcePhase
from tests.exploration.handover.world import (
    FRESH,
    GRAIN,
    SOURCE,
    SOURCE_PHASE,
    TARGET,
    THIRD,
    Ask,
    Call,
    Stage,
    World,
)

Step = tuple[str, bool, World]
Found = Callable[[World], World]


def with_call(world: World, stage: Stage, at: SiloAddress | None = None, answer: str = "") -> World:
    """The call stands there now; one whose caller has gone is dropped where it would wait or be sent on."""
    if world.call.caller_gone and stage is not Stage.RUNNING:
        stage, at, answer = Stage.ENDED, None, "dropped"
    return world.with_(call=Call(stage, at, world.call.runs, answer, world.call.caller_gone))


def sought_again(world: World, silo: SiloAddress) -> World:
    """The silo has no queue for the grain any more: what stood in it is sent on."""
    if world.call.stage is Stage.QUEUED and world.call.at == silo:
        return with_call(world, Stage.SEEKING)
    return world


def forwarded(world: World) -> World:
    """The source sends what it held after the grain."""
    if world.call.stage is Stage.QUEUED and world.call.at == SOURCE:
        return on_link(world)
    return world


def on_link(world: World) -> World:
    """The source sends the call to the target; on a link that is lost, and not known to be, it is lost too."""
    if SOURCE in world.knows_death:
        return with_call(world, Stage.SEEKING)
    if SOURCE in world.unnoticed_loss or TARGET in world.crashed:
        return with_call(world, Stage.ENDED, answer="unknown")
    return with_call(world, Stage.FORWARDED, TARGET)


def cut_off(world: World) -> World:
    """The link is lost: whoever sent the call by it does not know whether it arrived."""
    return with_call(world, Stage.ENDED, answer="unknown") if world.call.stage is Stage.FORWARDED else world


def crashed_with(world: World, silo: SiloAddress) -> World:
    """The silo has crashed: a call that was there, or on its way there, ends with it."""
    if world.call.at == silo:
        return with_call(world, Stage.ENDED, answer="unknown")
    return world


def without_caller(world: World) -> World:
    """The caller has crashed: what waits is taken out; what runs, or is on its way, goes on until that is noticed."""
    world = world.with_(call=msgspec.structs.replace(world.call, caller_gone=True))
    if world.call.stage in (Stage.UNSENT, Stage.SEEKING, Stage.QUEUED):
        return with_call(world, Stage.ENDED)
    return world


def call_steps(world: World, found: Found) -> Iterator[Step]:
    """What may come next for the call."""
    call = world.call
    match call.stage:
        case Stage.UNSENT if world.left.calls:
            world = world.with_(left=msgspec.structs.replace(world.left, calls=0))
            for silo in (SOURCE, TARGET):
                if silo not in world.crashed:
                    yield f"a call is sent to the {silo.endpoint}", False, with_call(world, Stage.TRAVELLING, silo)
            yield "a call is made, and the grain is looked for", False, with_call(world, Stage.SEEKING)
        case Stage.SEEKING:
            yield from _seeking(world)
        case Stage.TRAVELLING | Stage.FORWARDED:
            yield from _arriving(world, found)
        case Stage.QUEUED if call.at in world.serving:
            assert call.at is not None
            begun = world.with_(call=Call(Stage.RUNNING, call.at, call.runs + 1, "", call.caller_gone))
            yield f"the call begins at the {call.at.endpoint}", True, begun
        case Stage.RUNNING:
            yield "the call has run", True, with_call(world, Stage.ENDED, answer="value")
        case _:
            pass


def _seeking(world: World) -> Iterator[Step]:
    row = world.row
    if row is not None and row.silo == THIRD:
        if THIRD in world.hosting:
            yield "the call comes to the third silo", True, with_call(world, Stage.QUEUED, THIRD)
    elif row is None or row.silo in world.crashed:
        yield from taken_over(world, row)
    else:
        yield f"the call is sent to the {row.silo.endpoint}", True, with_call(world, Stage.TRAVELLING, row.silo)


def taken_over(world: World, row: Entry | None) -> Iterator[Step]:
    """A third silo begins to activate the grain, without its state."""
    if not any(ask.owner == THIRD for ask in world.asks):
        taking = Ask(THIRD, row, Entry(GRAIN, THIRD, FRESH, 0))
        yield "a third silo takes the grain over", True, world.with_(asks=(*world.asks, taking))


def _arriving(world: World, found: Found) -> Iterator[Step]:
    silo = world.call.at
    assert silo is not None
    name = silo.endpoint
    if silo in world.hosting:
        yield f"the call comes to the {name}", True, with_call(world, Stage.QUEUED, silo)
    elif silo == TARGET:
        if world.has_failed and world.row is not None and world.row.silo == TARGET:
            yield from taken_over(world, world.row)  # it is named, and has given up: the grain begins anew
        yield "the call finds nothing at the target", True, with_call(world, Stage.SEEKING)
    elif world.row is not None and world.row.silo == SOURCE:
        woken = found(world)
        if woken != world:
            yield "the call finds that the grain was given back", True, sought(woken)
        elif world.source is not None and world.source[SOURCE_PHASE] is SourcePhase.DONE:
            yield from taken_over(world, world.row)  # the source had let go: it begins anew
            yield "the call looks for the grain again", True, sought(world)
        else:
            yield "the call looks for the grain again", True, sought(world)
        yield "the source sends the call after the grain", True, on_link(world)
    else:
        yield "the call looks for the grain again", True, sought(world)
        yield "the source sends the call after the grain", True, on_link(world)


def sought(world: World) -> World:
    """The call is looked for a place for, once more."""
    return with_call(world, Stage.SEEKING)
