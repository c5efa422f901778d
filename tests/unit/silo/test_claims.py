"""What a silo knows of forwarded calls, and what its answers to claims mean. R-412, R-433."""

from __future__ import annotations

import pytest

from silo.directory.addresses import GrainId, SiloAddress
from silo.routing.claims import Verdict, judge
from silo.routing.forwarded_calls import SWEEP_EVERY_S, ForwardedCalls, Key
from silo.wire.frames import ClaimAnswer

A, B = SiloAddress("a:7000", 1), SiloAddress("b:7000", 2)
GRAIN, OTHER = GrainId("ledger", "k"), GrainId("ledger", "other")


@pytest.mark.parametrize(
    ("answer", "age_s", "verdict"),
    [
        pytest.param(ClaimAnswer(1, True), 9.0, Verdict.HELD, id="it has the call"),
        pytest.param(ClaimAnswer(1, True, True, 99.0), 1.0, Verdict.HELD, id="it has the call, whatever else"),
        pytest.param(ClaimAnswer(1, False), 0.0, Verdict.UNKNOWN, id="nothing is known"),
        pytest.param(ClaimAnswer(1, False, True), 9.0, Verdict.NEVER_RAN, id="it waited at the old place"),
        pytest.param(ClaimAnswer(1, False, False, 5.0), 4.9, Verdict.NEVER_RAN, id="sent when the grain was open here"),
        pytest.param(
            ClaimAnswer(1, False, False, 5.0), 4.97, Verdict.UNKNOWN, id="about when it opened: clocks differ"
        ),
        pytest.param(ClaimAnswer(1, False, False, 5.0), 5.1, Verdict.UNKNOWN, id="sent before: the old place ran it?"),
    ],
)
def test_R412_a_call_never_ran_only_where_nobody_can_have_run_it(
    answer: ClaimAnswer, age_s: float, verdict: Verdict
) -> None:
    assert judge(answer, age_s) is verdict


def test_R433_a_call_that_has_come_cannot_be_refused_and_one_that_is_refused_cannot_come() -> None:
    calls = ForwardedCalls(10)
    assert calls.came(Key(A, 1), 5.0, 0.0)
    assert not calls.refuse(Key(A, 1), GRAIN, 5.0, 1.0)
    assert calls.refuse(Key(A, 2), GRAIN, 5.0, 1.0)
    assert calls.refuse(Key(A, 2), GRAIN, 5.0, 1.0)
    assert not calls.came(Key(A, 2), 5.0, 4.9)
    assert calls.came(Key(B, 2), 5.0, 1.0)  # another silo's call of the same number


def test_R433_what_is_refused_goes_along_with_its_grain_until_its_deadline() -> None:
    calls = ForwardedCalls(10)
    calls.refuse(Key(A, 1), GRAIN, 5.0, 0.0)
    calls.refuse(Key(A, 2), OTHER, 5.0, 0.0)
    calls.refuse(Key(A, 3), GRAIN, None, 0.0)
    assert calls.refused_of(GRAIN, 1.0) == [(Key(A, 1), 4.0), (Key(A, 3), None)]
    assert calls.refused_of(GRAIN, 6.0) == [(Key(A, 3), None)]


def test_R433_the_table_is_bounded_and_promises_nothing_of_calls_that_it_had_no_room_for() -> None:
    calls = ForwardedCalls(2)
    for number in range(5):
        assert calls.came(Key(A, number), 10.0, 0.0)
    assert len(calls) == 2
    assert not calls.refuse(Key(A, 4), GRAIN, 10.0, 1.0)  # it came, and the table does not know
    assert not calls.refuse(Key(A, 9), GRAIN, 10.0, 9.9)
    assert calls.refuse(Key(A, 10), GRAIN, 20.0, 10.1)  # all of those are over
    assert calls.refuse(Key(A, 11), GRAIN, 20.0, 10.1)
    assert not calls.refuse(Key(A, 12), GRAIN, 20.0, 10.1)
    assert calls.refuse(Key(A, 12), GRAIN, 30.0, 20.0 + SWEEP_EVERY_S)


def test_R433_calls_without_a_deadline_are_forgotten_with_their_callers_silo() -> None:
    calls = ForwardedCalls(10)
    calls.came(Key(A, 1), None, 0.0)
    calls.refuse(Key(A, 2), GRAIN, None, 0.0)
    calls.came(Key(B, 1), None, 0.0)
    calls.forget(frozenset({A}))
    assert len(calls) == 1
