"""The receiver has the last word: it is never filled beyond its target, whatever donors believe."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from silo.directory.addresses import SiloAddress
from silo.migration.rebalancing.loads import Measure
from silo.migration.rebalancing.plan import make_plan
from silo.migration.rebalancing.reservations import RESERVED_S, Asked, Granted, Reservations
from tests.unit.migration.rebalancing.world import address, snapshot

A, B = address(0), address(1)


def asked(amount: int, *, plan: str = "p", version: int = 1, donor: SiloAddress = A, target: int = 100) -> Asked:
    return Asked(plan, version, donor, amount, target)


def test_it_grants_what_fits_beside_what_is_hosted_and_promised() -> None:
    book = Reservations()
    assert book.ask(asked(30), 50, 0.0) == Granted("p", 30)
    second = book.ask(asked(30, donor=B), 50, 0.0)
    assert second.amount == 20
    assert "room for 20 below 100" in second.why
    assert book.ask(asked(1, donor=address(2)), 50, 0.0).amount == 0


def test_R509_asking_again_by_the_same_plan_grants_nothing_twice() -> None:
    book = Reservations()
    book.ask(asked(30), 0, 0.0)
    assert book.ask(asked(30), 0, 1.0).amount == 30
    assert book.reserved(1.0) == 30
    book.settle("p", A, 30)
    assert book.ask(asked(30), 30, 2.0).amount == 0


def test_a_plan_of_older_loads_gets_nothing() -> None:
    book = Reservations()
    book.ask(asked(10, version=8), 0, 0.0)
    late = book.ask(asked(10, plan="old", version=7, donor=B), 0, 0.0)
    assert late.amount == 0
    assert "of loads 7, and 8 have been planned from" in late.why


def test_room_is_kept_for_a_time_and_what_arrives_gives_it_back() -> None:
    book = Reservations()
    book.ask(asked(60), 0, 0.0)
    book.settle("p", A, 25)
    assert book.reserved(1.0) == 35
    assert book.reserved(RESERVED_S) == 0
    assert book.ask(asked(80, plan="q", version=2, donor=B), 20, RESERVED_S).amount == 80
    book.settle("p", A, 1)  # late, and of no harm
    assert book.reserved(RESERVED_S) == 80


@dataclass
class Donor:
    silo: SiloAddress
    counts: list[int]
    """The loads as it last saw them."""
    version: int
    granted: dict[str, int] = field(default_factory=dict[str, int])


@pytest.mark.parametrize("seed", range(6))
def test_R335_ten_overloaded_silos_never_fill_the_cold_one_above_the_threshold(seed: int) -> None:
    """Each plans for itself from loads of its own age, and sends what it was granted, late and in any order."""
    rng = random.Random(seed)
    counts = [rng.randrange(150, 400) for _ in range(10)] + [0]
    cold, mean = address(10), sum(counts) / 11
    donors = [Donor(address(number), list(counts), 0) for number in range(10)]
    book, version, highest = Reservations(), 0, 0
    for second in range(200):
        rng.shuffle(donors)
        for donor in donors:
            place = int(donor.silo.endpoint.split(":")[0].split(".")[-1])
            if rng.random() < 0.3:  # a report reaches it
                version += 1
                donor.counts, donor.version = list(counts), version
            plan = make_plan(
                snapshot(donor.counts, donor.version), Measure.COUNT, budget_grains=rng.choice([5, 50, 500])
            )
            target = plan.target_of(cold)
            assert target is not None
            amount = sum(each.amount for each in plan.from_donor(donor.silo) if each.receiver == cold)
            if amount and plan.id not in donor.granted:
                wish = Asked(plan.id, donor.version, donor.silo, amount, target)
                donor.granted[plan.id] = book.ask(wish, counts[10], float(second)).amount
            for name, left in list(donor.granted.items()):
                coming = min(left, rng.randrange(0, 20), counts[place])
                donor.granted[name] -= coming
                counts[place] -= coming
                counts[10] += coming
                book.settle(name, donor.silo, coming)
            highest = max(highest, counts[10])
    assert highest <= 1.1 * mean
    assert counts[10] > 0.9 * mean


@given(
    orders=st.lists(
        st.tuples(
            st.sampled_from(["ask", "arrive", "late"]),
            st.integers(0, 3),
            st.integers(0, 60),
            st.integers(0, 4),
        ),
        max_size=60,
    )
)
@settings(max_examples=60, deadline=None)
def test_what_is_hosted_and_promised_is_never_above_the_target(orders: list[tuple[str, int, int, int]]) -> None:
    book, hosted, now = Reservations(), 0, 0.0
    open_grants: dict[tuple[str, SiloAddress], int] = {}
    for what, donor, amount, version in orders:
        now += 1.0
        key = (f"p{version}", address(donor))
        if what == "ask":
            got = book.ask(Asked(key[0], version, key[1], amount, 100), hosted, now).amount
            assert got <= max(amount, open_grants.get(key, 0))
            open_grants[key] = got
        elif what == "arrive" and (here := min(amount, open_grants.get(key, 0))):
            hosted += here
            open_grants[key] -= here
            book.settle(key[0], key[1], here)
        assert hosted + book.reserved(now) <= 100
