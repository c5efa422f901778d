"""The handover protocol: every cell of its tables. The stories that it can have are explored in `tests/exploration`."""

from __future__ import annotations

import pytest

from silo.directory.addresses import Entry, SiloAddress
from silo.migration import handover as h
from silo.migration.handover import Source, SourcePhase, Target, TargetPhase
from silo.migration.outcome import MoveStatus
from tests.exploration.handover.world import GRAIN, NEW, OFFERED, OLD, SOURCE, TARGET

THEIRS = Entry(GRAIN, TARGET, NEW, 2)
BACK = Entry(GRAIN, SOURCE, OLD, 3)
OTHERS = Entry(GRAIN, SiloAddress("third:1", 3), "third", 4)

EVENTS: dict[str, h.Event] = {
    "agreed": h.AskAnswered(""),
    "not agreed": h.AskAnswered("no"),
    "retargeted": h.Retargeted(),
    "drained": h.Drained(),
    "deactivated": h.Deactivated(),
    "dehydrated": h.Dehydrated(b"state"),
    "failed": h.Failed("broken"),
    "taken": h.OfferAnswered(THEIRS),
    "refused": h.OfferAnswered(None, "no"),
    "lost": h.OfferAnswered(None, "no", lost=True),
    "timed out": h.TimedOut("late"),
    "peer lost": h.PeerLost("gone"),
    "peer died": h.PeerDied("dead"),
    "own again": h.Registered(BACK),
    "held by target": h.Registered(THEIRS),
    "held by others": h.Registered(OTHERS),
    "no row": h.Registered(None),
    "found own": h.Found(BACK),
    "found as offered": h.Found(OFFERED),
    "found target": h.Found(THEIRS),
    "found others": h.Found(OTHERS),
    "found none": h.Found(None),
    "opened": h.TargetOpened(""),
    "given back": h.TargetOpened("broken", BACK),
    "not given back": h.TargetOpened("broken"),
    "withdrawn": h.Withdrawn(),
    "rehydrated": h.Rehydrated(),
    "activated": h.Activated(),
}

S, T = SourcePhase, TargetPhase
REFUSED = ("Finish", S.DONE)
RESUMED = ("Resume Finish", S.DONE)
YIELDED = ("Discard Finish", S.DONE)

SOURCE_TABLE: dict[SourcePhase, dict[str, tuple[str, SourcePhase]]] = {
    S.ASKING: {
        "agreed": ("Drain", S.DRAINING),
        "not agreed": REFUSED,
        "timed out": REFUSED,
        "peer lost": REFUSED,
        "peer died": REFUSED,
        "failed": REFUSED,
        "retargeted": ("SendAsk", S.ASKING),
    },
    S.DRAINING: {
        "retargeted": ("SendAsk", S.DRAINING),
        "drained": ("Deactivate", S.DEACTIVATING),
        "not agreed": RESUMED,
        "timed out": RESUMED,
        "peer lost": RESUMED,
        "peer died": RESUMED,
        "failed": RESUMED,
    },
    S.DEACTIVATING: {
        "deactivated": ("Dehydrate", S.DEHYDRATING),
        "failed": RESUMED,
    },
    S.DEHYDRATING: {
        "dehydrated": ("SendOffer", S.OFFERED),
        "failed": RESUMED,
        "timed out": RESUMED,
        "peer lost": RESUMED,
        "peer died": RESUMED,
    },
    S.OFFERED: {
        "taken": ("Forward", S.MOVED),
        "refused": RESUMED,
        "lost": ("Fence", S.FENCING),
        "timed out": ("SendWithdraw Fence", S.FENCING),
        "peer lost": ("SendWithdraw Fence", S.FENCING),
        "failed": ("SendWithdraw Fence", S.FENCING),
        "peer died": ("Fence", S.FENCING),
    },
    S.FENCING: {
        "taken": ("Forward", S.MOVED),
        "own again": RESUMED,
        "held by target": ("Forward", S.MOVED),
        "held by others": YIELDED,
        "no row": YIELDED,
        "failed": YIELDED,
    },
    S.MOVED: {
        "opened": ("Release Finish", S.DONE),
        "given back": RESUMED,
        "not given back": ("Fence", S.PARTING),
        "own again": RESUMED,
        "found own": RESUMED,
        "peer died": ("Fence", S.PARTING),
    },
    S.PARTING: {
        "own again": RESUMED,
        "found own": RESUMED,
        "held by target": ("Fence", S.PARTING),
        "no row": ("Fence", S.PARTING),
        "held by others": YIELDED,
        "failed": YIELDED,
    },
    S.DONE: {},
}

