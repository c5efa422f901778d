"""Who decides, who may be chosen, and how a decision tells of it."""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TypedDict, Unpack, cast

import pytest

from silo.directory.addresses import GrainId, SiloAddress
from silo.directory.errors import GrainUnplaceable, InvalidSettings, NotExecuted
from silo.directory.membership import EMPTY_VIEW, SiloRow, SiloStatus
from silo.placement.decision import Placement
from silo.placement.filters import Prefer, Require
from silo.placement.nearness import Nearness
from silo.placement.policies import ActivationCountPlacement, ConsistentHashPlacement, RandomPlacement
from silo.placement.policy import AnswerOutsideView, Candidate, PlacementView, PolicyRuntime
from silo.placement.rules import PlacementRule, parse_rule
from tests.unit.placement.world import Always, Silo, address, cluster, grains, row, view_of

ROOM = GrainId.of("room", "lobby")
HERE = address(0)


class Settings(TypedDict, total=False):
    policy: PlacementRule
    type_policies: Mapping[str, PlacementRule]
    force_policies: Mapping[str, PlacementRule]
    declared: Mapping[str, PlacementRule | None]
    is_eligible: Callable[[SiloRow], str | None]
    is_preferred: Callable[[SiloRow], str | None]
    is_free: Callable[[SiloRow], str | None]
    on_chosen: Callable[[GrainId, SiloAddress], None]
    nearness: Nearness


def placement(**settings: Unpack[Settings]) -> Placement:
    return Placement(local=HERE, rng=random.Random(1), **settings)


# Who decides


@pytest.mark.parametrize(
    ("given_levels", "silo", "source"),
    [
        ("hint force declared type cluster", 5, "hint"),
        ("force declared type cluster", 1, "force"),
        ("declared type cluster", 2, "declared"),
        ("type cluster", 3, "type"),
        ("cluster", 4, "cluster"),
    ],
)
def test_R324_R373_R424_precedence_is_hint_force_declared_type_cluster(
    given_levels: str, silo: int, source: str
) -> None:
    levels = given_levels.split()
    settings: Settings = {"policy": Always(address(4))}
    if "force" in levels:
        settings["force_policies"] = {"room": Always(address(1))}
    if "declared" in levels:
        settings["declared"] = {"room": Always(address(2))}
    if "type" in levels:
        settings["type_policies"] = {"room": Always(address(3))}
    hint = address(5) if "hint" in levels else None
    decision = placement(**settings).choose(ROOM, cluster(6), hint=hint)
    assert (decision.silo, decision.source) == (address(silo), source)


def test_R305_R324_random_decides_where_nobody_says_otherwise() -> None:
    decision = placement().choose(ROOM, cluster(6))
    assert (decision.policy, decision.source) == ("random", "default")


def test_a_rule_for_one_kind_does_not_touch_another() -> None:
    decider = placement(type_policies={"other": Always(address(3))}, policy="consistent-hash")
    assert decider.choose(ROOM, cluster(4)).source == "cluster"


def test_R373_an_operator_who_overrides_a_declaration_finds_it_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        placement(declared={"room": "prefer-local"}, force_policies={"room": "random"})
    assert "placement.declaration_overridden kind=room policy=random declared=prefer-local" in caplog.text


def test_R424_a_hint_that_cannot_be_followed_is_noted_with_the_reason() -> None:
    view = view_of([row(0), row(1, status=SiloStatus.LEAVING)])
    decision = placement().choose(ROOM, view, hint=address(1))
    assert (decision.silo, decision.source) == (address(0), "default")
    assert decision.notes == (f"the hint {address(1)} was not followed: it is leaving, not active",)
    assert "no living silo" in placement().choose(ROOM, view, hint=address(8)).notes[0]


def test_a_wish_to_be_near_a_peer_is_followed_below_the_hint_and_above_every_policy() -> None:
    nearby = placement(policy=Always(address(1)), force_policies={"room": Always(address(2))})
    near = nearby.choose(ROOM, cluster(4), near=address(3))
    assert (near.silo, near.source) == (address(3), "near")
    assert "the caller's wish to be near a peer" in near.explain()
    assert nearby.choose(ROOM, cluster(4), hint=address(1), near=address(3)).source == "hint"


def test_a_wish_to_be_near_a_peer_gives_way_to_what_speaks_against_the_silo() -> None:
    lagging = placement(
        policy=Always(address(1)), is_preferred=lambda row: "it lags" if row.silo == address(3) else None
    )
    decided = lagging.choose(ROOM, cluster(4), near=address(3))
    assert (decided.silo, decided.source) == (address(1), "cluster")
    assert f"the grain is not placed near its peer on {address(3)}: it lags" in decided.notes


