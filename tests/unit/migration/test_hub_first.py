"""The hub-first exchange of one silo, told as stories: what befalls it, and what it orders."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from silo.directory.addresses import GrainId
from silo.directory.errors import InvalidSettings
from silo.migration.repartitioning.messages import (
    Aborted,
    Announce,
    Arrived,
    Deactivated,
    Decline,
    Grant,
    Handover,
    MembersChanged,
    Message,
    Move,
    Moved,
    MoveRecord,
    Neighbour,
    Neighbourhood,
    Order,
    Proposal,
    Propose,
    Received,
    Report,
    Resumed,
    Send,
    Suspended,
    Why,
)
from tests.unit.migration.repartition_world import ELSEWHERE, HERE, THERE, Silo, grain, settings

REPORT = Report(100, 1_000.0)
PLAYER, GAME = grain("ada", "player"), grain("1", "game")


def sent(orders: list[Order], kind: type[Message]) -> list[tuple[object, Message]]:
    return [(order.silo, order.message) for order in orders if isinstance(order, Send) and type(order.message) is kind]


def proposed(orders: list[Order]) -> list[GrainId]:
    return [
        proposal.grain
        for _, message in sent(orders, Propose)
        if isinstance(message, Propose)
        for proposal in message.proposals
    ]


def moves(orders: list[Order]) -> list[Move]:
    return [order for order in orders if isinstance(order, Move)]


def with_peers(others: int = 100, **changes: Any) -> Silo:
    """A silo among three, all as full."""
    silo = Silo(others=others, **changes)
    for other in (THERE, ELSEWHERE):
        silo.hears(other, others)
    return silo


def a_player_whose_game_is_there(**changes: Any) -> Silo:
    silo = with_peers(**changes)
    silo.talks(PLAYER, GAME, THERE, 200)
    return silo


def ask(silo: Silo) -> list[Order]:
    """Let a round and its second phase pass, while the others report."""
    orders: list[Order] = []
    for _ in range(24):
        orders += silo.passes(1.0)
        silo.hears(THERE, 100)
        silo.hears(ELSEWHERE, 100)
        if proposed(orders):
            break
    return orders


def proposal(name: object, *, gain: float = 1.0, load: float = 0.0, towards: GrainId | None = None) -> Proposal:
    return Proposal(grain(name), Why.HUB, gain, load, towards)


# ------------------------------------------------------------------------------------------------------ as the source


def test_a_leaf_follows_its_hub_and_the_move_explains_itself() -> None:
    silo = a_player_whose_game_is_there()
    assert proposed(ask(silo)) == [PLAYER]
    (move,) = moves(silo.on(Received(THERE, Grant((PLAYER,), REPORT))))
    assert (move.grain, move.target, move.why) == (PLAYER, THERE, Why.LEAF)


def test_R610_the_ties_and_the_gain_that_moved_a_grain_can_be_asked_for() -> None:
    silo = a_player_whose_game_is_there()
    ask(silo)
    silo.on(Received(THERE, Grant((PLAYER,), REPORT)))
    explained = silo.exchange.explain(PLAYER)
    assert explained is not None
    assert explained.ties[0].peer == GAME
    assert explained.gain == pytest.approx(explained.ties[0].rate)
    assert str(GAME) in str(explained)
    assert silo.exchange.explain(GAME) is None


def test_R605_what_would_be_moved_and_gained_is_told_before_anything_is() -> None:
    silo = a_player_whose_game_is_there()
    silo.passes(12.0)
    silo.talks(PLAYER, GAME, THERE, 200)
    expected = silo.exchange.expected(silo.now)
    assert expected.moves == 1
    assert expected.gain > 0
    assert expected.cost == silo.settings.move_cost
    assert silo.exchange.leaving in (0, 1)


def test_R605_nothing_moves_that_would_not_earn_its_cost() -> None:
    silo = a_player_whose_game_is_there(move_cost=1e6)
    assert proposed(ask(silo)) == []


def test_R605_what_a_grain_says_of_its_cost_counts_and_is_asked_of_none_that_stays() -> None:
    silo = a_player_whose_game_is_there()
    silo.residents.costs[PLAYER] = 1e6
    silo.talks(grain("happy"), grain("friend"), HERE, 500)
    assert proposed(ask(silo)) == []
    assert set(silo.residents.asked) == {PLAYER}


def test_R608_a_grain_that_is_to_stay_stays_and_others_gather_around_it() -> None:
    silo = with_peers()
    silo.residents.costs[GAME] = None
    for number in range(8):
        silo.talks(GAME, grain(number, "player"), THERE, 200)
    assert proposed(ask(silo)) == []  # though all of its players are there

    host = a_player_whose_game_is_there()  # to a player, a game that is fixed is one like any other
    assert proposed(ask(host)) == [PLAYER]


def test_a_hub_goes_where_most_of_its_traffic_is_and_its_peers_are_told_where_it_will_be() -> None:
    silo = with_peers()
    for number in range(6):
        silo.talks(GAME, grain(number, "player"), THERE, 200)
    for number in range(6, 8):
        silo.talks(GAME, grain(number, "player"), ELSEWHERE, 200)
    assert proposed(ask(silo)) == [GAME]
    orders = silo.on(Received(THERE, Grant((GAME,), REPORT)))
    assert [move.why for move in moves(orders)] == [Why.HUB]
    assert {silo for silo, _ in sent(orders, Announce)} == {THERE, ELSEWHERE}


def test_a_leaf_follows_a_hub_to_where_it_is_announced() -> None:
    silo = with_peers()
    silo.talks(PLAYER, GAME, THERE, 200)
    silo.on(Received(THERE, Announce(((GAME, ELSEWHERE),))))
    orders = ask(silo)
    assert [target for target, _ in sent(orders, Propose)] == [ELSEWHERE]


def test_a_leaf_lets_a_new_hub_find_its_own_place_first() -> None:
    silo = a_player_whose_game_is_there(follow_after_s=60.0)
    assert proposed(ask(silo)) == []


def test_a_grant_that_is_doubled_moves_once_and_one_that_nobody_asked_for_is_declined() -> None:
    silo = a_player_whose_game_is_there()
    ask(silo)
    assert len(moves(silo.on(Received(THERE, Grant((PLAYER,), REPORT))))) == 1
    assert silo.on(Received(THERE, Grant((PLAYER,), REPORT))) == []
    again = silo.on(Received(ELSEWHERE, Grant((PLAYER,), REPORT)))
    assert again == [Send(ELSEWHERE, Decline((PLAYER,)))]


def test_a_grain_that_is_asked_for_is_asked_for_nowhere_else() -> None:
    silo = a_player_whose_game_is_there(period_s=60.0, lease_s=120.0)
    ask(silo)
    silo.on(Received(THERE, Announce(((GAME, ELSEWHERE),))))
    silo.talks(PLAYER, GAME, ELSEWHERE, 5_000)
    assert proposed(silo.passes(20.0)) == []


def test_an_aborted_move_frees_its_place_and_is_not_tried_again_at_once() -> None:
    silo = a_player_whose_game_is_there(dwell_s=100.0)
    ask(silo)
    silo.on(Received(THERE, Grant((PLAYER,), REPORT)))
    orders = silo.on(Aborted(PLAYER))
    assert Send(THERE, Decline((PLAYER,))) in orders
    silo.talks(PLAYER, GAME, THERE, 500)
    assert proposed(ask(silo)) == []


def test_what_is_known_goes_with_a_grain_that_has_moved() -> None:
    silo = a_player_whose_game_is_there()
    ask(silo)
    silo.on(Received(THERE, Grant((PLAYER,), REPORT)))
    ((target, message),) = sent(silo.on(Moved(PLAYER, THERE)), Handover)
    assert target == THERE
    assert isinstance(message, Handover)
    assert [each.peer for each in message.neighbourhood.peers] == [GAME]
    assert PLAYER not in silo.table
    assert silo.exchange.leaving == 0


def test_peers_of_a_grain_that_has_ended_hear_of_it_wherever_they_are() -> None:
    silo = with_peers(local_every=1)
    silo.talks(GAME, PLAYER, THERE, 200)
    silo.talks(GAME, grain("bob", "player"), HERE, 200)
    orders = silo.on(Deactivated(GAME))
    assert orders == [Send(THERE, Announce(gone=((PLAYER, GAME),)))]
    assert silo.table.peers(grain("bob", "player")) == ()

    other = with_peers()
    other.talks(PLAYER, GAME, THERE, 200)
    other.on(Received(THERE, Announce(gone=((PLAYER, GAME),))))
    assert other.table.peers(PLAYER) == ()


def test_a_silo_gives_no_more_than_its_budget_in_a_period() -> None:
    silo = with_peers(budget_share=0.05)
    for number in range(50):
        silo.talks(grain(number, "player"), grain(number, "game"), THERE, 200)
    asked = proposed(ask(silo))
    assert 5 < len(asked) <= 20
    orders = silo.on(Received(THERE, Grant(tuple(asked), REPORT)))
    assert len(moves(orders)) == 5
    ((_, declined),) = sent(orders, Decline)
    assert isinstance(declined, Decline)
    assert len(declined.grains) == len(asked) - 5


def test_R603_a_silo_that_has_few_gives_none() -> None:
    silo = Silo(others=80)
    silo.talks(PLAYER, GAME, THERE, 200)
    for _ in range(24):
        silo.hears(THERE, 110)
        silo.hears(ELSEWHERE, 110)
        assert proposed(silo.passes(1.0)) == []


# ---------------------------------------------------------------------------------------------------- as the receiver


def granted(orders: list[Order]) -> list[GrainId]:
    return [name for _, message in sent(orders, Grant) if isinstance(message, Grant) for name in message.grains]


def test_R603_places_are_kept_up_to_the_cap_and_no_further() -> None:
    silo = with_peers(budget_share=None)
    orders = silo.on(Received(THERE, Propose(tuple(proposal(n) for n in range(20)), REPORT)))
    assert len(granted(orders)) == math.ceil(1.05 * 100) - 100


def test_R603_the_cap_is_in_proportion_to_the_capacity() -> None:
    silo = Silo(others=100, budget_share=None)
    silo.hears(THERE, 100, capacity=3.0)  # 200 in all: a quarter of it is the share of this silo
    assert granted(silo.on(Received(THERE, Propose((proposal(1),), Report(100, 1_000.0, 3.0))))) == []
    silo.hears(THERE, 400, capacity=3.0)
    assert granted(silo.on(Received(THERE, Propose((proposal(2),), Report(400, 1_000.0, 3.0))))) == [grain(2)]


def test_a_grain_without_a_place_may_not_come_and_one_with_a_place_only_from_where_it_was_asked() -> None:
    silo = with_peers()
    silo.on(Received(THERE, Propose((proposal(1),), REPORT)))
    assert not silo.exchange.admits(grain(2), THERE, silo.now)
    assert not silo.exchange.admits(grain(1), ELSEWHERE, silo.now)
    assert silo.exchange.admits(grain(1), THERE, silo.now)


def test_a_place_for_a_grain_that_does_not_come_is_free_after_a_while() -> None:
    silo = with_peers(budget_share=None)
    silo.on(Received(THERE, Propose(tuple(proposal(n) for n in range(5)), REPORT)))
    silo.passes(silo.settings.lease_s + 1)
    assert not silo.exchange.admits(grain(1), THERE, silo.now)
    assert silo.exchange.admission.kept == 0


def test_who_found_no_place_gets_one_that_becomes_free_the_most_to_gain_first() -> None:
    silo = with_peers(budget_share=None)
    silo.on(Received(THERE, Propose(tuple(proposal(n, gain=1.0 + n) for n in range(8)), REPORT)))
    silo.on(Received(THERE, Decline((grain(0),))))
    assert granted(silo.passes(1.0)) == [grain(7)]


def test_a_proposal_that_is_doubled_keeps_one_place() -> None:
    silo = with_peers(budget_share=None)
    for _ in range(3):
        silo.on(Received(THERE, Propose((proposal(1),), REPORT)))
    assert silo.exchange.admission.kept == 1


def test_two_that_would_each_go_where_the_other_is_do_not_pass_each_other() -> None:
    silo = a_player_whose_game_is_there()
    ask(silo)
    rival = Proposal(GAME, Why.HUB, 1.0, 0.0, PLAYER)
    orders = silo.on(Received(THERE, Propose((rival,), REPORT)))
    assert (granted(orders) == [GAME]) == (GAME < PLAYER)
    silo.on(Received(THERE, Grant((PLAYER,), REPORT)))  # it is on its way now
    late = Proposal(grain("late"), Why.HUB, 1.0, 0.0, PLAYER)
    assert granted(silo.on(Received(THERE, Propose((late,), REPORT)))) == []


def test_load_counts_where_there_is_room_by_number() -> None:
    silo = with_peers(budget_share=None)
    silo.talks(grain("busy"), grain("peer"), THERE, 10_000)
    silo.passes(21.0)
    silo.hears(THERE, 100, load=10.0)
    silo.hears(ELSEWHERE, 100, load=10.0)
    orders = silo.on(Received(THERE, Propose((proposal(1, load=1_000.0), proposal(2)), Report(100, 10.0))))
    assert granted(orders) == []


def test_a_silo_with_too_much_load_gives_its_celebrities_to_the_silo_with_the_least() -> None:
    silo = with_peers(peers_max=4)
    for star in range(3):
        for fan in range(60):
            silo.talks(grain(star, "star"), grain(fan, "fan"), (THERE, ELSEWHERE, HERE)[fan % 3], 40)
    orders: list[Order] = []
    for _ in range(24):
        silo.hears(THERE, 100, load=100.0)
        silo.hears(ELSEWHERE, 100, load=10.0)
        orders += silo.passes(1.0)
    shed = [
        (target, each)
        for target, message in sent(orders, Propose)
        if isinstance(message, Propose)
        for each in message.proposals
        if each.why is Why.LOAD
    ]
    (target, first), *_ = shed
    assert (target, first.grain.kind) == (ELSEWHERE, "star")
    # not all of them: it would then have the least itself
    assert len({each.grain for _, each in shed if each.grain.kind == "star"}) < 3


# -------------------------------------------------------------------------------------------------- over the long run


def arrive(silo: Silo, name: GrainId, record: MoveRecord, why: Why = Why.HUB) -> None:
    silo.on(Received(THERE, Propose((Proposal(name, why, 1.0, 0.0, None, record),), REPORT)))
    assert silo.exchange.admits(name, THERE, silo.now)
    silo.on(Arrived(name))


def test_R606_no_grain_moves_more_than_twice_in_a_cool_down_whatever_silo_it_is_on() -> None:
    silo = with_peers(cooldown_s=600.0, dwell_s=30.0)
    arrive(silo, grain(1), MoveRecord(1, 0, since_s=40.0))
    silo.now += 559.0
    assert not silo.exchange.book.may_move(grain(1), silo.now)
    silo.now += 42.0
    assert silo.exchange.book.may_move(grain(1), silo.now)


def test_R606_a_grain_stays_twice_as_long_after_each_move_and_begins_anew_in_other_company() -> None:
    silo = with_peers(cooldown_s=0.0, dwell_s=30.0)
    book = silo.exchange.book
    arrive(silo, grain(1), MoveRecord(4, around=(grain("x"), grain("y"))))
    silo.now += 31.0
    assert not book.may_move(grain(1), silo.now)
    book.compare(grain(1), [grain("x"), grain("z")])
    assert not book.may_move(grain(1), silo.now)
    book.compare(grain(1), [grain("z")])
    assert book.may_move(grain(1), silo.now)


def test_R606_each_further_move_has_to_earn_twice_as_much() -> None:
    silo = with_peers(budget_share=None)
    costs: list[float] = []
    for moved in range(5):
        arrive(silo, grain(moved), MoveRecord(moved))
        costs.append(silo.exchange.book.cost_factor(grain(moved)))
    assert costs == [1, 2, 4, 8, 16]


def test_a_grain_makes_room_twice_and_no_more() -> None:
    silo = with_peers()
    arrive(silo, grain(1), MoveRecord(1, 1), Why.ROOM)
    assert not silo.exchange.book.may_make_room(grain(1))
    assert silo.exchange.book.may_make_room(grain(2))


def test_R607_while_suspended_nothing_is_asked_for_and_nothing_granted() -> None:
    silo = a_player_whose_game_is_there()
    silo.on(Suspended(1_000.0))
    assert proposed(ask(silo)) == []
    assert silo.on(Received(THERE, Propose((proposal(1),), REPORT))) == []
    silo.on(Resumed())
    silo.talks(PLAYER, GAME, THERE, 200)
    assert proposed(ask(silo)) == [PLAYER]


def test_R607_it_is_off_unless_it_is_asked_for() -> None:
    from silo.migration.repartitioning.settings import RepartitioningSettings, Strategy

    assert RepartitioningSettings().strategy is Strategy.OFF


def test_R609_a_change_of_the_members_ends_the_round_and_nothing_moves_for_a_while() -> None:
    silo = a_player_whose_game_is_there(recovery_s=60.0)
    ask(silo)
    silo.on(Received(ELSEWHERE, Propose((proposal(1),), REPORT)))
    silo.on(MembersChanged(frozenset({HERE, THERE})))
    assert silo.exchange.leaving == 0
    assert not silo.exchange.admits(grain(1), ELSEWHERE, silo.now)
    silo.talks(PLAYER, GAME, THERE, 200)
    assert proposed(silo.passes(30.0)) == []
    assert silo.on(Received(ELSEWHERE, Propose((proposal(2),), REPORT))) == []
    silo.now += 40.0
    silo.talks(PLAYER, GAME, THERE, 200)
    assert proposed(ask(silo)) == [PLAYER]


def test_a_silo_that_is_not_heard_of_is_asked_for_nothing() -> None:
    silo = a_player_whose_game_is_there()
    silo.passes(31.0)
    silo.talks(PLAYER, GAME, THERE, 200)
    silo.hears(ELSEWHERE, 100)
    assert proposed(silo.passes(21.0)) == []


def test_reports_that_make_no_sense_are_ignored() -> None:
    silo = with_peers()
    for nonsense in (Report(-1, 0.0), Report(1, math.nan), Report(1, math.inf), Report(1, 0.0, 0.0)):
        silo.on(Received(THERE, Propose((), nonsense)))
    assert silo.exchange.shares.known(THERE) == REPORT


@pytest.mark.parametrize(
    "message",
    [
        Propose((Proposal(GAME, Why.ROOM, -0.5, 2.0, PLAYER, MoveRecord(3, 1, 2.0, None, (PLAYER,))),), REPORT),
        Grant((GAME,), REPORT),
        Decline((GAME,)),
        Announce(((GAME, HERE),), ((PLAYER, GAME),)),
        Handover(Neighbourhood(GAME, 1.0, 2.0, (Neighbour(PLAYER, HERE, 1.0, 2.0, 3),))),
    ],
    ids=lambda message: type(message).__name__,
)
def test_messages_can_go_on_the_wire(message: Message) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=Message) == message


@pytest.mark.parametrize(
    ("name", "value"),
    [("period_s", 0), ("leaf_delay_s", 10.0), ("floor_slack", 1.0), ("shed_above", 0.1), ("budget_share", 0.0)],
)
def test_settings_that_cannot_be_are_refused(name: str, value: float) -> None:
    with pytest.raises(InvalidSettings, match=name):
        settings(**{name: value})
