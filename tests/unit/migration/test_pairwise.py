"""The pairwise exchange: the joint choice of two silos, and what they say to each other."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.halo.fleet import Fleet
from silo.directory.addresses import GrainId
from silo.migration.repartitioning.messages import Accept, Candidate, Confirm, Message, Offer, Refuse, Report
from silo.migration.repartitioning.pairwise import choose_jointly
from silo.migration.repartitioning.settings import Strategy
from tests.unit.migration.repartition_world import grain, settings

REPORT = Report(100, 1.0)


def candidate(name: object, score: float, **peers: float) -> Candidate:
    return Candidate(grain(name), score, 1.0, tuple((grain(peer), rate) for peer, rate in peers.items()))


def side(*candidates: Candidate) -> dict[GrainId, Candidate]:
    return {each.grain: each for each in candidates}


def test_R602_of_two_that_want_to_each_other_one_goes() -> None:
    theirs, mine = side(candidate("a", 5.0, b=5.0)), side(candidate("b", 5.0, a=5.0))
    takes, gives = choose_jointly(theirs, mine, 100, 100, lambda by: by <= 4)
    assert len(takes) + len(gives) == 1


def test_R602_what_follows_a_friend_is_worth_more_once_the_friend_has_gone() -> None:
    mine = side(candidate("a", 5.0, b=3.0), candidate("b", -1.0, a=3.0))
    _, gives = choose_jointly({}, mine, 90, 100, lambda by: by <= 10)
    assert [each.grain for each in gives] == [grain("a"), grain("b")]


@given(
    st.lists(st.floats(0.1, 10), max_size=12),
    st.lists(st.floats(0.1, 10), max_size=12),
    st.integers(50, 150),
    st.integers(50, 150),
    st.integers(0, 10),
)
def test_R602_R603_the_two_are_never_further_apart_than_the_slack_or_than_they_were(
    theirs: list[float], mine: list[float], their_count: int, my_count: int, slack: int
) -> None:
    takes, gives = choose_jointly(
        side(*(candidate(f"t{n}", score) for n, score in enumerate(theirs))),
        side(*(candidate(f"m{n}", score) for n, score in enumerate(mine))),
        their_count,
        my_count,
        lambda by: by <= slack,
    )
    change = len(takes) - len(gives)
    assert abs(my_count - their_count + 2 * change) <= max(slack, abs(my_count - their_count))


def test_R602_two_silos_that_exchange_end_with_each_pair_together_and_as_even_as_before() -> None:
    fleet = Fleet((1.0, 1.0), settings(strategy=Strategy.PAIRWISE, cap_slack=0.1), seed=1)
    pairs = [(grain(number, "one"), grain(number, "other")) for number in range(30)]
    for number, (one, other) in enumerate(pairs):
        fleet.place(one, fleet.silos[number % 2])
        fleet.place(other, fleet.silos[1 - number % 2])
    rng = random.Random(1)
    for step in range(60):
        fleet.start_period()
        for one, other in pairs:
            fleet.talk(one, other, 3 + rng.randrange(3))
        fleet.run_until(10.0 * (step + 1))
    apart = [one for one, other in pairs if fleet.where[one] is not fleet.where[other]]
    assert len(apart) <= 3
    assert abs(fleet.silos[0].count() - fleet.silos[1].count()) <= 6


@pytest.mark.parametrize(
    "message",
    [
        Offer(1, (candidate("a", 1.0, b=2.0),), REPORT),
        Accept(1, (grain("a"),), (candidate("b", 1.0),), REPORT),
        Confirm(2),
        Refuse(3),
    ],
    ids=lambda message: type(message).__name__,
)
def test_messages_can_go_on_the_wire(message: Message) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=Message) == message
