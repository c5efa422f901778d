"""A cordoned silo serves what it has and takes nothing new. R-204, R-325, R-478."""

from __future__ import annotations

import asyncio

import pytest

from silo.directory.addresses import SiloAddress
from silo.directory.errors import GrainUnplaceable
from silo.host import Silo
from silo.migration.outcome import MoveStatus
from silo.placement.decision import Decision
from silo.reference import grain_id, with_hint, with_timeout
from silo.routing.resolution import Resolver
from silo.routing.waking import Chance
from silo.settings import PlacementSettings
from tests.cluster.clusters import Cluster
from tests.cluster.grains import Ledger, Witness

pytestmark = pytest.mark.real

AT_ONCE_S = 0.5
"""On either stand; under virtual time it is much less."""


async def cordon(cluster: Cluster, silo: Silo, *, cordoned: bool = True) -> None:
    """Give the order, and wait until every silo sees it."""
    await silo.runtime.cordon(cordoned)

    def seen() -> bool:
        rows = [each.view.row(silo.address) for each in cluster.silos.values()]
        return all(row is not None and row.cordoned is cordoned for row in rows)

    await cluster.seen(seen)


async def on(cluster: Cluster, silo: Silo, count: int = 2) -> list[Ledger]:
    """Ledgers that are active on this silo."""
    client = await cluster.client()
    ledgers = [
        with_hint(client.grain(Ledger, f"on {silo.name} {number}"), str(silo.address)) for number in range(count)
    ]
    for ledger in ledgers:
        await ledger.write("first")
    assert {grain_id(ledger) for ledger in ledgers} <= set(silo.activations())
    return ledgers


@pytest.mark.parametrize("policy", ["random", "prefer-local", "consistent-hash", "activation-count"])
async def test_R325_a_cordoned_silo_serves_what_it_has_and_takes_nothing_new(cluster: Cluster, policy: str) -> None:
    placement = PlacementSettings(policy=policy)
    a, b = await cluster.start("a", "b", kinds=(Ledger,), placement=placement)
    there = await on(cluster, a)
    await cordon(cluster, a)
    before = set(a.activations())
    for number in range(20):
        await a.grain(Ledger, f"new {number}").write("first")
    assert set(a.activations()) == before
    assert len(b.activations()) == 20
    for ledger in there:
        await ledger.write("second")
        assert await ledger.read() == ["first", "second"]
    assert set(a.activations()) == before


async def test_R325_with_every_silo_cordoned_a_new_grain_is_unplaceable_and_the_error_says_why(
    cluster: Cluster,
) -> None:
    a, b = await cluster.start("a", "b", kinds=(Ledger,))
    await cordon(cluster, a)
    await cordon(cluster, b)
    client = await cluster.client()
    with pytest.raises(GrainUnplaceable) as refused:
        await with_timeout(client.grain(Ledger, "k"), 1.0).read()
    for silo in (a, b):
        assert f"{silo.name} ({silo.address}): it is cordoned" in str(refused.value)
    assert refused.value.retry_after_s is not None


