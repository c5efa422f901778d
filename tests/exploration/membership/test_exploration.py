"""The promise that a dead silo starts no turn, explored whole where that takes seconds; and the holes once found."""

from __future__ import annotations

import pytest

from tests.exploration.explore import explore, replay
from tests.exploration.membership.configurations import ALL, LOSS, SMALL
from tests.exploration.membership.planted import (
    PLANTED,
    PLANTED_LOSS,
    AcknowledgesAfterAssent,
    AmberAlone,
    AssentSurvivesRenewal,
    NewestViewOnly,
    VerdictNotBoundToSeq,
)
from tests.exploration.membership.world import Configuration, Parts, World

SECONDS_MAX = 60.0
LARGER = ("2 silos, acknowledgements delayed, drift", "2 silos, 1 joiner: acknowledgements delayed")
"""Those of the large ones that take a few seconds."""
ACK, ASSENT, VERDICT = "a peer acknowledges", "a peer assents", "a verdict is given"


@pytest.mark.parametrize("name", [*(configuration.name for configuration in (*SMALL, *LOSS)), *LARGER])
def test_a_silo_that_is_declared_dead_may_start_no_turn_whatever_befalls_it(name: str) -> None:
    found = explore(World(ALL[name]), seconds_max=SECONDS_MAX)
    assert found.counterexample is None, f"explore with --configs {name!r}: {found}"
    assert found.complete
    assert found.states > 400, "a world in which nothing happens proves nothing"


@pytest.mark.parametrize("bug", [*PLANTED, *PLANTED_LOSS])
def test_a_planted_bug_is_found(bug: str) -> None:
    planted = {**PLANTED, **PLANTED_LOSS}[bug]
    assert explore(World(planted.configuration, planted.parts), seconds_max=SECONDS_MAX, traced=True).counterexample


def test_all_nineteen_are_planted() -> None:
    assert len(PLANTED) == 19


def test_the_same_world_without_the_bug_keeps_the_promise() -> None:
    worlds = {planted.configuration for planted in PLANTED.values()}
    for configuration in worlds:
        if len(configuration.delays) > 1 or configuration.silos > 3:
            continue  # longer; the larger ones of that kind are explored by the program
        assert explore(World(configuration), seconds_max=SECONDS_MAX).complete, configuration


# ---- the holes of an earlier rule: what happened, with the rule that closes it taken away, and with it


def ends_badly(world: World, *labels: str) -> bool:
    states = replay(world, *labels)
    return any(world.violated(state) for state in states)


def world(silos: int, joiners: int = 0, parts: Parts | None = None) -> World:
    return World(Configuration("hole", silos=silos, joiners=joiners), parts)


def test_H1_a_peer_that_assented_acknowledges_neither_before_the_commit_nor_after_it() -> None:
    before = ("tick", "tick", ASSENT, ACK, VERDICT)
    after = ("tick", "tick", ASSENT, VERDICT, ACK)
    for path in (before, after):
        assert ends_badly(world(2, parts=Parts(AcknowledgesAfterAssent)), *path)
        assert replay(world(2), *path) == [], "it does not acknowledge"


def test_H2_a_lone_silo_is_not_amber_when_a_newcomer_of_which_it_never_heard_judges_it() -> None:
    path = ("tick", "tick", "a peer joins", ASSENT, VERDICT)
    assert ends_badly(world(1, 1, Parts(AmberAlone)), *path)
    assert replay(world(1, 1), *path), "it is judged"
    assert not ends_badly(world(1, 1), *path)


def test_H3_the_votes_of_a_newcomer_do_not_outweigh_the_acknowledgement_in_the_view_that_is_held() -> None:
    path = ("tick", "tick", ACK, "a peer joins", ASSENT, ASSENT, VERDICT)
    assert ends_badly(world(3, 1, Parts(NewestViewOnly)), *path)
    assert replay(world(3, 1), *path[:-1]), "the two assent"
    assert replay(world(3, 1), *path) == [], "which is not a majority of the older view"


@pytest.mark.parametrize("means", ["H4 a crash that is proved", "H5 a slow verdict, or a goodbye"])
def test_H4_H5_who_acknowledged_and_was_removed_still_counts_in_the_view_that_is_held(means: str) -> None:
    """By whatever means it was removed: for the exploration they are one."""
    path = ("tick", "tick", ACK, "a peer is removed", ASSENT, VERDICT)
    assert ends_badly(world(3, parts=Parts(NewestViewOnly)), *path), means
    assert replay(world(3), *path) == [], means


def test_H6_an_assent_lapses_with_the_renewal_that_it_did_not_see() -> None:
    path = (ASSENT, "a renewal is carried out and answered", "tick", "tick", ACK, VERDICT)
    assert ends_badly(world(2, parts=Parts(AssentSurvivesRenewal)), *path)
    assert replay(world(2), *path) == []


def test_H6_a_verdict_that_was_delayed_on_its_way_takes_no_effect_after_a_renewal() -> None:
    path = (
        "tick",
        "tick",
        "a verdict is sent",
        "a renewal is carried out and answered",
        "the verdict comes late",
    )
    assert ends_badly(world(2, parts=Parts(table=VerdictNotBoundToSeq)), *path)
    assert replay(world(2), *path) == []
