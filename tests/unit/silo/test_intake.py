"""R-319: how many activations a silo begins at a time, who comes next, and that no grain waits for its own place."""

from __future__ import annotations

import random
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from silo.activation.intake import Intake, IntakeLimits

BORN = 100.0


def intake(cap: int, warm_up_s: float = 0.0) -> Intake[str]:
    return Intake(IntakeLimits(cap, warm_up_s), BORN)


def begun(places: Intake[str], now: float = BORN) -> list[str]:
    """All that begin now of those that wait."""
    return list(iter(lambda: places.next(now) or "", ""))


def test_R319_what_comes_beyond_the_cap_waits_and_begins_in_order() -> None:
    places = intake(2)
    assert [places.enter(one, BORN, inner=False) for one in "abcde"] == [True, True, False, False, False]
    assert begun(places) == []
    places.leave("b")
    assert begun(places) == ["c"]
    places.leave("a")
    places.leave("c")
    assert begun(places) == ["d", "e"]
    assert places.in_flight == 2


def test_one_that_gives_up_waiting_takes_nobodys_place() -> None:
    places = intake(1)
    for one in "abc":
        places.enter(one, BORN, inner=False)
    places.leave("b")
    places.leave("a")
    assert begun(places) == ["c"]
    assert places.waiting_count == 0


def test_a_lent_place_is_used_by_what_grains_call_and_by_nothing_else() -> None:
    places = intake(1)
    for one, inner in {"a": False, "outer": False, "inner": True}.items():
        places.enter(one, BORN, inner=inner)
    assert begun(places) == []
    places.lend("a")
    assert begun(places) == ["inner"]
    places.leave("inner")
    places.take_back("a")
    assert begun(places) == []
    places.leave("a")
    assert begun(places) == ["outer"]


def test_a_place_is_lent_until_its_holder_waits_for_nobody_any_more() -> None:
    places = intake(1)
    places.enter("a", BORN, inner=False)
    places.lend("a")
    places.lend("a")
    places.take_back("a")
    places.enter("b", BORN, inner=True)
    assert begun(places) == ["b"]
    places.enter("c", BORN, inner=True)
    assert begun(places) == []  # the one place that was lent is taken


def test_what_a_grain_calls_by_now_may_use_a_lent_place_though_it_came_as_another() -> None:
    places = intake(1)
    places.enter("a", BORN, inner=False)
    places.enter("b", BORN, inner=False)
    places.lend("a")
    assert begun(places) == []
    places.hasten("b")
    assert begun(places) == ["b"]


def test_nobody_begins_once_the_silo_ends() -> None:
    places = intake(1)
    places.enter("a", BORN, inner=False)
    places.enter("b", BORN, inner=True)
    places.close()
    places.leave("a")
    assert begun(places) == []


@given(
    cap=st.integers(1, 4),
    calls=st.lists(st.tuples(st.integers(0, 24), st.integers(0, 24)), max_size=60),
    outer=st.lists(st.integers(0, 24), min_size=1, max_size=25),
    choices=st.randoms(use_true_random=False),
)
def test_R319_no_chain_of_grains_waits_for_a_place_that_it_holds_itself(
    cap: int, calls: list[tuple[int, int]], outer: list[int], choices: random.Random
) -> None:
    """Each of these calls others in its `on_activate`, in no circle; whatever the order, all of them come to be.

    Of those that work there are never more than the cap when one more begins, and of those from outside no more at all.
    """
    places: Intake[int] = Intake(IntakeLimits(cap), BORN)
    needs: dict[int, set[int]] = {number: set() for number in range(25)}
    for one, other in calls:
        if one != other:
            needs[min(one, other)].add(max(one, other))
    entered: set[int] = set()
    done: set[int] = set()
    lent: dict[int, set[int]] = {}  # those that have begun, with what each of them waits for

    def begin(one: int) -> None:
        assert sum(not waits for waits in lent.values()) < cap
        lent[one] = set()
        to_call = deque(sorted(needs[one] - done))
        while to_call:
            other = to_call.popleft()
            lent[one].add(other)
            places.lend(one)
            if other not in entered:
                entered.add(other)
                if places.enter(other, BORN, inner=True):
                    begin(other)
            else:
                places.hasten(other)

    def begin_next() -> None:
        while (one := places.next(BORN)) is not None:
            begin(one)

    for one in outer:
        if one not in entered:
            entered.add(one)
            if places.enter(one, BORN, inner=False):
                begin(one)
            begin_next()
    while lent:
        ready = sorted(one for one, waits in lent.items() if not waits)
        assert ready, f"each of {sorted(lent)} waits, and {places.waiting_count} wait for a place"
        ended = choices.choice(ready)
        del lent[ended]
        done.add(ended)
        places.leave(ended)
        for one, waits in lent.items():
            if ended in waits:
                waits.remove(ended)
                places.take_back(one)
        begin_next()
    assert done == entered
    assert places.in_flight == places.waiting_count == 0