def test_wishes_to_be_near_one_grain_do_not_gather_everybody_on_its_silo() -> None:
    choosing = placement(policy="activation-count", nearness=Nearness())
    silo = Silo(HERE, cluster(5))
    choosing.attach(silo)
    placed = Counter(choosing.choose(grain, cluster(5), near=address(3)).silo for grain in grains(100))
    assert placed[address(3)] <= 60
    alone = placement(nearness=Nearness())
    assert all(alone.choose(grain, cluster(5), near=address(3)).silo == address(3) for grain in grains(9))
    choosing.close()
    assert silo.is_quiet()


@pytest.mark.parametrize("name", ["random", "prefer-local", "consistent-hash", "activation-count"])
def test_S036_an_explicit_target_wins_over_every_policy(name: str) -> None:
    decider = placement(declared={"room": name})
    assert [decider.choose(ROOM, cluster(4), hint=address(n)).silo for n in range(4)] == [address(n) for n in range(4)]


# Who may be chosen


@pytest.mark.parametrize("name", ["random", "prefer-local", "consistent-hash", "activation-count"])
def test_S038_R325_only_active_silos_that_host_the_kind_receive_activations(name: str) -> None:
    view = view_of(
        [
            row(0, status=SiloStatus.JOINING),
            row(1, status=SiloStatus.LEAVING),
            row(2, status=SiloStatus.DEAD),
            row(3, kinds=("chat",)),
            row(4, kinds=("chat", "room")),
            row(5),
        ]
    )
    decider = placement(policy=name)
    chosen = {decider.choose(grain, view).silo for grain in grains(200)}
    assert chosen == {address(4), address(5)}  # silo 5 lists no kinds, hence hosts all


def test_R325_S040_without_a_host_the_error_names_the_kind_and_why_each_silo_is_out() -> None:
    view = view_of([row(0, kinds=("chat",)), row(1, status=SiloStatus.JOINING), row(2), row(3, status=SiloStatus.DEAD)])
    decider = placement(is_eligible=lambda one: "its renewals are late" if one.silo == address(2) else None)
    with pytest.raises(GrainUnplaceable) as refused:
        decider.choose(ROOM, view)
    assert str(refused.value) == (
        "no silo may host room/lobby (kind 'room', view 1): "
        f"silo-0 ({address(0)}): it does not host kind 'room'; "
        f"silo-1 ({address(1)}): it is joining, not active; "
        f"silo-2 ({address(2)}): its renewals are late"
    )
    assert isinstance(refused.value, NotExecuted)


def test_the_error_of_a_big_cluster_stays_readable() -> None:
    with pytest.raises(GrainUnplaceable, match=r"and 80 more$"):
        placement().choose(ROOM, view_of(row(n, kinds=("chat",)) for n in range(100)))


def test_an_empty_view_is_called_so() -> None:
    with pytest.raises(GrainUnplaceable, match="no living silo"):
        placement().choose(ROOM, EMPTY_VIEW)


def test_a_newer_view_and_a_changed_health_count_at_once() -> None:
    late: set[SiloAddress] = set()
    decider = placement(is_eligible=lambda one: "late" if one.silo in late else None)
    assert decider.choose(ROOM, view_of([row(0)])).silo == address(0)
    assert decider.choose(ROOM, view_of([row(1)], version=2)).silo == address(1)
    both = view_of([row(0), row(1)], version=3)
    late.add(address(1))
    assert {decider.choose(grain, both).silo for grain in grains(20)} == {address(0)}


def test_a_lagging_silo_is_passed_over_while_another_one_can_be_had() -> None:
    lagging = {address(0)}

    def lag(one: SiloRow) -> str | None:
        return "its event loop lags" if one.silo in lagging else None

    decider = placement(is_preferred=lag)
    assert {decider.choose(grain, cluster(2)).silo for grain in grains(20)} == {address(1)}
    assert decider.choose(ROOM, cluster(2), hint=address(0)).source == "hint"
    lagging.add(address(1))
    decision = decider.choose(ROOM, cluster(2))
    assert len(decision.candidates) == 2
    assert "its event loop lags" in decision.notes[0]


