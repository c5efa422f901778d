"""A silo that the table calls dead starts no turn, whatever goes wrong; and each rule that this rests on is needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from silo.directory.addresses import SiloAddress
from silo.directory.lease import LeaseCore, Phase
from silo.directory.lease_events import Answered, Event, GoodbyeAsked, Order, ResignRight, Ticked
from silo.directory.lease_observations import Observation, Observations
from silo.directory.lease_promises import Promises
from silo.directory.lease_settings import LeaseSettings
from silo.directory.membership import Join, Renew, Table, TableAnswer, TableRequest, TableStatus, Verdict
from silo.directory.memory_membership import MemoryMembershipTable
from tests.support.lease_world import World, chaos

WALKS = 150
WALKS_MAX = 400
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


# ---- planted bugs that break safety; those that walks seldom find are left to tests/exploration/membership


class CountsFromReceipt(LeaseCore):
    """The lease counts from when the renewal's answer came, not from when it was sent."""

    def on(self, event: Event, now: float) -> list[Order]:
        if isinstance(event, Answered):
            event = Answered(event.request, now, event.answer)
        return super().on(event, now)


class ObservesFromSending(Observations):
    """Silence counts from half a lease before the answer came: from when the request may have left."""

    def take(self, table: Table, me: SiloAddress | None, now: float) -> None:
        known = dict(self._observed)
        super().take(table, me, now)
        for silo, seen in self._observed.items():
            if known.get(silo) != seen:
                self._observed[silo] = Observation(seen.run, seen.seq, now - self._settings.lease_s / 2)


class KeepsObservations(Observations):
    """A renewal that is seen does not end the silence."""

    def take(self, table: Table, me: SiloAddress | None, now: float) -> None:
        gap, known = now - self.answered_at > self._settings.gap_s, dict(self._observed)
        super().take(table, me, now)
        for silo, seen in self._observed.items():
            if silo in known and not gap:
                self._observed[silo] = Observation(table.run, seen.seq, known[silo].since)


class IgnoresTheRun(Observations):
    """A failover does not end the silence."""

    def take(self, table: Table, me: SiloAddress | None, now: float) -> None:
        super().take(msgspec.structs.replace(table, run="any"), me, now)


class AssentsBlindly(Promises):
    """What was acknowledged or heard does not count."""

    def assent(self, verdict: Verdict, now: float) -> bool:
        return self.bind(verdict, now)


def with_part(name: str, part: Callable[[LeaseSettings], object]) -> type[LeaseCore]:
    """A core one of whose parts has a planted bug."""

    class Planted(LeaseCore):
        def __init__(self, settings: LeaseSettings) -> None:
            super().__init__(settings)
            setattr(self, name, part(settings))

    return Planted


class SaysGoodbyeFirst(LeaseCore):
    """The right ends when the goodbye is answered, not before it is sent."""

    def on(self, event: Event, now: float) -> list[Order]:
        orders = super().on(event, now)
        if isinstance(event, GoodbyeAsked):
            return [order for order in orders if not isinstance(order, ResignRight)]
        return orders


class SlowAfterGrace(LeaseSettings):
    """Without assents, a verdict is given after G."""

    @property
    def wait_alone_s(self) -> float:
        return max(self.grace_s, self.wait_s)


class NoMargin(LeaseSettings):
    """Waiters count no longer than holders."""

    @property
    def wait_s(self) -> float:
        return self.lease_s

    @property
    def wait_alone_s(self) -> float:
        return self.lease_s + self.grace_s


class IgnoresRun(MemoryMembershipTable):
    """The verdict is not bound to the run, and the table goes on in the next one."""

    def carry_out(self, request: TableRequest) -> TableAnswer:
        self._run_seen = self._run
        if isinstance(request, Verdict):
            request = msgspec.structs.replace(request, run=self.table.run)
        return super().carry_out(request)


class JoinsTwice(MemoryMembershipTable):
    """A join that is repeated counts as another join."""

    def carry_out(self, request: TableRequest) -> TableAnswer:
        answer = super().carry_out(request)
        again = isinstance(request, Join) and answer.status is TableStatus.STALE
        return TableAnswer(TableStatus.OK, answer.table) if again else answer


PLANTED: dict[str, Callable[[], dict[str, Any]]] = {
    "the lease counts from receipt": lambda: {"core_type": CountsFromReceipt},
    "silence counts from sending": lambda: {"core_type": with_part("observations", ObservesFromSending)},
    "a renewal does not end the silence": lambda: {"core_type": with_part("observations", KeepsObservations)},
    "assents are given blindly": lambda: {"core_type": with_part("promises", AssentsBlindly)},
    "slow verdict after G": lambda: {"settings": SlowAfterGrace},
    "no margin for drift": lambda: {"settings": NoMargin},
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
    world.isolate(victim)
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
    world.isolate(victim)
    world.table.fail_over(before)
    world.run_for(40)
    return world


def test_a_failover_that_lost_a_renewal_ends_all_silence_since_the_run_is_another() -> None:
    world = lost_renewal()
    assert world.violation is None
    assert world.deaths, "the victim dies all the same, later"
    assert lost_renewal(core_type=with_part("observations", IgnoresTheRun), table=IgnoresRun()).violation


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
    world.isolate(victim)
    world.run_for(20)
    assert victim.address in world.deaths or world.violation
    return world


def test_a_join_sent_again_gives_no_lease_of_its_own() -> None:
    assert joined_twice(MemoryMembershipTable()).violation is None
    assert joined_twice(JoinsTwice()).violation
