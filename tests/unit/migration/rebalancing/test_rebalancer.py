"""When the rebalancer begins, when it ends, and when it keeps quiet."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from silo.directory.errors import InvalidSettings
from silo.migration.rebalancing.loads import LoadSnapshot, Surroundings
from silo.migration.rebalancing.rebalancer import Because, Held, Move, RebalancerState, Verdict, dry_run, step
from silo.migration.rebalancing.settings import RebalanceSettings
from tests.unit.migration.rebalancing.world import SETTLED, carried_out, fewest_moves, silo, snapshot

SETTINGS = RebalanceSettings(bite_grains=1)
ALL = 10_000
UNEVEN = (300, 300, 0)


class Watch:
    """A rebalancer that is shown one snapshot after the other, a second apart."""

    def __init__(self, settings: RebalanceSettings = SETTINGS) -> None:
        self.settings = settings
        self.state = RebalancerState()
        self.version = 0

    def see(self, counts: Sequence[int], around: Surroundings = SETTLED, budget: int = ALL) -> Verdict:
        self.version += 1
        return self.look(snapshot(counts, self.version), around, budget)

    def look(self, loads: LoadSnapshot, around: Surroundings = SETTLED, budget: int = ALL) -> Verdict:
        now = float(self.version)
        self.state, verdict = step(self.settings, self.state, loads, around, now=now, budget_grains=budget)
        return verdict


def because(verdict: Verdict) -> Because:
    assert isinstance(verdict, Held), verdict
    return verdict.because


def moved(verdict: Verdict) -> Move:
    assert isinstance(verdict, Move), verdict
    return verdict


@pytest.mark.parametrize(
    ("counts", "begins"),
    [
        ((100, 100, 100, 100), False),
        ((109, 97, 97, 97), False),  # 9 % above
        ((112, 96, 96, 96), True),  # 12 %, and more than a grain
        ((111, 97, 96, 96), False),  # 11 %, within the grain
        ((88, 104, 104, 104), True),  # one that lacks 12 %
        ((91, 103, 103, 103), False),
        ((2, 1, 1, 0), False),  # so few that a grain is everything
        ((3, 1, 0, 0), True),
    ],
)
def test_it_begins_beyond_a_tenth_and_a_grain(counts: tuple[int, ...], begins: bool) -> None:
    watch = Watch(msgspec.structs.replace(SETTINGS, confirmations=1))
    assert isinstance(watch.see(counts), Move) is begins


def test_it_begins_only_when_two_snapshots_in_a_row_say_so() -> None:
    watch = Watch()
    assert because(watch.see(UNEVEN)) is Because.WATCHED
    assert because(watch.see((200, 200, 200))) is Because.BALANCED
    assert because(watch.see(UNEVEN)) is Because.WATCHED
    assert moved(watch.see(UNEVEN)).plan.amount == 200


def test_the_same_snapshot_twice_is_no_second_sighting() -> None:
    watch = Watch()
    watch.see(UNEVEN)
    assert because(watch.look(snapshot(UNEVEN, watch.version))) is Because.SEEN
    assert isinstance(watch.see(UNEVEN), Move)


def test_once_begun_it_goes_on_below_the_trigger_and_ends_within_the_stop() -> None:
    watch = Watch()
    watch.see((1000, 1000, 400))
    counts = [1000, 1000, 400]
    verdict = watch.see(counts, budget=100)
    moves = 0
    while isinstance(verdict, Move):
        moves += verdict.plan.amount
        counts = carried_out(counts, verdict.plan)
        verdict = watch.see(counts, budget=100)
    assert because(verdict) is Because.BALANCED
    assert all(abs(count - 800) <= 0.02 * 800 + 1 for count in counts)
    assert moves <= fewest_moves((1000, 1000, 400))
    assert because(watch.see((848, 776, 776))) is Because.BALANCED  # 6 % off again: no reason to begin anew


@given(counts=st.lists(st.integers(0, 400), min_size=2, max_size=12), budget=st.integers(20, 150))
@settings(max_examples=25, deadline=None)
def test_an_episode_ends_after_no_more_than_the_fewest_moves_and_stays_ended(counts: list[int], budget: int) -> None:
    watch = Watch()
    now, moves = list(counts), 0
    for _ in range(400):
        verdict = watch.see(now, budget=budget)
        if isinstance(verdict, Move):
            now, moves = carried_out(now, verdict.plan), moves + verdict.plan.amount
        elif verdict.because is Because.BALANCED:
            break
    assert moves <= fewest_moves(counts)
    for _ in range(5):
        assert because(watch.see(now)) is Because.BALANCED


@pytest.mark.parametrize(
    ("around", "why"),
    [
        (Surroundings(3600.0, draining=("silo-1",)), Because.DRAINING),
        (Surroundings(3600.0, rolling="1.2 to 1.3"), Because.ROLLING),
        (Surroundings(29.0), Because.UNSETTLED),
    ],
)
def test_R336_it_is_quiet_during_drains_and_rolls_and_right_after_the_members_changed(
    around: Surroundings, why: Because
) -> None:
    watch = Watch()
    watch.see(UNEVEN)
    assert because(watch.see(UNEVEN, around)) is why
    assert because(watch.see(UNEVEN)) is Because.WATCHED  # what was seen before no longer counts
    assert isinstance(watch.see(UNEVEN), Move)


def test_R336_a_change_of_members_ends_the_episode() -> None:
    watch = Watch()
    watch.see((1000, 0))
    assert isinstance(watch.see((1000, 0), budget=10), Move)
    assert because(watch.see((990, 10), Surroundings(1.0))) is Because.UNSETTLED
    assert because(watch.see((990, 10))) is Because.WATCHED


def test_R331_it_moves_nothing_on_the_word_of_too_few() -> None:
    watch = Watch()
    alone = LoadSnapshot(1, 1, (silo(0, 500), silo(1, 0, silent="no report")))
    assert because(watch.look(alone)) is Because.BLIND
    minority = LoadSnapshot(2, 1, (silo(0, 500), silo(1, 0), *(silo(n, 0, silent="no report") for n in range(2, 5))))
    assert because(watch.look(minority)) is Because.BLIND
    assert because(watch.look(snapshot([500], 3))) is Because.BLIND


def test_R466_it_can_be_suspended_for_a_time_and_resumed() -> None:
    watch = Watch()
    watch.state = watch.state.suspended(3.0, "a sale is on")
    told = watch.see(UNEVEN)
    assert because(told) is Because.SUSPENDED
    assert "a sale is on" in str(told)
    assert because(watch.see(UNEVEN)) is Because.SUSPENDED
    assert because(watch.see(UNEVEN)) is Because.WATCHED  # the third second: it has expired
    watch.state = watch.state.suspended(None, "until I say so")
    watch.version = 10_000
    assert because(watch.see(UNEVEN)) is Because.SUSPENDED
    watch.state = watch.state.resumed()
    watch.see(UNEVEN)
    assert isinstance(watch.see(UNEVEN), Move)


def test_R466_the_state_travels_so_that_another_silo_can_go_on_from_it() -> None:
    watch = Watch()
    watch.see(UNEVEN)
    watch.state = msgspec.msgpack.decode(msgspec.msgpack.encode(watch.state), type=RebalancerState)
    assert isinstance(watch.see(UNEVEN), Move)


def test_without_a_budget_nothing_moves_and_the_episode_goes_on() -> None:
    watch = Watch()
    watch.see(UNEVEN)
    assert because(watch.see(UNEVEN, budget=0)) is Because.NO_BUDGET
    assert isinstance(watch.see(UNEVEN), Move)


def test_a_budget_is_saved_up_until_a_whole_cluster_can_go() -> None:
    watch = Watch(RebalanceSettings(bite_grains=64))
    watch.see(UNEVEN)
    held = watch.see(UNEVEN, budget=63)
    assert because(held) is Because.NO_BUDGET
    assert "63 grains are not enough for the next bite of up to 64" in str(held)
    assert moved(watch.see(UNEVEN, budget=64)).plan.amount == 64
    assert moved(watch.see((204, 204, 192), budget=9)).plan.amount == 8  # the last bite is what is left


def test_where_nobody_may_take_it_says_so_by_leaving_all_where_it_is() -> None:
    watch = Watch()
    for version in range(1, 4):
        loads = LoadSnapshot(version, 1, (silo(0, 500), silo(1, 0, no_taking="it is cordoned")))
        assert because(watch.look(loads)) is Because.BALANCED


def test_R466_a_dry_run_is_a_plan_with_an_id_and_changes_nothing() -> None:
    loads = snapshot(UNEVEN, version=5)
    plan = dry_run(SETTINGS, loads)
    assert (plan.loads_version, plan.amount) == (5, 200)
    assert plan == dry_run(SETTINGS, loads)


def test_R332_a_verdict_tells_reason_and_spread() -> None:
    verdict = Watch().see((300, 300, 0))
    assert isinstance(verdict, Held)
    assert verdict.spread == pytest.approx(1.5)
    assert "silo-2 has 0 where its share is 200.0, seen 1 of 2 times" in str(verdict)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"stop": 0.1}, "stop"),
        ({"stop": 0.0}, "stop"),
        ({"confirmations": 0}, "confirmations"),
        ({"moves_per_plan_max": 0}, "moves_per_plan_max"),
        ({"settle_s": -1.0}, "settle_s"),
        ({"bite_grains": 0}, "bite_grains"),
        ({"bite_grains": 100, "moves_per_plan_max": 50}, "no plan could have one bite"),
    ],
)
def test_R515_settings_that_make_no_sense_are_refused_by_name(settings: dict[str, float], said: str) -> None:
    with pytest.raises(InvalidSettings, match=said):
        RebalanceSettings(**settings)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - as callers may