DISCARDED = ("SendOfferAnswer Discard", T.DONE)

TARGET_TABLE: dict[TargetPhase, dict[str, tuple[str, TargetPhase]]] = {
    T.REHYDRATING: {
        "rehydrated": ("Register", T.REGISTERING),
        "failed": DISCARDED,
        "timed out": DISCARDED,
        "withdrawn": DISCARDED,
    },
    T.REGISTERING: {
        "held by target": ("SendOfferAnswer Activate", T.STARTING),
        "own again": DISCARDED,
        "held by others": DISCARDED,
        "no row": DISCARDED,
        "failed": ("SendOfferAnswer SendOpened Discard", T.DONE),
    },
    T.STARTING: {
        "activated": ("Open SendOpened", T.DONE),
        "failed": ("GiveBack", T.RETURNING),
        "timed out": ("GiveBack", T.RETURNING),
    },
    T.RETURNING: {
        "own again": ("SendOpened Discard", T.DONE),
        "held by target": ("SendOpened Discard", T.DONE),
        "held by others": ("SendOpened Discard", T.DONE),
        "no row": ("SendOpened Discard", T.DONE),
        "failed": ("SendOpened Discard", T.DONE),
    },
    T.DONE: {},
}


def names(orders: list[h.Order]) -> str:
    return " ".join(type(order).__name__ for order in orders)


def source(phase: SourcePhase) -> Source:
    moved_to = THEIRS if phase in (S.MOVED, S.PARTING) else None
    return Source(OFFERED, NEW, phase, agreed=phase is not S.ASKING, moved_to=moved_to)


@pytest.mark.parametrize("phase", S)
def test_the_source_decides_every_event_in_every_phase(phase: SourcePhase) -> None:
    for name, event in EVENTS.items():
        core = source(phase)
        orders = core.on(event)
        assert (names(orders), core.phase) == SOURCE_TABLE[phase].get(name, ("", phase)), name


@pytest.mark.parametrize("phase", T)
def test_the_target_decides_every_event_in_every_phase(phase: TargetPhase) -> None:
    for name, event in EVENTS.items():
        core = Target(TARGET, NEW, OFFERED, phase, entry=THEIRS if phase in (T.STARTING, T.RETURNING) else None)
        orders = core.on(event)
        assert (names(orders), core.phase) == TARGET_TABLE[phase].get(name, ("", phase)), name


def test_the_whole_way_of_a_move() -> None:
    core = Source(OFFERED, NEW)
    assert core.start() == [h.SendAsk()]
    assert core.on(h.AskAnswered("")) == [h.Drain()]
    assert core.on(h.Drained()) == [h.Deactivate()]
    assert core.on(h.Deactivated()) == [h.Dehydrate()]
    assert core.on(h.Dehydrated(b"state")) == [h.SendOffer(b"state")]
    assert core.on(h.OfferAnswered(THEIRS)) == [h.Forward(THEIRS)]
    assert core.on(h.TargetOpened("")) == [h.Release(), h.Finish(MoveStatus.MOVED)]

    target = Target(TARGET, NEW, OFFERED)
    assert target.start() == [h.Rehydrate()]
    assert target.on(h.Rehydrated()) == [h.Register()]
    assert target.on(h.Registered(THEIRS)) == [h.SendOfferAnswer(THEIRS), h.Activate()]
    assert target.on(h.Activated()) == [h.Open(), h.SendOpened()]


def test_a_new_target_must_agree_before_the_grain_is_told_to_deactivate() -> None:
    core = Source(OFFERED, NEW)
    core.on(h.AskAnswered(""))
    assert core.is_retargetable
    assert core.on(h.Retargeted()) == [h.SendAsk()]
    assert core.on(h.Drained()) == []
    assert core.on(h.AskAnswered("")) == [h.Deactivate()]
    assert not core.is_retargetable


@pytest.mark.parametrize("loss", ["peer lost", "peer died"])
def test_a_loss_while_the_grain_deactivates_is_remembered_until_it_has(loss: str) -> None:
    core = source(S.DEACTIVATING)
    assert core.on(EVENTS[loss]) == []
    assert names(core.on(h.Deactivated())) == "Resume Finish"


def test_a_grain_that_was_told_to_deactivate_is_activated_again() -> None:
    assert source(S.DRAINING).on(h.TimedOut("late")) == [h.Resume(False, "late"), h.Finish(MoveStatus.ABORTED, "late")]
    assert source(S.OFFERED).on(h.OfferAnswered(None, "no"))[0] == h.Resume(True, "no")