@pytest.mark.parametrize("policy", ["random", "activation-count", "prefer-local", "consistent-hash"])
def test_R319_a_silo_with_enough_in_flight_is_passed_over_by_every_policy_and_by_hints_while_others_can_be_had(
    policy: str,
) -> None:
    busy = {address(0)}

    def in_flight(one: SiloRow) -> str | None:
        return "256 of 256 activations in flight" if one.silo in busy else None

    decider = placement(policy=policy, is_free=in_flight)
    assert {decider.choose(grain, cluster(3)).silo for grain in grains(50)} == {address(1), address(2)}
    hinted = decider.choose(ROOM, cluster(3), hint=address(0))
    assert hinted.silo != address(0)
    assert "the hint 10.0.0.0:7000" in hinted.notes[0]
    assert "256 of 256 activations in flight" in hinted.notes[0]
    assert "silo-0 (10.0.0.0:7000@1): 256 of 256 activations in flight" in hinted.explain()
    busy.update({address(1), address(2)})
    assert decider.choose(ROOM, cluster(3), hint=address(0)).source == "hint"
    left_out = decider.choose(ROOM, cluster(3))
    assert len(left_out.candidates) == 3
    assert "256 of 256 activations in flight" in left_out.notes[0]


@pytest.mark.parametrize("ineligible", [(), (0,), (2,), (0, 2)])
@pytest.mark.parametrize("busy", [(), (0,), (2,), (0, 1, 2, 5)])
@pytest.mark.parametrize("declared", [None, [Require(zone="north")]])
@pytest.mark.parametrize("hint", [None, 0, 2, 3, 4])
def test_what_is_placed_lands_and_is_told_as_the_decision_with_its_reasons_says(
    ineligible: tuple[int, ...], busy: tuple[int, ...], declared: PlacementRule | None, hint: int | None
) -> None:
    view = view_of(
        [row(0, meta={"zone": "north"}), row(1, meta={"zone": "north"}), row(2), row(3, kinds=("chat",)), row(5)]
    )
    told: list[SiloAddress] = []
    decider = placement(
        policy=Always(address(1)),
        declared={"room": declared},
        is_eligible=lambda one: "late" if one.silo in map(address, ineligible) else None,
        is_free=lambda one: "busy" if one.silo in map(address, busy) else None,
        on_chosen=lambda _, silo: told.append(silo),
    )
    hinted = None if hint is None else address(hint)
    landed = decider.place(ROOM, view, hint=hinted)
    assert landed == decider.choose(ROOM, view, hint=hinted).silo
    assert told == [landed, landed]


def test_R319_each_decision_is_told_and_so_counts_at_once() -> None:
    chosen: list[tuple[GrainId, SiloAddress]] = []
    decider = placement(on_chosen=lambda grain, silo: chosen.append((grain, silo)))
    decisions = [decider.choose(ROOM, cluster(3)), decider.choose(ROOM, cluster(3), hint=address(2))]
    with pytest.raises(GrainUnplaceable):
        decider.choose(ROOM, EMPTY_VIEW)
    assert chosen == [(ROOM, decision.silo) for decision in decisions]


ZONES = [row(0, meta={"zone": "a"}), row(1, meta={"zone": "b"}), row(2, meta={"zone": "b", "pool": "big"}), row(3)]


@pytest.mark.parametrize(
    ("rule", "hosts"),
    [
        (Require(zone="b"), {1, 2}),
        (Require(zone="b", pool="big"), {2}),
        (Require("zone"), {0}),
        (Prefer(zone="b"), {1, 2}),
        (Prefer(zone="c"), {0, 1, 2, 3}),
        ([Require(zone="b"), Prefer(pool="big")], {2}),
        ([Prefer(pool="big"), Require(zone="a")], {0}),
        ([Prefer(zone="b"), Prefer(zone="a")], {1, 2}),
    ],
    ids=lambda value: str(value).split(" object at ")[0],
)
def test_filters_narrow_the_candidates_before_the_policy(rule: PlacementRule, hosts: set[int]) -> None:
    decider = placement(declared={"room": rule})
    chosen = {decider.choose(grain, view_of(ZONES)).silo for grain in grains(100)}
    assert chosen == {address(number) for number in hosts}


def test_filters_of_all_levels_add_up_though_policies_override_each_other() -> None:
    decider = placement(
        policy=Require(zone="b"),
        declared={"room": [Require(pool="big"), "random"]},
        force_policies={"room": "consistent-hash"},
    )
    decision = decider.choose(ROOM, view_of(ZONES))
    assert (decision.silo, decision.policy, decision.source) == (address(2), "consistent-hash", "force")


