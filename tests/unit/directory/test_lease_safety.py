"""A silo that the table calls dead starts no turn, whatever goes wrong; and each rule that this rests on is needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from silo.directory.lease import LeaseCore, LeaseSettings, Phase
from silo.directory.lease_events import Answered, Event, GoodbyeAsked, Order, ResignRight, Ticked
from silo.directory.membership import Join, Renew, Table, TableAnswer, TableRequest, TableStatus, Verdict
from silo.directory.memory_membership import MemoryMembershipTable
from tests.support.lease_world import World, chaos

WALKS = 150
WALKS_MAX = 1500
"""After so many walks without a violation a planted bug counts as not found."""


def test_no_silo_starts_a_turn_once_the_table_calls_it_dead() -> None:
    deaths = pauses = 0
    for seed in range(WALKS):
        world = chaos(seed)
        assert world.violation is None, f"chaos({seed}): {world.violation}"
        deaths += len(world.deaths)
        pauses += len(world.pauses_s)
    assert deaths > WALKS, "walks in which nobody dies prove nothing"
    assert pauses > WALKS, "nor do those in which nobody's lease runs out"


def test_the_same_seed_gives_the_same_walk() -> None:
    one, two = chaos(7), chaos(7)
    assert (one.events, one.deaths, one.table.table) == (two.events, two.deaths, two.table.table)


# ---- planted bugs that break safety


class CountsFromReceipt(LeaseCore):
    """The lease counts from when the renewal's answer came, not from when it was sent."""

    def on(self, event: Event, now: float) -> list[Order]:
        if isinstance(event, Answered):
            event = Answered(event.request, now, event.answer)
        return super().on(event, now)


class ObservesFromSending(LeaseCore):
    """Silence counts from when the own request left, not from when its answer came."""

    sent_at = 0.0

    def on(self, event: Event, now: float) -> list[Order]:
        if isinstance(event, Answered):
            self.sent_at = event.sent_at
        return super().on(event, now)

    def _observe(self, table: Table, now: float, *, gap: bool) -> None:
        super()._observe(table, self.sent_at, gap=gap)


class KeepsObservations(LeaseCore):
    """A renewal that is seen does not end the silence."""

    def _observe(self, table: Table, now: float, *, gap: bool) -> None:
        known = self._observed
        super()._observe(table, now, gap=gap)
        if not gap:
            for silo, old in known.items():
                if silo in self._observed:
                    self._observed[silo] = type(old)(table.run, self._observed[silo].seq, old.since)


class IgnoresTheRun(LeaseCore):
    """A failover does not end the silence, and the verdict is not bound to the run."""

    def _observe(self, table: Table, now: float, *, gap: bool) -> None:
        super()._observe(msgspec.structs.replace(table, run="any"), now, gap=gap)


class SaysGoodbyeFirst(LeaseCore):
    """The right ends when the goodbye is answered, not before it is sent."""

    def on(self, event: Event, now: float) -> list[Order]:
        orders = super().on(event, now)
        if isinstance(event, GoodbyeAsked):
            return [order for order in orders if not isinstance(order, ResignRight)]
        return orders


class NoMargin(LeaseSettings):
    """Waiters count no longer than holders."""

    @property
    def wait_s(self) -> float:
        return self.lease_s


class Careless(MemoryMembershipTable):
    """A table that does not look at what its class attribute names."""

    ignores = ""

    def carry_out(self, request: TableRequest) -> TableAnswer:
        row = self._rows.get(request.target) if isinstance(request, Verdict) else None
        if row is not None and isinstance(request, Verdict):
            if self.ignores == "seq":
                request = msgspec.structs.replace(request, seq=row.seq)
            if self.ignores == "run":
                request = msgspec.structs.replace(request, run=self._run)
        return super().carry_out(request)


class IgnoresSeq(Careless):
    ignores = "seq"


class IgnoresRun(Careless):
    ignores = "run"


class JoinsTwice(MemoryMembershipTable):
    """A join that is repeated counts as another join."""

    def carry_out(self, request: TableRequest) -> TableAnswer:
        answer = super().carry_out(request)
        again = isinstance(request, Join) and answer.status is TableStatus.STALE
        return TableAnswer(TableStatus.OK, answer.table) if again else answer


PLANTED: dict[str, Callable[[], dict[str, Any]]] = {
    "the lease counts from receipt": lambda: {"core_type": CountsFromReceipt},
    "silence counts from sending": lambda: {"core_type": ObservesFromSending},
    "a renewal does not end the silence": lambda: {"core_type": KeepsObservations},
    "no margin for drift": lambda: {"settings": NoMargin()},
    "the verdict is not bound to seq": lambda: {"table": IgnoresSeq()},
    "the right outlives the goodbye": lambda: {"core_type": SaysGoodbyeFirst},
}


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_found_by_walking(bug: str) -> None:
    assert any(chaos(seed, **PLANTED[bug]()).violation for seed in range(WALKS_MAX)), f"{bug}: not found"


def lost_renewal(**options: Any) -> World:
    """A failover loses a renewal that gave its silo the right, while the other one looks on."""
    world = World(1, drift=0.0, hints=False, **options)
    victim = world.add()
    world.add()
    world.run_for(10)
    victim.mute = True
    world.run_for(3.9)  # the victim's row has stood still for about this long
    before = world.table.table
    victim.mute = False
    victim.deaf = True  # so that this renewal is its last
    row = next(row for row in before.rows if row.silo == victim.address)
    world.happen(victim, Ticked())
    sent_at = world.clock(victim)
    answer = world.table.carry_out(Renew(victim.address, seen=before.version, prev=row.seq))
    world.happen(victim, Answered(Renew(victim.address, seen=before.version, prev=row.seq), sent_at, answer))
    assert world.holds(victim)
    victim.mute = True
    world.table.fail_over(before)
    world.run_for(20)
    return world


def test_a_failover_that_lost_a_renewal_ends_all_silence_since_the_run_is_another() -> None:
    world = lost_renewal()
    assert world.violation is None
    assert world.deaths, "the victim dies all the same, later"
    assert lost_renewal(core_type=IgnoresTheRun, table=IgnoresRun()).violation


def joined_twice(table: MemoryMembershipTable) -> World:
    """The answers to a join are lost; it is sent again when its row has stood still for long, and then all is lost."""
    world = World(1, drift=0.0, hints=False, table=table)
    world.add()
    world.run_for(2)
    victim = world.add(status=None)
    victim.deaf = True
    world.run_for(4.2)
    victim.deaf = False
    while victim.core.phase is not Phase.MEMBER:
        world.run_for(0.0001)
    victim.mute = True
    world.run_for(20)
    assert victim.address in world.deaths or world.violation
    return world


def test_a_join_sent_again_gives_no_lease_of_its_own() -> None:
    assert joined_twice(MemoryMembershipTable()).violation is None
    assert joined_twice(JoinsTwice()).violation
