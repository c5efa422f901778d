"""The verdict counts each kind of violation under its name, and a run without any is good."""

from __future__ import annotations

import pytest

from silo.testing.history import Violation
from silo.testing.witness import Ended, Event, What
from tests.chaos.schedule import Act
from tests.chaos.verdict import COUNTS, Verdict, judge
from tests.chaos.vitals import Vitals, leaks, most

A, B = "silo-a@1", "silo-b@1"


def at(*moments: Event) -> list[Event]:
    """The events, a millisecond apart."""
    return [
        Event(
            what=event.what,
            at=number / 1000,
            grain=event.grain or "g",
            activation=event.activation,
            silo=event.silo,
            call=event.call,
            caller=event.caller,
            number=event.number,
            deadline_s=event.deadline_s,
            outcome=event.outcome,
            value=event.value,
            because=event.because,
        )
        for number, event in enumerate(moments)
    ]


def opened(activation: str, silo: str, value: int = 0, because: str = "call") -> Event:
    return Event(what=What.OPENED, at=0, activation=activation, silo=silo, value=value, because=because)


def sent(call: str, number: int) -> Event:
    return Event(what=What.CALL_SENT, at=0, call=call, caller="c", number=number, deadline_s=5.0)


def started(call: str, activation: str, silo: str) -> Event:
    return Event(what=What.TURN_STARTED, at=0, call=call, activation=activation, silo=silo)


def turned(call: str, activation: str, silo: str, value: int) -> Event:
    return Event(what=What.TURN_ENDED, at=0, call=call, activation=activation, silo=silo, value=value)


def ended(call: str, outcome: Ended, value: int | None = None) -> Event:
    return Event(what=What.CALL_ENDED, at=0, call=call, outcome=outcome, value=value)


def turn(call: str, number: int, activation: str, silo: str, value: int) -> list[Event]:
    """One call that is answered."""
    return [
        sent(call, number),
        started(call, activation, silo),
        turned(call, activation, silo, value),
        ended(call, Ended.VALUE, value),
    ]


GOOD = [
    opened("a", A),
    *turn("1", 1, "a", A, 1),
    Event(what=What.CLOSED, at=0, activation="a", silo=A, because="migrating"),
    Event(what=What.DEHYDRATED, at=0, activation="a", silo=A, value=1),
    Event(what=What.REHYDRATED, at=0, value=1),
    opened("b", B, 1, "migration"),
    *turn("2", 2, "b", B, 2),
]
CLOSED_AT_SHUTDOWN = Event(what=What.CLOSED, at=0, activation="a", silo=A, because="shutting_down")


def verdict_on(events: list[Event], *violations: Violation) -> Verdict:
    return judge(at(*events), violations, 0.0, {Act.KILL: 2, Act.ROLL: 1}, {"moved": 1}, {"silos_lost": 1})


def test_a_history_that_keeps_the_promises_is_good_and_counted() -> None:
    verdict = verdict_on(GOOD)
    assert verdict.is_good
    assert (verdict.counts["migrations"], verdict.counts["faults"], verdict.counts["silos_lost"]) == (1, 2, 1)
    assert verdict.counts["calls"][Ended.VALUE] == 2
    assert [verdict.counts[name] for name in COUNTS.values()] == [0] * len(COUNTS)


@pytest.mark.parametrize(
    ("name", "events"),
    [
        ("overlaps", [*GOOD, *turn("3", 3, "a", A, 3)]),
        ("lost", [opened("a", A), *turn("1", 1, "a", A, 1), opened("b", B, 0), *turn("2", 2, "b", B, 1)]),
        ("lost", [opened("a", A), *turn("1", 1, "a", A, 1), CLOSED_AT_SHUTDOWN]),
        ("deactivated", [opened("a", A), opened("b", B)]),
        ("repeated", [*GOOD, started("2", "b", B), turned("2", "b", B, 3)]),
        ("repeated", [opened("a", A), sent("1", 1), ended("1", Ended.VALUE, 1)]),
        (
            "repeated",
            [
                opened("a", A),
                sent("1", 1),
                ended("1", Ended.NOT_EXECUTED),
                started("1", "a", A),
                turned("1", "a", A, 1),
            ],
        ),
        ("overdue", [*GOOD, sent("3", 3)]),
        ("unanswered", [*GOOD, sent("3", 3), ended("3", Ended.OUTCOME_UNKNOWN)]),
        ("unanswered", [*GOOD, sent("3", 3), ended("3", Ended.APPLICATION_ERROR)]),
        (
            "disorder",
            [
                opened("a", A),
                sent("1", 1),
                *turn("2", 2, "a", A, 1),
                started("1", "a", A),
                turned("1", "a", A, 2),
                ended("1", Ended.VALUE, 2),
            ],
        ),
    ],
)
def test_each_kind_of_violation_is_found_and_counted_under_its_name(name: str, events: list[Event]) -> None:
    verdict = verdict_on(events)
    assert not verdict.is_good
    assert verdict.counts[name] >= 1


def test_what_the_bench_itself_finds_is_counted_too() -> None:
    for rule in ("directory true", "no leak", "process runs", "moves end"):
        assert verdict_on(GOOD, Violation(rule, "silo-a", "as found")).counts[COUNTS[rule]] == 1


def test_state_that_dies_with_a_killed_silo_is_no_loss() -> None:
    killed = Event(what=What.SILO_LOST, at=0, silo=A)
    assert verdict_on(
        [opened("a", A), *turn("1", 1, "a", A, 1), killed, opened("b", B), *turn("2", 2, "b", B, 1)]
    ).is_good


def test_what_a_process_keeps_is_a_leak_and_what_comes_and_goes_is_none() -> None:
    before = most([Vitals(10, 20, 30, 1000, {"a": 10}), Vitals(12, 18, 30, 900, {"a": 11, "b": 1})])
    assert (before.tasks, before.threads, before.tasks_by_name) == (12, 20, {"a": 11, "b": 1})
    assert leaks("silo-1", before, Vitals(14, 25, 35, 2000, {"a": 13, "b": 1})) == []
    found = leaks("silo-1", before, Vitals(112, 120, 130, 1_000_000_000, {"a": 11, "b": 101}))
    assert {violation.rule for violation in found} == {"no leak"}
    assert len(found) == 4
    assert "100 x b" in found[-1].text