def test_a_required_filter_stands_above_a_hint_and_a_preference_below_it() -> None:
    view = view_of(ZONES)
    required = placement(declared={"room": Require(zone="b")}).choose(ROOM, view, hint=address(0))
    assert required.silo != address(0)
    assert "Require(zone='b'): its zone is 'a', not 'b'" in required.notes[0]
    assert placement(declared={"room": Prefer(zone="b")}).choose(ROOM, view, hint=address(0)).silo == address(0)


class BrokenFilter:
    def __init__(self, advisory: bool) -> None:
        self.advisory = advisory

    def exclude(
        self, grain: GrainId, candidates: Sequence[Candidate], here: Candidate | None
    ) -> Mapping[SiloAddress, str]:
        raise ZeroDivisionError("oops")

    def __repr__(self) -> str:
        return "BrokenFilter()"


def test_a_broken_required_filter_places_nothing_and_a_broken_preference_is_left_out() -> None:
    strict, lenient = placement(policy=BrokenFilter(advisory=False)), placement(policy=BrokenFilter(advisory=True))
    with pytest.raises(GrainUnplaceable, match="oops"):
        strict.choose(ROOM, cluster(2))
    assert "oops" in lenient.choose(ROOM, cluster(2)).notes[0]
    assert strict.policy_failures == lenient.policy_failures == {"BrokenFilter()": 1}


# What a policy may do wrong


class Raising:
    name = "raising"

    def choose(self, grain: GrainId, view: PlacementView, local: SiloAddress | None) -> SiloAddress:
        raise LookupError("tenant table")


def test_R378_a_policy_that_raises_fails_no_call_and_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    decider = placement(declared={"room": Raising()})
    decisions = [decider.choose(grain, cluster(3)) for grain in grains(10)]
    assert {decision.source for decision in decisions} == {"fallback"}
    assert len({decision.silo for decision in decisions}) > 1
    assert decider.policy_failures == {"raising": 10}
    assert len(caplog.records) == 4, "the 1st, 2nd, 4th and 8th"
    assert "LookupError('tenant table')" in decisions[0].explain()


def test_R326_an_answer_outside_the_offered_candidates_fails_loudly() -> None:
    view = view_of([row(0), row(1, kinds=("chat",))])
    decider = placement(policy=Always(address(1), "stubborn"))
    with pytest.raises(AnswerOutsideView, match=r"'stubborn' placed room/lobby on .*10\.0\.0\.1") as refused:
        decider.choose(ROOM, view)
    assert refused.value.policy == "stubborn"
    assert decider.policy_failures == {"stubborn": 1}


# Attaching


def test_R323_one_policy_object_for_two_kinds_attaches_once_and_is_torn_down_once() -> None:
    shared = Always(address(0))
    decider = placement(policy=shared, declared={"room": shared, "chat": [shared, Prefer(zone="a")]})
    decider.attach(Silo(HERE, cluster(2)))
    assert (shared.attached, shared.torn_down) == (1, 0)
    decider.close()
    decider.close()
    assert (shared.attached, shared.torn_down) == (1, 1)


def test_R323_one_name_for_two_kinds_is_one_policy_with_one_load() -> None:
    silo = Silo(HERE, cluster(2))
    decider = placement(type_policies={"room": "activation-count", "chat": "activation-count"})
    decider.attach(silo)
    assert len(silo.on_period) == 1
    decider.close()
    assert silo.is_quiet()


class AttachRaises(Always):
    def attach(self, runtime: object) -> Callable[[], None]:
        raise OSError("no metrics today")


class AttachIsLazy(Always):
    def attach(self, runtime: object) -> Callable[[], None]:
        return "done"  # type: ignore[return-value] # pyright: ignore[reportReturnType] - the mistake under test


class TeardownRaises(Always):
    def _tear_down(self) -> None:
        super()._tear_down()
        raise OSError("too late")


def test_R322_an_attach_that_raises_is_contained_and_the_policy_works_on(caplog: pytest.LogCaptureFixture) -> None:
    good = Always(address(0), "good")
    decider = placement(
        policy=AttachRaises(address(1), "raises"), declared={"room": AttachIsLazy(address(1), "lazy"), "chat": good}
    )
    decider.attach(Silo(HERE, cluster(2)))
    assert decider.policy_failures == {"raises": 1, "lazy": 1}
    assert "no metrics today" in caplog.text
    assert decider.choose(ROOM, cluster(2)).policy == "lazy"
    assert good.attached == 1
    decider.close()
    assert good.torn_down == 1


