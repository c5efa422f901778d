"""What a silo makes of each event in each phase of a bucket: the whole table."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from silo.directory.settling import (
    AwaitRegistrations,
    BucketSettling,
    Claimed,
    Doubted,
    Drained,
    Event,
    Needed,
    Open,
    Order,
    Phase,
    Seen,
    SendClaim,
)

ANOTHER, SAME = "another", "life"
P = Phase


def in_phase(phase: Phase) -> BucketSettling:
    """A bucket that has come to this phase by the shortest way; its life is SAME where one is known."""
    ways: dict[Phase, tuple[Event, ...]] = {
        P.UNKNOWN: (),
        P.DRAINING: (Needed(),),
        P.CLAIMING: (Needed(), Drained()),
        P.CLAIMED: (Needed(), Drained(), Claimed(SAME, False)),
        P.SETTLED: (Needed(), Drained(), Claimed(SAME, True)),
    }
    bucket = BucketSettling()
    for event in ways[phase]:
        bucket.on(event)
    assert bucket.phase is phase
    return bucket


MOVES: dict[tuple[Phase, Event], tuple[Phase, list[Order]]] = {
    (P.UNKNOWN, Needed()): (P.DRAINING, [AwaitRegistrations()]),
    (P.UNKNOWN, Doubted()): (P.DRAINING, [AwaitRegistrations()]),
    (P.UNKNOWN, Doubted(is_over=True)): (P.DRAINING, [AwaitRegistrations()]),
    (P.DRAINING, Drained()): (P.CLAIMING, [SendClaim("")]),
    (P.CLAIMING, Claimed(SAME, False)): (P.CLAIMED, []),
    (P.CLAIMING, Claimed(SAME, True)): (P.SETTLED, [Open()]),
    (P.CLAIMED, Doubted()): (P.DRAINING, [AwaitRegistrations()]),
    (P.CLAIMED, Doubted(is_over=True)): (P.DRAINING, [AwaitRegistrations()]),
    (P.CLAIMED, Seen(SAME, True)): (P.SETTLED, [Open()]),
    (P.CLAIMED, Seen(ANOTHER, False)): (P.DRAINING, [AwaitRegistrations()]),
    (P.CLAIMED, Seen(ANOTHER, True)): (P.DRAINING, [AwaitRegistrations()]),
    (P.CLAIMED, Seen("", False)): (P.DRAINING, [AwaitRegistrations()]),
    (P.SETTLED, Doubted()): (P.DRAINING, [AwaitRegistrations()]),
    (P.SETTLED, Doubted(is_over=True)): (P.DRAINING, [AwaitRegistrations()]),
    (P.SETTLED, Seen(ANOTHER, False)): (P.DRAINING, [AwaitRegistrations()]),
    (P.SETTLED, Seen(ANOTHER, True)): (P.DRAINING, [AwaitRegistrations()]),
    (P.SETTLED, Seen("", False)): (P.DRAINING, [AwaitRegistrations()]),
}
"""Every pair that changes something. All others change nothing."""
EVENTS: list[Event] = [
    Needed(),
    Doubted(),
    Doubted(is_over=True),
    Drained(),
    Claimed(SAME, False),
    Claimed(SAME, True),
    Seen(SAME, False),
    Seen(SAME, True),
    Seen(ANOTHER, False),
    Seen(ANOTHER, True),
    Seen("", False),
]


@pytest.mark.parametrize("event", EVENTS, ids=str)
@pytest.mark.parametrize("phase", Phase)
def test_R434_what_follows_from_each_event_in_each_phase(phase: Phase, event: Event) -> None:
    bucket = in_phase(phase)
    after, orders = MOVES.get((phase, event), (phase, []))
    assert bucket.on(event) == orders
    assert bucket.phase is after


@pytest.mark.parametrize("phase", [P.CLAIMED, P.SETTLED])
@pytest.mark.parametrize(("is_over", "over"), [(True, SAME), (False, "")])
def test_R434_a_claim_says_that_a_life_is_over_where_the_store_came_back_as_it_was_earlier(
    phase: Phase, is_over: bool, over: str
) -> None:
    bucket = in_phase(phase)
    bucket.on(Doubted(is_over))
    assert bucket.on(Drained()) == [SendClaim(over)]


@pytest.mark.parametrize("doubts", [[True], [True, False], [False, True], [False]])
def test_R434_doubt_that_comes_while_a_claim_is_out_has_it_claimed_once_more(doubts: list[bool]) -> None:
    bucket = in_phase(P.CLAIMING)
    for is_over in doubts:
        assert bucket.on(Doubted(is_over)) == []
    assert bucket.on(Claimed(SAME, True)) == [AwaitRegistrations()], "not open, though it is settled for the others"
    assert bucket.on(Drained()) == [SendClaim(SAME if any(doubts) else "")]
    assert bucket.on(Claimed(SAME, True)) == [Open()], "the doubt was for one claim"


@given(st.lists(st.sampled_from(EVENTS), max_size=60))
def test_R434_registrations_may_go_out_only_after_a_claim_that_came_after_the_last_doubt(events: list[Event]) -> None:
    bucket = BucketSettling()
    owed = 0
    """Claims that are out: never more than one."""
    is_doubted = True
    for event in events:
        if isinstance(event, Claimed) and not owed:
            continue  # an answer to nothing
        claimed = isinstance(event, Claimed) and bucket.phase is P.CLAIMING
        orders = bucket.on(event)
        owed += sum(isinstance(order, SendClaim) for order in orders) - claimed
        if isinstance(event, Doubted) and bucket.phase is not P.UNKNOWN:
            is_doubted = True
        elif claimed:
            is_doubted = bucket.phase is P.DRAINING
        assert owed == (bucket.phase is P.CLAIMING)
        assert not (bucket.is_settled and is_doubted)
