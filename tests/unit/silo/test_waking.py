"""When a grain that could not be placed is tried again: every state meets every signal. R-201 to R-221."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from silo.routing.limits import RoutingLimits
from silo.routing.waking import (
    ASLEEP,
    Asleep,
    Called,
    Chance,
    ChanceCame,
    Deserted,
    Failed,
    Ignore,
    LetGo,
    Order,
    Settled,
    Signal,
    StartedOver,
    State,
    TimeCame,
    Try,
    Trying,
    Waiting,
    WakeAt,
    step,
)

LIMITS = RoutingLimits()
"""Pauses of 0.05 s to 1 s; a call causes a try at most every 0.5 s."""
NOBODY = Ignore("nobody waits for the grain")
UNDER_WAY = Ignore("a try is under way, and its end shows who still waits")
NO_TRY = Ignore("no try is under way")
FREED = Chance.FREED

CELLS: list[tuple[str, State, Signal, State, tuple[Order, ...]]] = [
    ("the first call is a try", ASLEEP, Called(5), Trying(5), (Try(),)),
    ("a chance for nobody", ASLEEP, ChanceCame(FREED, 5), ASLEEP, (NOBODY,)),
    ("a time that was set for nobody", ASLEEP, TimeCame(5), ASLEEP, (NOBODY,)),
    ("an end of no try", ASLEEP, Settled(), ASLEEP, (NOBODY,)),
    ("a failure of no try", ASLEEP, Failed(5, 0.5), ASLEEP, (NOBODY,)),
    ("nobody leaves", ASLEEP, Deserted(), ASLEEP, (NOBODY,)),
    ("starting over for nobody", ASLEEP, StartedOver(5), ASLEEP, (NOBODY,)),
    ("a call joins the try", Trying(4, 2), Called(5), Trying(4, 2), ()),
    ("a chance comes during the try", Trying(4, 2), ChanceCame(FREED, 5), Trying(4, 2, again=True), ()),
    ("a second chance is the same one", Trying(4, 2, None, True), ChanceCame(FREED, 5), Trying(4, 2, None, True), ()),
    ("the time of the next try comes in a try", Trying(4, 2), TimeCame(5), Trying(4, 2), (UNDER_WAY,)),
    ("starting over during the try", Trying(4, 2, 5.5, True), StartedOver(5), Trying(4, 0, 5.5, True), ()),
    ("it is found", Trying(4, 2), Settled(), ASLEEP, (LetGo(),)),
    ("the first failure", Trying(4), Failed(5, 0.5), Waiting(4, 1, 5.05), (WakeAt(5.05),)),
    ("a further failure", Trying(4, 2), Failed(5, 0.5), Waiting(4, 3, 5.2), (WakeAt(5.2),)),
    ("the pause is capped", Trying(4, 2000), Failed(5, 0.5), Waiting(4, 2001, 6), (WakeAt(6.0),)),
    ("what was due before stands", Trying(4, 2, 5.1), Failed(5, 0.5), Waiting(4, 3, 5.1), (WakeAt(5.1),)),
    ("what was due has passed", Trying(4, 2, 4.9), Failed(5, 0.5), Waiting(4, 3, 5.2), (WakeAt(5.2),)),
    ("a missed chance is taken", Trying(4, 2, None, True), Failed(5, 0.5), Trying(5, 3, 5.2), (Try(),)),
    ("all leave during the try", Trying(4, 2), Deserted(), Trying(4, 2), (UNDER_WAY,)),
    ("a call wakes at once", Waiting(4, 3, 5.4), Called(5), Trying(5, 3, 5.4), (Try(),)),
    ("a call soon after a try", Waiting(4.8, 3, 6), Called(5), Waiting(4.8, 3, 6, 5.3), (WakeAt(5.3),)),
    ("a second call joins it", Waiting(4.8, 3, 6, 5.3), Called(5.1), Waiting(4.8, 3, 6, 5.3), ()),
    ("the try that is due is sooner", Waiting(4.8, 3, 5.2), Called(5), Waiting(4.8, 3, 5.2), ()),
    ("a chance wakes at once", Waiting(4.9, 3, 6, 5.4), ChanceCame(FREED, 5), Trying(5, 3, 6), (Try(),)),
    ("starting over wakes at once", Waiting(4.9, 3, 6, 5.4), StartedOver(5), Trying(5, 0, 6), (Try(),)),
    ("it is due", Waiting(4, 3, 5), TimeCame(5), Trying(5, 3, 5), (Try(),)),
    ("a call's time comes", Waiting(4, 3, 6, 4.5), TimeCame(4.5), Trying(4.5, 3, 6), (Try(),)),
    ("too early", Waiting(4, 3, 6, 5.5), TimeCame(5), Waiting(4, 3, 6, 5.5), (WakeAt(5.5),)),
    ("all have left", Waiting(4, 3, 6), Deserted(), ASLEEP, (LetGo(),)),
    ("an end of no try, in a pause", Waiting(4, 3, 6), Settled(), Waiting(4, 3, 6), (NO_TRY,)),
    ("a failure of no try, in a pause", Waiting(4, 3, 6), Failed(5, 0.5), Waiting(4, 3, 6), (NO_TRY,)),
]
"""(what it is, state, signal, next state, orders)"""


def test_R221_every_state_has_an_outcome_for_every_signal() -> None:
    wanted = {(state, signal) for state in get_args(State) for signal in get_args(Signal)}
    assert {(type(state), type(signal)) for _, state, signal, _, _ in CELLS} == wanted


@pytest.mark.parametrize(("state", "signal", "next_state", "orders"), [pytest.param(*c[1:], id=c[0]) for c in CELLS])
def test_R221_the_outcome_of_each_cell(
    state: State, signal: Signal, next_state: State, orders: tuple[Order, ...]
) -> None:
    there, said = step(state, signal, LIMITS)
    assert there == next_state or _is_close(there, next_state)
    assert [type(order) for order in said] == [type(order) for order in orders]
    for order, expected in zip(said, orders, strict=True):
        assert order == expected or (
            isinstance(order, WakeAt) and isinstance(expected, WakeAt) and order.at == pytest.approx(expected.at)
        )


def _is_close(one: State, other: State) -> bool:
    if isinstance(one, Waiting) and isinstance(other, Waiting):
        return (one.tried, one.failures) == (other.tried, other.failures) and one.wakes_at == pytest.approx(
            other.wakes_at
        )
    if isinstance(one, Trying) and isinstance(other, Trying):
        return (one.began, one.failures, one.again) == (other.began, other.failures, other.again) and (
            one.due == pytest.approx(other.due)
        )
    return False


@pytest.mark.parametrize("why", list(Chance))
def test_R204_each_kind_of_chance_is_a_try_at_once(why: Chance) -> None:
    state, orders = step(Waiting(4.99, 7, 6), ChanceCame(why, 5), LIMITS)
    assert (state, orders) == (Trying(5, 7, 6), (Try(),))


HASTENING = st.one_of(
    st.just("call"), st.just("chance"), st.just("time"), st.tuples(st.just("failed"), st.floats(0, 0.999))
)


@given(st.lists(st.tuples(st.floats(0.0, 0.4), HASTENING), max_size=60))
def test_R202_R203_R210_no_signal_puts_a_try_off_or_counts_as_a_failure(
    story: list[tuple[float, str | tuple[str, float]]],
) -> None:
    """Whatever comes, a time that was set is kept or brought forward until a try has failed, and only that counts."""
    now = 0.0
    state, _ = step(ASLEEP, Called(now), LIMITS)
    for pause, what in story:
        now += pause
        signal: Signal
        match what:
            case "call":
                signal = Called(now)
            case "chance":
                signal = ChanceCame(Chance.MEMBERS_CHANGED, now)
            case "time":
                signal = TimeCame(now)
            case _:
                signal = Failed(now, float(what[1]))
        before = state
        state, orders = step(state, signal, LIMITS)
        assert not isinstance(before, Asleep)
        assert not isinstance(state, Asleep)
        if isinstance(before, Trying) and isinstance(signal, Failed):
            assert state.failures == before.failures + 1
            if before.due is not None and before.due > now:
                assert state.due == before.due  # the time that was set stands, though another try has failed meanwhile
        else:
            assert state.failures == before.failures
        if isinstance(before, Waiting) and isinstance(state, Waiting):
            assert state.wakes_at <= before.wakes_at
            assert state.due == before.due
        if isinstance(before, Waiting) and isinstance(state, Trying):
            assert state.due == before.due
            assert Try() in orders


def test_R201_R208_a_burst_of_calls_is_one_try_and_a_storm_of_them_no_more_than_two_a_second() -> None:
    """Calls every 10 ms for a minute; each try takes 5 ms and fails."""
    rng = random.Random(1)
    tries: list[float] = []
    state: State = ASLEEP
    wakes_at = ends_at = float("inf")
    for millisecond in range(60_000):
        now = millisecond / 1000
        signals: list[Signal] = []
        if now >= ends_at:
            signals.append(Failed(now, rng.random()))
            ends_at = float("inf")
        if now >= wakes_at:
            signals.append(TimeCame(now))
            wakes_at = float("inf")
        if millisecond % 10 == 0:
            signals.append(Called(now))
        for signal in signals:
            state, orders = step(state, signal, LIMITS)
            for order in orders:
                match order:
                    case Try():
                        tries.append(now)
                        ends_at, wakes_at = now + 0.005, float("inf")
                    case WakeAt(at):
                        wakes_at = at
                    case _:
                        pytest.fail(f"{order} while {state}")
    gaps = [later - earlier for earlier, later in pairwise(tries)]
    assert len(tries) <= 60 * 3 + 5  # one for its calls every half second, and one that was due meanwhile
    assert max(gaps) <= LIMITS.call_wakes_every_s + 0.002


def test_R212_no_pause_is_longer_than_a_second_and_a_half() -> None:
    longest = 0.0
    state: State = Trying(0.0)
    for _ in range(100):
        assert isinstance(state, Trying)
        failed, _ = step(state, Failed(0.0, 0.999999), LIMITS)
        assert isinstance(failed, Waiting)
        longest = max(longest, failed.due)
        state = Trying(0.0, failed.failures)
    assert longest == pytest.approx(1.5)


def test_R218_what_was_given_up_is_tried_at_once_by_the_next_call_and_counts_anew() -> None:
    state, orders = step(Waiting(4, 12, 6), Deserted(), LIMITS)
    assert (state, orders) == (ASLEEP, (LetGo(),))
    state, orders = step(state, Called(5), LIMITS)
    assert (state, orders) == (Trying(5), (Try(),))
