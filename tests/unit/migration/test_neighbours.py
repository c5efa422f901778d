"""The table of neighbours: what the messaging path tells it, what the planner reads, and how much it keeps."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from silo.migration.repartitioning.neighbours import HALF_LIVES_MAX, NeighbourTable
from tests.unit.migration.repartition_world import ELSEWHERE, HERE, THERE, grain, settings


def table(seed: int = 1, **changes: object) -> NeighbourTable:
    return NeighbourTable(HERE, settings(**changes), random.Random(seed), 0.0)


def feed(it: NeighbourTable, until: float, per_s: int) -> None:
    """One grain talks to another, on another silo, until then."""
    for second in range(int(until)):
        it.period(float(second))
        it.on_remote(grain("a"), grain("b"), THERE, per_s)
    it.period(until)


def test_R601_a_rate_is_what_was_sent_in_the_last_while() -> None:
    it = table()
    feed(it, 300, 5)
    (tie,) = it.ties(grain("a"))
    assert tie.rate == pytest.approx(5, rel=0.05)
    assert it.load(grain("a")) == pytest.approx(5, rel=0.05)


def test_a_young_acquaintance_counts_as_much_as_an_old_one_with_the_same_traffic() -> None:
    it = table()
    feed(it, 15, 5)
    assert it.ties(grain("a"))[0].rate == pytest.approx(5, rel=0.1)


def test_what_is_over_counts_half_after_each_half_life() -> None:
    it = table()
    feed(it, 600, 5)
    before = it.ties(grain("a"))[0].rate
    it.period(600 + settings().half_life_s)
    assert it.ties(grain("a"))[0].rate == pytest.approx(before / 2, rel=0.01)


def test_a_peer_is_where_its_last_message_came_from() -> None:
    it = table()
    it.on_remote(grain("a"), grain("b"), THERE, 5)
    it.on_remote(grain("a"), grain("b"), ELSEWHERE, 1)
    assert [tie.silo for tie in it.ties(grain("a"))] == [ELSEWHERE]


def test_few_messages_are_no_acquaintance() -> None:
    it = table(observations_min=3)
    it.on_remote(grain("a"), grain("b"), THERE, 2)
    assert it.ties(grain("a")) == []
    it.on_remote(grain("a"), grain("b"), THERE)
    assert len(it.ties(grain("a"))) == 1


def test_local_messages_that_are_sampled_count_as_much_as_all() -> None:
    it = table()
    for second in range(200):
        it.period(float(second))
        for _ in range(40):
            it.on_local(grain("a"), grain("b"))
    it.period(200.0)
    assert it.ties(grain("a"))[0].rate == pytest.approx(40, rel=0.15)
    assert it.ties(grain("b"))[0].rate == it.ties(grain("a"))[0].rate


def test_whoever_calls_eight_others_in_turn_is_seen_to_call_each_of_them() -> None:
    it = table(local_every=8)
    for call in range(8 * 400):
        it.on_local(grain("game"), grain(call % 8))
    rates = [tie.rate for tie in it.ties(grain("game"))]
    assert len(rates) == 8
    assert max(rates) < 3 * min(rates)


def test_R601_no_more_grains_and_no_more_peers_are_kept_than_there_may_be() -> None:
    it = table(grains_max=50, peers_max=4)
    rng = random.Random(2)
    for _ in range(5_000):
        it.on_remote(grain(rng.randrange(500)), grain(rng.randrange(500), "p"), THERE)
        it.on_local(grain(rng.randrange(500)), grain(rng.randrange(500)))
    assert len(it) == 50
    assert all(len(it.peers(name)) <= 4 for name in it.loads())
    assert len(it.take_dirty(1_000)) <= 50


def test_of_too_many_peers_the_heavy_ones_are_kept() -> None:
    it = table(peers_max=4)
    rng = random.Random(3)
    for _ in range(4_000):
        peer = rng.randrange(3) if rng.random() < 0.6 else rng.randrange(3, 500)
        it.on_remote(grain("famous"), grain(peer), THERE)
    assert {grain(0), grain(1), grain(2)} <= set(it.peers(grain("famous")))
    assert it.is_crowded(grain("famous"))
    assert not it.is_crowded(grain("unknown"))


def test_a_grain_without_remote_messages_is_the_first_to_be_forgotten() -> None:
    it = table(grains_max=4, local_every=1)
    it.on_local(grain("well"), grain("placed"), 4)
    it.on_remote(grain("a"), grain("b"), THERE)
    it.on_remote(grain("c"), grain("d"), THERE)
    it.on_remote(grain("e"), grain("f"), THERE)
    assert grain("well") not in it
    assert grain("a") in it


def test_only_grains_with_remote_messages_are_looked_at_and_each_once() -> None:
    it = table(local_every=1)
    it.on_local(grain("x"), grain("y"), 100)
    for name in ("a", "b", "a"):
        it.on_remote(grain(name), grain("z"), THERE)
    assert it.take_dirty(1) == [grain("a")]
    assert it.take_dirty(10) == [grain("b")]
    assert it.take_dirty(10) == []
    it.on_remote(grain("a"), grain("z"), THERE)
    it.soil(grain("a"))
    assert it.take_dirty(10) == [grain("a")]


def test_what_has_faded_is_swept() -> None:
    it = table()
    it.on_remote(grain("a"), grain("b"), THERE, 5)
    it.period(30 * settings().half_life_s)
    for _ in range(8):
        it.sweep()
    assert len(it) == 0


def test_weights_are_scaled_back_long_before_they_overflow() -> None:
    it = table()
    long = (HALF_LIVES_MAX + 1) * settings().half_life_s
    it.period(long - 100)
    it.on_remote(grain("a"), grain("b"), THERE, 100)
    before = it.ties(grain("a"))[0].rate
    it.period(long)
    it.period(long - 100 + settings().half_life_s)
    after = it.ties(grain("a"))[0].rate
    assert 0 < after < before


def test_what_is_known_of_a_grain_goes_with_it() -> None:
    old, new = table(), table(seed=2)
    feed(old, 100, 5)
    new.period(7.0)  # another clock
    packed = old.packed(grain("a"))
    assert packed is not None
    new.unpack(packed)
    assert new.ties(grain("a"))[0].rate == pytest.approx(old.ties(grain("a"))[0].rate)
    assert old.packed(grain("unknown")) is None


@given(
    st.lists(
        st.tuples(
            st.integers(0, 12), st.integers(0, 12), st.sampled_from([HERE, THERE, ELSEWHERE]), st.integers(1, 20)
        ),
        max_size=200,
    )
)
def test_R601_whatever_is_said_the_table_stays_within_its_bounds(said: list[tuple[int, int, object, int]]) -> None:
    it = table(grains_max=5, peers_max=3)
    for number, (one, other, where, messages) in enumerate(said):
        if where == HERE:
            it.on_local(grain(one), grain(other), messages)
        else:
            it.on_remote(grain(one), grain(other), THERE, messages)
        if number % 10 == 9:
            it.period(float(number))
            it.sweep()
        assert len(it) <= 5
        for name in it.loads():
            ties = it.ties(name)
            assert len(it.peers(name)) <= 3
            assert all(tie.rate >= 0 for tie in ties)