def test_the_source_serves_on_under_the_entry_that_the_directory_gave_it() -> None:
    core = source(S.OFFERED)
    core.on(h.TimedOut("late"))
    core.on(h.Registered(BACK))
    assert core.entry == BACK


def test_a_row_that_is_gone_is_made_anew_where_the_target_has_said_that_it_does_not_hold_it() -> None:
    core = source(S.OFFERED)
    assert core.on(EVENTS["lost"]) == [h.Fence(OFFERED)]
    assert core.on(h.Registered(None)) == [h.Fence(None)]
    assert names(core.on(h.Registered(BACK))) == "Resume Finish"


def test_a_refusal_that_comes_while_the_source_fences_is_remembered() -> None:
    core = source(S.OFFERED)
    core.on(h.TimedOut("late"))
    assert core.on(EVENTS["refused"]) == []
    assert core.on(h.Registered(None)) == [h.Fence(None)]


def test_a_row_that_is_gone_stays_so_where_the_target_may_have_opened_before() -> None:
    core = source(S.OFFERED)
    core.on(h.TimedOut("late"))
    orders = core.on(h.Registered(None))
    assert isinstance(orders[-1], h.Finish)
    assert orders[-1].status is MoveStatus.LOST


def test_the_source_of_a_target_that_committed_and_died_takes_the_entry_back_from_the_dead() -> None:
    core = source(S.MOVED)
    assert core.on(h.PeerDied("dead")) == [h.Fence(THEIRS)]
    assert core.on(h.Registered(BACK)) == [h.Resume(True, "dead"), h.Finish(MoveStatus.ABORTED, "dead")]
    assert core.entry == BACK


def test_a_commit_that_is_learnt_of_after_the_targets_death_is_taken_back_at_once() -> None:
    core = source(S.OFFERED)
    core.on(h.PeerDied("dead"))
    assert core.on(h.Registered(THEIRS)) == [h.Fence(THEIRS)]
    assert names(core.on(h.Registered(BACK))) == "Resume Finish"


@pytest.mark.parametrize("gone", ["peer died", "not given back"])
def test_the_source_of_a_target_that_is_gone_takes_a_swept_row_and_yields_to_whoever_was_first(gone: str) -> None:
    core = source(S.MOVED)
    core.on(EVENTS[gone])
    assert core.on(h.Registered(None)) == [h.Fence(None)]
    discarded, finished = core.on(h.Registered(OTHERS))
    assert isinstance(discarded, h.Discard)
    assert isinstance(finished, h.Finish)
    assert (discarded.entry, finished.status) == (OTHERS, MoveStatus.LOST)


def test_a_source_that_is_told_while_it_fences_that_the_target_let_go_takes_the_entry_from_it() -> None:
    core = source(S.OFFERED)
    core.on(EVENTS["lost"])
    assert core.on(EVENTS["not given back"]) == []
    assert core.on(h.Registered(THEIRS)) == [h.Fence(THEIRS)]


def test_a_source_that_hears_while_it_fences_that_the_target_is_open_takes_nothing_from_it() -> None:
    core = source(S.OFFERED)
    core.on(h.TimedOut("late"))
    core.on(EVENTS["opened"])
    assert core.on(h.Registered(THEIRS)) == [h.Forward(THEIRS)]


# Holes that the explorer found in earlier forms of the protocol: each is a story that ends well now.


def test_a_lost_link_after_the_commit_does_not_lose_the_state_of_a_grain_that_cannot_open_at_its_target() -> None:
    core = source(S.MOVED)
    assert core.on(h.PeerLost("gone")) == []
    assert names(core.on(h.TargetOpened("on_activate raised", BACK))) == "Resume Finish"


def test_a_source_that_loses_its_fence_keeps_the_frozen_instance_until_the_target_has_opened() -> None:
    core = source(S.OFFERED)
    core.on(h.TimedOut("late"))
    assert core.on(h.Registered(THEIRS)) == [h.Forward(THEIRS)]
    assert names(core.on(h.TargetOpened("on_activate raised", BACK))) == "Resume Finish"


def test_a_source_whose_target_lost_its_compare_and_set_asks_the_directory_before_it_resumes() -> None:
    core = source(S.OFFERED)
    assert core.on(EVENTS["lost"]) == [h.Fence(OFFERED)]
    assert names(core.on(h.Registered(OTHERS))) == "Discard Finish"


def test_a_row_that_was_read_before_the_move_does_not_bring_the_source_back() -> None:
    core = source(S.MOVED)
    assert core.on(h.Found(OFFERED)) == []
    assert core.phase is S.MOVED