async def test_R204_what_waits_for_a_place_has_it_as_soon_as_a_silo_is_uncordoned(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    (a,) = await cluster.start("a", kinds=(Witness,))
    (b,) = await cluster.start("b", kinds=(Ledger,))
    await cordon(cluster, b)
    told: list[Chance] = []
    on_chance = Resolver.on_chance

    def hear(resolver: Resolver, why: Chance) -> None:
        told.append(why)
        on_chance(resolver, why)

    monkeypatch.setattr(Resolver, "on_chance", hear)
    calls = [asyncio.create_task(with_timeout(a.grain(Ledger, f"k{n}"), 60.0).read()) for n in range(20)]
    await asyncio.sleep(2.0)
    assert not any(call.done() for call in calls)
    began = asyncio.get_running_loop().time()
    await b.runtime.cordon(False)
    assert await asyncio.gather(*calls) == [[]] * 20
    assert asyncio.get_running_loop().time() - began < AT_ONCE_S
    assert set(told) - {Chance.DIRECTORY_SETTLED} == {Chance.UNCORDONED}, "its joining is another matter"


async def test_an_order_that_is_given_again_changes_nothing(cluster: Cluster) -> None:
    (a,) = await cluster.start("a", kinds=(Ledger,))
    for cordoned in (False, True, True, False, False):
        await a.runtime.cordon(cordoned)
        assert a.view.takes_placements(a.address) is not cordoned
        version = a.view.version
        await a.runtime.cordon(cordoned)
        assert (await a.runtime.membership.refresh()).version == version


async def test_R424_a_hint_to_a_cordoned_silo_is_not_followed_and_the_decision_says_why(cluster: Cluster) -> None:
    a, b = await cluster.start("a", "b", kinds=(Ledger,))
    await cordon(cluster, b)
    await with_hint(a.grain(Ledger, "k"), "b").write("first")
    assert grain_id(a.grain(Ledger, "k")) in a.activations()
    decision = a.runtime.placement.choose(grain_id(a.grain(Ledger, "j")), a.view, hint=b.address)
    assert (decision.silo, decision.notes) == (
        a.address,
        (f"the hint {b.address} was not followed: it is cordoned",),
    )


async def test_R478_a_move_to_a_cordoned_silo_is_refused_with_the_reason_until_it_is_uncordoned(
    cluster: Cluster,
) -> None:
    a, b = await cluster.start("a", "b", kinds=(Ledger,))
    (ledger, other) = await on(cluster, a)
    await cordon(cluster, b)
    client = await cluster.client()
    for grain in (ledger, other):
        outcome = await client.migrate(grain, to="b", force=True)
        assert (outcome.status, outcome.why) == (MoveStatus.REFUSED, "b is cordoned: it takes no grains")
    nowhere = await client.migrate(ledger)
    assert nowhere.status is MoveStatus.REFUSED
    assert "it is cordoned" in nowhere.why
    await b.runtime.cordon(False)
    assert (await client.migrate(ledger, to="b")).moved
    assert await ledger.read() == ["first"]


async def test_R478_the_target_itself_refuses_where_the_source_has_not_seen_the_cordon(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = await cluster.start("a", "b", kinds=(Ledger,))
    (ledger, _) = await on(cluster, a)

    def allowed(*_: object) -> str:
        return ""

    monkeypatch.setattr(a.runtime.moves, "_why_not", allowed)  # as it judged before it saw it
    await cordon(cluster, b)
    outcome = await (await cluster.client()).migrate(ledger, to="b")
    assert outcome.status is MoveStatus.REFUSED
    assert "b is cordoned" in outcome.why
    await ledger.write("second")
    assert await ledger.read() == ["first", "second"]


async def test_a_grain_that_is_sent_to_a_silo_which_was_cordoned_meanwhile_is_placed_elsewhere(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = await cluster.start("a", "b", kinds=(Ledger,))
    await cordon(cluster, b)
    placement = a.runtime.placement
    choose = placement.choose
    sent: list[SiloAddress] = []

    def by_an_old_view(grain: object, *arguments: object, **options: object) -> Decision:
        decision = choose(grain, *arguments, **options)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - passed on
        if not sent:
            sent.append(b.address)
            return Decision(decision.grain, b.address, decision.policy, decision.source, decision.candidates)
        return decision

    monkeypatch.setattr(placement, "choose", by_an_old_view)
    await a.grain(Ledger, "k").write("first")
    assert sent == [b.address]
    assert b.activations() == []
    assert await a.grain(Ledger, "k").read() == ["first"]


async def test_a_cordoned_silo_stops_as_any_other_and_its_grains_go_elsewhere(cluster: Cluster) -> None:
    a, b = await cluster.start("a", "b", kinds=(Ledger,))
    there = await on(cluster, a)
    await cordon(cluster, a)
    await cluster.stop("a")
    for ledger in there:
        assert await ledger.read() == ["first"]
        assert grain_id(ledger) in b.activations()


async def test_a_restarted_silo_is_another_one_and_takes_placements(cluster: Cluster) -> None:
    (a,) = await cluster.start("a", kinds=(Ledger,))
    await cordon(cluster, a)
    await cluster.stop("a")
    (again,) = await cluster.start("a", kinds=(Ledger,))
    assert again.view.takes_placements(again.address)
    await again.grain(Ledger, "k").write("first")