def test_R322_a_teardown_that_raises_keeps_no_other_from_running() -> None:
    first, bad, last = Always(HERE, "first"), TeardownRaises(HERE, "bad"), Always(HERE, "last")
    decider = placement(policy=first, declared={"room": bad, "chat": last})
    decider.attach(Silo(HERE, cluster(2)))
    decider.close()
    assert [policy.torn_down for policy in (first, bad, last)] == [1, 1, 1]
    assert decider.policy_failures == {"bad": 1}


def test_a_placement_is_attached_once_and_not_after_its_end() -> None:
    decider = placement()
    decider.attach(Silo(HERE, cluster(2)))
    with pytest.raises(RuntimeError, match="attached before"):
        decider.attach(Silo(HERE, cluster(2)))
    closed = placement()
    closed.close()
    with pytest.raises(RuntimeError, match="closed"):
        closed.attach(Silo(HERE, cluster(2)))


def test_R317_attached_but_without_data_every_silo_still_gets_its_share() -> None:
    decider = placement(policy="activation-count")
    decider.attach(Silo(HERE, cluster(3)))
    assert {decider.choose(grain, cluster(3)).silo for grain in grains(30)} == {address(n) for n in range(3)}


# Telling


def test_R374_the_seed_reproduces_every_decision() -> None:
    def run() -> list[str]:
        decider = placement(policy=Prefer(zone="b"), type_policies={"room": "activation-count"})
        decider.attach(Silo(HERE, view_of(ZONES)))
        return [decider.choose(grain, view_of(ZONES), with_scores=True).explain() for grain in grains(30)]

    assert run() == run()


def test_a_decision_explains_candidates_exclusions_scores_and_who_decided() -> None:
    silo = Silo(HERE, view_of([row(0), row(1), row(2, kinds=("chat",))]))
    silo.own_load = 7
    silo.reported[address(1)] = 3
    decider = placement(declared={"room": "activation-count"})
    decider.attach(silo)
    decision = decider.choose(ROOM, silo.view(), with_scores=True)
    assert decision.explain() == (
        f"room/lobby goes to {address(1)}: policy activation-count, the grain's declaration (view 1)\n"
        f"  - silo-0 ({address(0)}): candidate, score 7\n"
        f"  * silo-1 ({address(1)}): candidate, score 3\n"
        f"  x silo-2 ({address(2)}): it does not host kind 'room'"
    )


# Writing rules


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("prefer_local", r"cluster's policy: .*'prefer_local'; did you mean 'prefer-local'"),
        ("activation-counts", "did you mean 'activation-count'"),
        ("zzz", "the names are 'random', 'prefer-local', 'consistent-hash', 'activation-count'"),
        (RandomPlacement, r"RandomPlacement is a class: write RandomPlacement\(...\)"),
        (["random", ConsistentHashPlacement()], "two policies, 'random' and 'consistent-hash'"),
        (42, "42 is no placement policy"),
    ],
    ids=lambda value: str(value).split(" object at ")[0],
)
def test_a_wrong_rule_is_refused_with_the_remedy(rule: object, said: str) -> None:
    with pytest.raises(InvalidSettings, match=said):
        placement(policy=cast("PlacementRule", rule))


def test_a_policy_that_is_async_or_nameless_is_refused_where_it_is_given() -> None:
    class Waits:
        name = "waits"

        async def choose(self, grain: GrainId, view: PlacementView, local: SiloAddress | None) -> SiloAddress:
            return HERE

    class AttachWaits(Raising):
        async def attach(self, runtime: PolicyRuntime) -> None: ...

    class Nameless:
        def choose(self, grain: GrainId, view: PlacementView, local: SiloAddress | None) -> SiloAddress:
            return HERE

    for policy, said in ((Waits(), "choose is async"), (AttachWaits(), "attach is async"), (Nameless(), "no name")):
        with pytest.raises(InvalidSettings, match=said):
            placement(declared={"room": cast("PlacementRule", policy)})


def test_a_filter_that_asks_for_nothing_is_refused() -> None:
    with pytest.raises(InvalidSettings, match="asks for nothing"):
        Require()


def test_a_rule_may_be_checked_where_it_is_written() -> None:
    policy = ActivationCountPlacement(choose_out_of=3)
    parsed = parse_rule([Prefer("zone"), policy], "@grain(placement=…) of kind 'room'")
    assert parsed.policy is policy
    assert [repr(one) for one in parsed.filters] == ["Prefer('zone')"]
    with pytest.raises(InvalidSettings, match="of kind 'room'"):
        parse_rule("nearest", "@grain(placement=…) of kind 'room'")
