"""The handover protocol, explored whole, in its short form; `python -m tests.exploration.handover` is the long one."""

from __future__ import annotations

import re

import pytest

from silo.migration.handover import SourcePhase, TargetPhase
from tests.exploration.handover.explorer import explore
from tests.exploration.handover.planted import PLANTED, Planted
from tests.exploration.handover.play import Play
from tests.exploration.handover.settings import LONG, SHORT
from tests.exploration.handover.world import Bounds, Violation

S, T = SourcePhase, TargetPhase
TOLD: dict[SourcePhase | TargetPhase, set[str]] = {
    S.ASKING: {"AskAnswered", "TimedOut", "PeerLost", "PeerDied", "Retargeted"},
    S.DRAINING: {"AskAnswered", "Drained", "Failed", "TimedOut", "PeerLost", "PeerDied", "Retargeted"},
    S.DEACTIVATING: {"Deactivated", "Failed", "PeerLost", "PeerDied"},
    S.DEHYDRATING: {"Dehydrated", "Failed", "PeerLost", "PeerDied"},
    S.OFFERED: {"OfferAnswered", "TimedOut", "PeerLost", "PeerDied"},
    S.FENCING: {"OfferAnswered", "TargetOpened", "Registered", "Failed", "PeerLost", "PeerDied"},
    S.MOVED: {"TargetOpened", "Found", "PeerLost", "PeerDied"},
    S.PARTING: {"Registered", "Found", "Failed"},
    T.REHYDRATING: {"Rehydrated", "Failed", "Withdrawn", "PeerLost", "PeerDied"},
    T.REGISTERING: {"Registered", "Failed", "Withdrawn", "PeerLost", "PeerDied"},
    T.STARTING: {"Activated", "Failed", "Withdrawn", "PeerLost", "PeerDied"},
    T.RETURNING: {"Registered", "Failed", "PeerLost", "PeerDied"},
}
"""What the exploration has to tell the cores, and in which phase, if it is to mean anything."""


@pytest.mark.parametrize("bounds", SHORT.values(), ids=SHORT)
def test_R430_whatever_crashes_at_whichever_step_one_is_open_the_call_ends_once_and_the_state_is_kept(
    bounds: Bounds,
) -> None:
    seen = explore(Play(), bounds)
    assert seen.complete
    assert seen.states > 500
    assert seen.ends > 20


def test_R430_the_exploration_tells_each_side_of_everything_in_every_phase() -> None:
    play = Play()
    for bounds in (
        SHORT["a crash, a lost link"],
        SHORT["another target, twice"],
        SHORT["a crash, the directory fails"],
        LONG["two crashes, a call, the row swept"],
    ):
        explore(play, bounds)
    missing = {
        (phase.name, event) for phase, events in TOLD.items() for event in events if (phase, event) not in play.cells
    }
    assert missing == set()


@pytest.mark.parametrize("planted", PLANTED, ids=[planted.what for planted in PLANTED])
def test_the_exploration_finds_a_planted_fault_and_tells_the_story(planted: Planted) -> None:
    with pytest.raises(Violation) as caught:
        explore(planted.play, planted.bounds)
    broken, _, story = str(caught.value).partition(", after:\n")
    assert re.search(planted.breaks, broken)
    assert story.startswith("  begin\n")