@given(cap=st.integers(1, 2_000), warm_up_s=st.floats(0.001, 1_000), ages=st.lists(st.floats(0, 2_000), min_size=2))
def test_R319_the_cap_of_a_silo_that_warms_up_grows_with_its_age_from_a_sixteenth_to_all(
    cap: int, warm_up_s: float, ages: list[float]
) -> None:
    limits = IntakeLimits(cap, warm_up_s)
    caps = [limits.cap_at(age) for age in sorted(ages)]
    assert caps == sorted(caps)
    assert all(max(1, cap // 16) <= each <= cap for each in caps)
    assert limits.cap_at(0.0) == max(1, cap // 16)
    assert limits.cap_at(warm_up_s) == cap


def test_R319_who_waits_for_a_silo_to_warm_up_begins_when_it_says_that_it_takes_more() -> None:
    places = intake(8, warm_up_s=16.0)
    assert [places.enter(one, BORN, inner=False) for one in "abc"] == [True, False, False]
    now = places.grows_at(BORN)
    assert now is not None
    assert now == BORN + 4.0
    assert begun(places, now - 0.1) == []
    assert begun(places, now) == ["b"]
    assert places.grows_at(now) == BORN + 6.0
    assert places.grows_at(BORN + 16.0) is None
    assert places.cap(BORN + 16.0) == 8


def test_a_silo_is_full_at_its_bound_and_never_without_one() -> None:
    assert IntakeLimits(activations_max=10).why_full(9) == ""
    assert IntakeLimits(activations_max=10).why_full(10) == "full: 10 of 10 activations"
    assert IntakeLimits().why_full(10**9) == ""


def test_R434_one_that_is_set_aside_has_no_place_and_waits_for_one_when_it_comes_back() -> None:
    places = intake(1)
    for one in "abc":
        places.enter(one, BORN, inner=False)
    places.set_aside("a")
    assert begun(places) == ["b"]
    places.set_aside("b")
    assert begun(places) == ["c"]
    assert (places.in_flight, places.waiting_count) == (1, 0)
    assert not places.come_back("a", BORN)
    assert not places.come_back("b", BORN)
    places.leave("c")
    assert begun(places) == ["a"]
    places.leave("a")
    assert begun(places) == ["b"]


def test_R434_one_that_comes_back_to_a_free_place_goes_on_at_once() -> None:
    places = intake(1)
    places.enter("a", BORN, inner=False)
    places.set_aside("a")
    assert places.come_back("a", BORN)
    assert places.in_flight == 1


@pytest.mark.parametrize("when", ["it came", "it worked", "it was set aside"])
def test_R319_one_that_a_grain_calls_may_use_a_lent_place_when_it_comes_back(when: str) -> None:
    places = intake(1)
    places.enter("inner", BORN, inner=when == "it came")
    if when == "it worked":
        places.hasten("inner")
    places.set_aside("inner")
    if when == "it was set aside":
        places.hasten("inner")
    assert places.enter("caller", BORN, inner=False)
    assert not places.come_back("inner", BORN)
    assert begun(places) == []
    places.lend("caller")
    assert begun(places) == ["inner"]


def test_one_that_is_gone_leaves_nothing_behind() -> None:
    """It comes back as any other: what was known of it went with it."""
    places = intake(1)
    places.enter("a", BORN, inner=True)
    places.set_aside("a")
    places.leave("a")
    places.hasten("a")
    places.enter("caller", BORN, inner=False)
    assert not places.come_back("a", BORN)
    places.lend("caller")
    assert begun(places) == []
