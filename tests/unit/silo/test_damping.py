"""Which grains are left alone after failures, and for how long. S062."""

from __future__ import annotations

from silo.activation.damping import FAILING_MAX, FREE_TRIES, PAUSE_FIRST_S, PAUSE_LAST_S, Damping
from silo.directory.addresses import GrainId

SICK, OTHER = GrainId("room", "sick"), GrainId("room", "other")


def pause_s(damping: Damping, grain: GrainId, now: float) -> float:
    refusal = damping.refusal(grain, now)
    return 0.0 if refusal is None else refusal[1]


def test_S062_the_first_failures_cost_no_pause_and_each_later_one_twice_the_last_up_to_a_bound() -> None:
    damping = Damping()
    pauses: list[float] = []
    for _ in range(FREE_TRIES + 60):
        damping.failed(SICK, "ValueError: no", now=100.0)
        pauses.append(pause_s(damping, SICK, 100.0))
    assert pauses[:FREE_TRIES] == [0.0] * FREE_TRIES
    assert [round(each, 6) for each in pauses[FREE_TRIES : FREE_TRIES + 3]] == [
        PAUSE_FIRST_S,
        2 * PAUSE_FIRST_S,
        4 * PAUSE_FIRST_S,
    ]
    assert pauses[-1] == PAUSE_LAST_S
    assert pause_s(damping, OTHER, 100.0) == 0.0


def test_a_pause_ends_and_a_refusal_says_why_and_until_when() -> None:
    damping = Damping()
    for _ in range(FREE_TRIES + 1):
        damping.failed(SICK, "ValueError: no", now=100.0)
    refusal = damping.refusal(SICK, 100.0)
    assert refusal is not None
    assert refusal[0] == (
        f"room/sick: it failed to start {FREE_TRIES + 1} times in a row, at last with ValueError: no;"
        f" it is tried again in {PAUSE_FIRST_S} s"
    )
    assert damping.refusal(SICK, 100.0 + PAUSE_FIRST_S) is None


def test_a_start_that_succeeds_forgives() -> None:
    damping = Damping()
    for _ in range(FREE_TRIES + 1):
        damping.failed(SICK, "no", now=0.0)
    damping.started(SICK)
    assert (damping.refusal(SICK, 0.0), len(damping)) == (None, 0)


def test_only_so_many_failing_grains_are_remembered() -> None:
    damping = Damping()
    for number in range(FAILING_MAX + 10):
        damping.failed(GrainId("room", str(number)), "no", now=0.0)
    assert len(damping) == FAILING_MAX
