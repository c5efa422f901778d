"""The lease core, told as stories: what happened, and what it orders."""

from __future__ import annotations

import itertools
import math

import msgspec
import pytest

from silo.directory.addresses import SiloAddress
from silo.directory.errors import InvalidSettings, MembershipUnavailable, SiloFenced
from silo.directory.lease import STALE_RENEWALS_MAX, LeaseCore, Phase
from silo.directory.lease_events import (
    AdoptView,
    AdvanceAsked,
    Answered,
    AskTable,
    Conclude,
    Confirmed,
    CordonAsked,
    Event,
    Failed,
    GoodbyeAsked,
    Hinted,
    HoldRight,
    JoinAsked,
    Order,
    PeerSaid,
    ProcessEnded,
    ReadAsked,
    ResignRight,
    Tell,
    Ticked,
    UnwatchProcess,
    WatchProcess,
)
from silo.directory.lease_messages import (
    Acknowledgement,
    Assent,
    AssentAsked,
    Forward,
    Forwarded,
    LeaseMessage,
    Probe,
)
from silo.directory.lease_observations import Observation
from silo.directory.lease_settings import LeaseSettings
from silo.directory.membership import (
    EARLIER,
    Advance,
    Bury,
    Cordon,
    Join,
    ProcessIdentity,
    Read,
    Rejoin,
    Renew,
    SiloInfo,
    SiloStatus,
    TableAnswer,
    TableRequest,
    TableStatus,
    Verdict,
)
from silo.directory.memory_membership import MemoryMembershipTable

ME, OTHER, THIRD, FOURTH = (SiloAddress(f"10.0.0.{n}:7000", n) for n in (1, 2, 3, 4))
HERE = ProcessIdentity("machine", 1, 1)
INFO = SiloInfo(name="me", process=HERE)
LOST = MembershipUnavailable("lost")


class OpenCore(LeaseCore):
    """A core that shows what it thinks of the others."""

    def since(self, silo: SiloAddress) -> float:
        seen = self.observations.of(silo)
        assert seen is not None
        return seen.since

    def hear_of(self, silo: SiloAddress, at: float) -> None:
        self.observations._observed[silo] = Observation("run", 1, at)  # pyright: ignore[reportPrivateUsage] - it stands for a history

    def judges_at(self, silo: SiloAddress, now: float) -> float:
        return self._judge_at(silo, now)


class Story:
    """One core beside one table; `now` is the core's clock."""

    def __init__(self) -> None:
        self.core = OpenCore(LeaseSettings())
        self.table = MemoryMembershipTable()
        self.now = 100.0

    def on(self, event: Event) -> list[Order]:
        return self.core.on(event, self.now)

    def tick_at(self, now: float) -> list[Order]:
        self.now = now
        return self.on(Ticked())

    def answer(self, request: TableRequest, *, sent_at: float | None = None, after_s: float = 0.01) -> list[Order]:
        sent_at = self.now if sent_at is None else sent_at
        answer = self.table.carry_out(request)
        self.now += after_s
        return self.on(Answered(request, sent_at, answer))

    def join(self) -> list[Order]:
        self.on(JoinAsked(1, ME, INFO))
        return self.answer(Join(ME, INFO))

    def renew(self) -> list[Order]:
        request = asked(self.tick_at(self.core.wake_at(self.now)))[0]
        return self.answer(request)

    def renew_until(self, now: float) -> None:
        while self.core.wake_at(self.now) < now:
            for request in asked(self.tick_at(self.core.wake_at(self.now))):
                self.answer(request, after_s=0.0)
        self.now = now


def renewal(seen: int, prev: int, table: str = "table-1") -> Renew:
    """Of my row; the first table that there is has this id."""
    return Renew(ME, seen, prev, table)


def asked(orders: list[Order]) -> list[TableRequest]:
    return [order.request for order in orders if isinstance(order, AskTable)]


@pytest.fixture
def story() -> Story:
    return Story()


@pytest.fixture
def member(story: Story) -> Story:
    story.join()
    story.renew()
    return story


# ---- joining


def test_a_joiner_holds_the_right_from_when_its_join_was_sent(story: Story) -> None:
    assert story.on(JoinAsked(1, ME, INFO)) == [AskTable(Join(ME, INFO))]
    orders = story.answer(Join(ME, INFO), sent_at=100.5, after_s=0.7)
    assert orders == [AdoptView(story.core.view), HoldRight(105.5), Conclude(1)]
    assert (story.core.phase, story.core.deadline) == (Phase.MEMBER, 105.5)


def test_a_join_whose_answer_was_lost_is_sent_again_and_then_renews_before_it_holds_anything(story: Story) -> None:
    story.on(JoinAsked(1, ME, INFO))
    story.table.carry_out(Join(ME, INFO))
    story.now = 101.0
    assert story.on(Failed(Join(ME, INFO), 100.0, LOST)) == []
    assert asked(story.tick_at(story.core.wake_at(story.now))) == [Join(ME, INFO)]
    orders = story.answer(Join(ME, INFO))
    assert Conclude(1) in orders
    assert not any(isinstance(order, HoldRight) for order in orders)
    assert asked(orders) == [renewal(seen=1, prev=1)]
    assert HoldRight(story.now + 5.0) in story.answer(renewal(seen=1, prev=1))


def test_a_join_is_given_up_when_its_time_is_over(story: Story) -> None:
    story.on(JoinAsked(1, ME, INFO))
    story.now = 100.0 + story.core.settings.ask_within_s
    assert story.on(Failed(Join(ME, INFO), 109.0, LOST)) == [Conclude(1, LOST)]


def test_S119_a_join_that_can_never_succeed_is_given_up_at_once(story: Story) -> None:
    story.on(JoinAsked(1, ME, INFO))
    refused = InvalidSettings("wrong password")
    assert story.on(Failed(Join(ME, INFO), 100.0, refused)) == [Conclude(1, refused)]


def test_a_row_of_the_same_name_made_by_another_process_is_not_mine(story: Story) -> None:
    story.table.carry_out(Join(ME, SiloInfo(name="somebody else")))
    orders = story.join()
    assert story.core.phase is Phase.DEAD
    refused = next(order for order in orders if isinstance(order, Conclude))
    assert isinstance(refused.error, SiloFenced)


# ---- renewing


def test_it_renews_every_fifth_of_the_lease(member: Story) -> None:
    renewed_at = member.now - 0.01
    assert member.core.wake_at(member.now) == pytest.approx(renewed_at + 1.0)
    assert member.tick_at(renewed_at + 0.9) == [], "a tick that comes early changes nothing"
    assert asked(member.tick_at(renewed_at + 1.0)) == [renewal(seen=1, prev=2)]


def test_one_renewal_is_on_its_way_at_a_time_and_a_fifth_later_the_next(member: Story) -> None:
    start = member.core.wake_at(member.now)
    assert asked(member.tick_at(start)) == [renewal(seen=1, prev=2)]
    assert member.tick_at(start + 0.5) == []
    assert asked(member.tick_at(start + 1.0)) == [renewal(seen=1, prev=2)]


def test_a_verdict_that_is_due_does_not_hurry_renewals_that_a_dead_store_refuses(member: Story) -> None:
    """Each would fail at once and be followed by the next: thousands a second, all through the outage."""
    member.table.carry_out(Join(OTHER, SiloInfo(name="other")))
    member.renew()
    until = member.now + 2 * member.core.settings.wait_s
    sent = 0
    while member.now < until:
        for request in asked(member.tick_at(max(member.core.wake_at(member.now), member.now + 0.001))):
            sent += 1
            member.on(Failed(request, member.now, LOST))
    assert sent <= 2 * member.core.settings.wait_s / member.core.settings.renew_every_s + 2


def test_the_lease_counts_from_when_the_renewal_was_sent_and_never_goes_back(member: Story) -> None:
    deadline = member.core.deadline
    late = renewal(seen=1, prev=2)
    member.now += 2.0
    member.answer(late, sent_at=member.now - 1.5, after_s=0.0)
    assert member.core.deadline == member.now - 1.5 + 5.0 > deadline
    answer = TableAnswer(TableStatus.OK, member.table.table)
    assert not any(isinstance(order, HoldRight) for order in member.on(Answered(late, member.now - 2.0, answer)))


def test_a_stale_renewal_is_repaired_at_once_but_not_for_ever(member: Story) -> None:
    member.tick_at(member.core.wake_at(member.now))
    request: TableRequest = renewal(seen=1, prev=2)
    for _ in range(STALE_RENEWALS_MAX):
        member.table.carry_out(renewal(seen=1, prev=member.table.table.rows[0].seq))
        orders = asked(member.answer(request))
        assert orders == [renewal(seen=1, prev=member.table.table.rows[0].seq)]
        request = orders[0]
    member.table.carry_out(renewal(seen=1, prev=member.table.table.rows[0].seq))
    assert asked(member.answer(request)) == [], "somebody else renews my row: no reason to hurry"
    assert member.core.wake_at(member.now) > member.now


def test_a_newer_version_is_adopted_and_declared_at_once(member: Story) -> None:
    member.table.carry_out(Join(OTHER, INFO))
    orders = member.renew()
    assert AdoptView(member.core.view) in orders
    assert asked(orders) == [renewal(seen=2, prev=3)]
    member.answer(renewal(seen=2, prev=3))
    assert member.table.table.rows[0].seen == 2


def test_S032_an_old_table_that_arrives_late_is_nobodys_view(member: Story) -> None:
    old = TableAnswer(TableStatus.OK, member.table.table)
    member.table.carry_out(Join(OTHER, INFO))
    member.renew()
    assert member.on(Answered(Read(), member.now, old)) == []
    assert member.core.view.version == 2


def test_a_hint_is_followed_by_a_look_and_only_one(member: Story) -> None:
    assert member.on(Hinted(1)) == []
    orders = member.on(Hinted(7))
    assert asked(orders) == [renewal(seen=1, prev=2)]
    assert asked(member.answer(renewal(seen=1, prev=2))) == [], "a hint at a version that is not there"


def test_a_hint_that_comes_during_a_renewal_is_followed_afterwards(member: Story) -> None:
    member.tick_at(member.core.wake_at(member.now))
    before = member.table.carry_out(renewal(seen=1, prev=2))
    member.table.carry_out(Join(OTHER, INFO))
    assert member.on(Hinted(2)) == []
    assert asked(member.on(Answered(renewal(seen=1, prev=2), member.now, before))) == [renewal(seen=1, prev=3)]


# ---- the end


def test_R350_a_silo_that_is_told_it_is_dead_gives_up_for_ever(member: Story) -> None:
    member.table.carry_out(Bury(ME, "test"))
    orders = member.renew()
    assert orders[0] == ResignRight(dead=True, because="the table calls it dead")
    assert (member.core.deadline, member.core.wake_at(member.now)) == (-math.inf, math.inf)
    refused = member.on(AdvanceAsked(9, SiloStatus.LEAVING))[0]
    assert isinstance(refused, Conclude)
    assert isinstance(refused.error, SiloFenced)
    assert member.on(GoodbyeAsked(10)) == [Conclude(10)]


def test_S024_a_silo_whose_row_is_gone_gives_up(member: Story) -> None:
    member.table.carry_out(Join(OTHER, INFO))
    without_me = msgspec.structs.replace(member.table.table, rows=member.table.table.rows[1:])
    orders = member.on(Answered(Read(), member.now, TableAnswer(TableStatus.OK, without_me)))
    assert isinstance(orders[0], ResignRight)


def test_a_row_that_was_removed_and_made_anew_is_not_mine(member: Story) -> None:
    """A join that was delayed past the end of its own row brings a row back that has nothing to do with the lease."""
    row = msgspec.structs.replace(member.table.table.rows[0], joined=9, seq=1, seen=9)
    revived = msgspec.structs.replace(member.table.table, version=9, rows=(row,))
    orders = member.on(Answered(Read(), member.now, TableAnswer(TableStatus.OK, revived)))
    assert ResignRight(dead=True, because="another process took its row") in orders


def test_at_a_goodbye_the_right_ends_before_the_request_leaves(member: Story) -> None:
    assert member.on(GoodbyeAsked(5)) == [
        ResignRight(dead=False, because="it said goodbye"),
        AskTable(Bury(ME, "its own goodbye")),
    ]
    assert member.core.wake_at(member.now) == math.inf, "it renews no more"
    orders = member.answer(Bury(ME, "its own goodbye"))
    assert orders[-1] == Conclude(5)
    assert not any(isinstance(order, ResignRight) for order in orders)


def test_a_goodbye_whose_answer_was_lost_is_said_again(member: Story) -> None:
    member.on(GoodbyeAsked(5))
    member.on(Failed(Bury(ME, "its own goodbye"), member.now, LOST))
    assert asked(member.tick_at(member.core.wake_at(member.now))) == [Bury(ME, "its own goodbye")]


def test_a_goodbye_ends_a_join_that_is_still_asked_for(story: Story) -> None:
    story.on(JoinAsked(1, ME, INFO))
    orders = story.on(GoodbyeAsked(2))
    assert isinstance(orders[1], Conclude)
    assert orders[1].token == 1
    assert asked(orders) == [Bury(ME, "its own goodbye")]
    story.on(Failed(Join(ME, INFO), story.now, LOST))
    assert Join(ME, INFO) not in asked(story.tick_at(story.now + 5)), "it would bring the row back"


# ---- asking


def test_reads_that_are_asked_for_during_a_read_share_the_next_one(member: Story) -> None:
    assert asked(member.on(ReadAsked(11))) == [Read()]
    assert member.on(ReadAsked(12)) == member.on(ReadAsked(13)) == []
    assert member.answer(Read()) == [Conclude(11), AskTable(Read())]
    assert member.answer(Read()) == [Conclude(12), Conclude(13)]


def test_a_read_that_fails_is_not_repeated(member: Story) -> None:
    member.on(ReadAsked(11))
    assert member.on(Failed(Read(), member.now, LOST)) == [Conclude(11, LOST)]


def test_an_advance_is_repeated_until_it_is_answered(member: Story) -> None:
    advance = Advance(ME, SiloStatus.ACTIVE)
    assert member.on(AdvanceAsked(7, SiloStatus.ACTIVE)) == [AskTable(advance)]
    member.on(Failed(advance, member.now, LOST))
    member.now += 1.0
    assert advance in asked(member.on(Ticked()))
    assert Conclude(7) in member.answer(advance)


def cordon(member: Story, *, cordoned: bool = True) -> Cordon:
    """The request as it is made by what the core knows now."""
    return Cordon(ME, INFO, cordoned, member.core.view.version)


def test_a_cordon_is_repeated_until_it_is_answered(member: Story) -> None:
    request = cordon(member)
    assert member.on(CordonAsked(7, True)) == [AskTable(request)]
    member.on(Failed(request, member.now, LOST))
    member.now += 1.0
    assert request in asked(member.on(Ticked()))
    assert Conclude(7) in member.answer(request)
    own = member.core.view.row(ME)
    assert own is not None
    assert own.cordoned


def test_a_cordon_that_finds_a_newer_table_is_asked_anew_by_that_one(member: Story) -> None:
    request = cordon(member)
    member.on(CordonAsked(7, True))
    member.table.carry_out(Join(OTHER, INFO))
    orders = member.answer(request)
    assert Conclude(7) not in orders
    anew = next(each for each in asked(orders) if isinstance(each, Cordon))
    assert anew.version == request.version + 1
    assert Conclude(7) in member.answer(anew)


def test_the_last_of_two_orders_to_cordon_and_not_holds(member: Story) -> None:
    first = cordon(member)
    member.on(CordonAsked(7, True))
    member.on(Failed(first, member.now, LOST))
    told = [order for order in member.on(CordonAsked(8, False)) if isinstance(order, Conclude)]
    assert [(order.token, type(order.error)) for order in told] == [(7, MembershipUnavailable)]
    member.now += 1.0
    assert first not in asked(member.on(Ticked()))
    assert Conclude(8) in member.answer(cordon(member, cordoned=False))
    assert not member.table.table.rows[0].cordoned


def test_a_cordon_of_what_is_no_member_is_refused(story: Story) -> None:
    (told,) = story.on(CordonAsked(7, True))
    assert isinstance(told, Conclude)
    assert isinstance(told.error, SiloFenced)


def test_a_cordon_goes_along_into_the_next_table(member: Story) -> None:
    member.on(CordonAsked(7, True))
    member.answer(cordon(member))
    member.renew()
    member.table.lose()
    member.table.carry_out(Join(OTHER, INFO))
    rejoins: list[Rejoin] = []
    while not rejoins:
        requests = asked(member.tick_at(member.core.wake_at(member.now)))
        rejoins = [each for each in requests if isinstance(each, Rejoin)]
        for each in requests:
            rejoins += [again for again in asked(member.answer(each)) if isinstance(again, Rejoin)]
    assert rejoins[0].cordoned


# ---- judging


def other_joins(story: Story, silo: SiloAddress = OTHER, info: SiloInfo | None = None) -> None:
    story.table.carry_out(Join(silo, info or SiloInfo(name=silo.endpoint)))
    request: list[TableRequest] = asked(story.renew())
    while request:
        request = asked(story.answer(request[0]))


def test_a_verdict_is_due_after_the_wait_and_bound_to_what_was_seen(member: Story) -> None:
    other_joins(member)
    seen_at = member.core.since(OTHER)
    member.renew_until(seen_at + 5.5)
    assert member.table.table.rows[1].dead is None
    assert member.core.wake_at(member.now) == pytest.approx(seen_at + 5.5)
    renewal = asked(member.tick_at(seen_at + 5.5))
    assert isinstance(renewal[0], Renew), "first a fresh look"
    assert asked(member.answer(renewal[0])) == [Verdict(OTHER, member.table.table.run, 2, 1)]
    orders = member.answer(Verdict(OTHER, member.table.table.run, 2, 1))
    assert AdoptView(member.core.view) in orders
    assert member.core.view.is_dead(OTHER)


def test_silence_counts_from_when_the_answer_was_received(member: Story) -> None:
    member.table.carry_out(Join(OTHER, INFO))
    request = asked(member.tick_at(member.core.wake_at(member.now)))[0]
    member.answer(request, after_s=0.9)
    assert member.core.since(OTHER) == member.now
    assert member.core.silence_s(OTHER) == 0.0
    assert member.core.silence_s(THIRD) == math.inf


def test_a_renewal_a_failover_and_a_gap_each_end_the_silence(member: Story) -> None:
    other_joins(member)

    def since() -> float:
        return member.core.since(OTHER)

    before = since()
    member.renew()
    assert since() == before
    member.table.carry_out(Renew(OTHER, seen=2, prev=1))
    member.renew()
    assert since() == member.now
    member.table.fail_over()
    for rejoin in brought(member.renew()):
        member.answer(rejoin)
    assert since() == member.now
    member.now += 2.6
    member.tick_at(member.now)
    member.answer(Renew(ME, seen=member.core.view.version, prev=member.table.table.rows[0].seq))
    assert since() == member.now


def test_a_refused_verdict_is_given_anew_on_the_facts_of_the_refusal(member: Story) -> None:
    other_joins(member)
    member.renew_until(member.core.since(OTHER) + 5.5)
    verdict = asked(member.answer(asked(member.tick_at(member.core.wake_at(member.now)))[0]))[0]
    assert isinstance(verdict, Verdict)
    member.table.carry_out(Advance(ME, SiloStatus.ACTIVE))
    orders = asked(member.answer(verdict))
    assert Verdict(OTHER, verdict.run, verdict.version + 1, verdict.seq) in orders


def test_of_two_judges_one_waits_a_beat_for_the_other_unless_that_one_is_silent_too() -> None:
    extra: list[float] = []
    for me, judge in ((ME, THIRD), (THIRD, ME)):
        story = Story()
        story.on(JoinAsked(1, me, INFO))
        story.answer(Join(me, INFO))
        other_joins(story)
        other_joins(story, judge)
        due = story.core.since(OTHER) + 5.5
        story.core.hear_of(judge, due - 0.5)
        extra.append(story.core.judges_at(OTHER, due) - due)
        story.core.hear_of(judge, due - 5.5)
        assert story.core.judges_at(OTHER, due) == due
    assert sorted(extra) == pytest.approx([0.0, 1.0])


# ---- what others say


def peers(member: Story) -> Story:
    other_joins(member)
    other_joins(member, THIRD)
    return member


def told(orders: list[Order]) -> list[tuple[SiloAddress, LeaseMessage]]:
    return [(order.peer, order.message) for order in orders if isinstance(order, Tell)]


def late_for(story: Story) -> Verdict:
    """A verdict on OTHER that could take effect now."""
    table = story.table.table
    return Verdict(OTHER, table.run, table.version, next(row.seq for row in table.rows if row.silo == OTHER))


def test_nobody_is_probed_in_good_times_and_everybody_each_beat_once_a_renewal_is_old(member: Story) -> None:
    peers(member)
    sent_at = member.now - 0.01
    member.renew_until(member.now + 20)
    probes: list[float] = []
    renewed = member.core.evidence.renewed
    assert renewed > sent_at + 18
    while member.core.wake_at(member.now) < renewed + 4.5:
        orders = member.tick_at(member.core.wake_at(member.now))
        probes += [message.echo for _, message in told(orders) if isinstance(message, Probe)]
        for request in asked(orders):
            member.on(Failed(request, member.now, LOST))
    beats = [renewed + 2.0, renewed + 3.0, renewed + 4.0]
    assert probes == pytest.approx([beat for beat in beats for _ in (OTHER, THIRD)])


def test_acknowledgements_of_half_the_others_count_from_when_they_were_asked_for(member: Story) -> None:
    peers(member)
    renewed = member.core.evidence.renewed
    member.now = renewed + 4.0
    assert member.on(PeerSaid(OTHER, Acknowledgement(renewed + 3.0))) == [HoldRight(renewed + 8.0)]
    assert member.on(PeerSaid(THIRD, Acknowledgement(renewed + 2.5))) == [], "one of two others is enough"
    assert member.on(PeerSaid(OTHER, Acknowledgement(renewed + 2.0))) == [], "nothing goes back"
    assert member.on(PeerSaid(OTHER, Acknowledgement(member.now + 1))) == [], "what was never asked"
    member.now = renewed + 29
    assert member.on(PeerSaid(OTHER, Acknowledgement(member.now))) == [HoldRight(renewed + 30.0)], "L+G ends it"


def test_a_view_with_more_others_asks_for_more_acknowledgements(member: Story) -> None:
    peers(member)
    renewed = member.core.evidence.renewed
    member.now = renewed + 4.0
    member.on(PeerSaid(OTHER, Acknowledgement(renewed + 3.0)))
    assert member.core.deadline == renewed + 8.0
    member.table.carry_out(Join(FOURTH, SiloInfo(name="4")))
    member.on(Answered(Read(), member.now, TableAnswer(TableStatus.OK, member.table.table)))
    assert member.core.deadline == renewed + 5.0, "two of three now"


def test_a_lone_silo_has_nobody_to_acknowledge_it(member: Story) -> None:
    assert member.core.deadline == member.core.evidence.renewed + 5.0
    assert member.core.wake_at(member.now) == pytest.approx(member.now - 0.01 + 1.0), "and probes nobody"


def test_an_acknowledgement_is_a_promise_not_to_assent_for_the_wait(member: Story) -> None:
    peers(member)
    assert told(member.on(PeerSaid(OTHER, Probe(7.0)))) == [(OTHER, Acknowledgement(7.0))]
    promised = member.now
    verdict = late_for(member)
    member.now = promised + 5.49
    assert member.on(PeerSaid(THIRD, AssentAsked(verdict))) == []
    member.now = promised + 5.51
    assert told(member.on(PeerSaid(THIRD, AssentAsked(verdict)))) == [(THIRD, Assent(verdict))]


def test_a_silo_that_was_heard_of_late_is_not_assented_to(member: Story) -> None:
    peers(member)
    member.on(PeerSaid(OTHER, Acknowledgement(member.now)))
    assert member.on(PeerSaid(THIRD, AssentAsked(late_for(member)))) == []


def test_H1_who_assented_acknowledges_no_more_until_the_table_shows_the_verdict_void(member: Story) -> None:
    peers(member)
    verdict = late_for(member)
    member.now += 10
    member.on(PeerSaid(THIRD, AssentAsked(verdict)))
    assert member.on(PeerSaid(OTHER, Probe(1.0))) == []
    before = member.now - 0.001
    member.table.carry_out(Renew(OTHER, seen=3, prev=1))
    shown = TableAnswer(TableStatus.OK, member.table.table)
    member.on(Answered(Read(), before, shown))
    assert told(member.on(PeerSaid(OTHER, Probe(2.0)))) == [], "an answer to what was sent before the assent"
    member.now += 1
    member.on(Answered(Read(), member.now, shown))
    assert told(member.on(PeerSaid(OTHER, Probe(3.0)))) == [(OTHER, Acknowledgement(3.0))]


def test_H1_who_assented_and_reads_that_it_was_carried_acknowledges_never_again(member: Story) -> None:
    peers(member)
    verdict = late_for(member)
    member.now += 10
    member.on(PeerSaid(THIRD, AssentAsked(verdict)))
    member.table.carry_out(verdict)
    member.now += 1
    assert member.on(PeerSaid(OTHER, Probe(1.0))) == [], "nor while it does not know"
    member.on(Answered(Read(), member.now, TableAnswer(TableStatus.OK, member.table.table)))
    assert member.core.view.is_dead(OTHER)
    assert member.on(PeerSaid(OTHER, Probe(2.0))) == []


def test_an_assent_to_another_run_of_the_store_waits_until_the_binding_is_shed(member: Story) -> None:
    """Else an old request that comes late would replace the newer binding, and any answer would shed it."""
    peers(member)
    newer = msgspec.structs.replace(late_for(member), run="newer")
    member.now += 10
    member.on(PeerSaid(THIRD, AssentAsked(newer)))
    assert member.on(PeerSaid(THIRD, AssentAsked(late_for(member)))) == []
    assert member.core.promises.bound[OTHER].run == "newer"


def test_a_verdict_asks_all_members_of_every_view_that_its_target_may_hold(member: Story) -> None:
    peers(member)
    member.table.carry_out(Bury(THIRD, "gone"))  # OTHER has declared a version that had it
    member.renew_until(member.core.since(OTHER) + 6.6)
    verdict = late_for(member)
    orders = member.on(Answered(Read(), member.now, TableAnswer(TableStatus.OK, member.table.table)))
    assert told(orders) == [(THIRD, AssentAsked(verdict))]
    assert asked(orders) == [], "mine is one of two in the older view"
    assert asked(member.on(PeerSaid(THIRD, Assent(verdict)))) == [verdict]


def test_the_table_is_asked_through_the_others_in_turn_while_it_does_not_answer(member: Story) -> None:
    peers(member)
    ways: list[SiloAddress | None] = []
    for _ in range(4):
        orders = member.tick_at(member.core.wake_at(member.now))
        while not (asked(orders) or any(isinstance(message, Forward) for _, message in told(orders))):
            orders = member.tick_at(member.core.wake_at(member.now))
        for request in asked(orders):
            ways.append(None)
            member.on(Failed(request, member.now, LOST))
        ways += [peer for peer, message in told(orders) if isinstance(message, Forward)]
    assert ways == [None, OTHER, THIRD, None]


def test_a_renewal_that_another_passed_on_counts_from_when_it_left(member: Story) -> None:
    peers(member)
    start = member.core.wake_at(member.now)
    member.on(Failed(asked(member.tick_at(start))[0], start, LOST))
    forward = told(member.tick_at(start + 1.0))[0][1]
    assert isinstance(forward, Forward)
    answer = member.table.carry_out(forward.renewal)
    member.now += 0.5
    member.on(PeerSaid(OTHER, Forwarded(forward.echo, forward.renewal, answer)))
    assert member.core.deadline == start + 1.0 + 5.0


def test_a_renewal_is_passed_on_for_the_silo_that_it_renews_and_for_no_other(member: Story) -> None:
    peers(member)
    theirs = Renew(OTHER, seen=3, prev=1)
    assert member.on(PeerSaid(THIRD, Forward(4.0, theirs))) == []
    assert asked(member.on(PeerSaid(OTHER, Forward(4.0, theirs)))) == [theirs]
    answer = member.table.carry_out(theirs)
    orders = member.on(Answered(theirs, member.now, answer))
    assert told(orders) == [(OTHER, Forwarded(4.0, theirs, answer))]
    member.table.carry_out(Bury(OTHER, "test"))
    answer = member.table.carry_out(Renew(OTHER, seen=3, prev=2))
    assert answer.status is TableStatus.DEAD
    member.on(PeerSaid(OTHER, Forward(5.0, Renew(OTHER, seen=3, prev=2))))
    assert not any(
        isinstance(order, ResignRight)
        for order in member.on(Answered(Renew(OTHER, seen=3, prev=2), member.now, answer))
    ), "the death of another is not mine"


# ---- proof


def test_only_living_neighbours_on_this_machine_are_watched(member: Story) -> None:
    near = ProcessIdentity("machine", 2, 2)
    member.table.carry_out(Join(OTHER, SiloInfo(name="near", process=near)))
    member.table.carry_out(Join(THIRD, SiloInfo(name="far", process=ProcessIdentity("elsewhere", 2, 2))))
    orders = member.renew()
    assert [order for order in orders if isinstance(order, WatchProcess)] == [WatchProcess(OTHER, near)]
    member.answer(asked(orders)[0])
    assert asked(member.on(ProcessEnded(OTHER))) == [Bury(OTHER, "its process ended")]
    assert UnwatchProcess(OTHER) in member.answer(Bury(OTHER, "its process ended"))


def test_a_proof_that_could_not_be_told_is_told_with_the_next_answer(member: Story) -> None:
    other_joins(member)
    member.on(ProcessEnded(OTHER))
    member.on(Failed(Bury(OTHER, "its process ended"), member.now, LOST))
    assert Bury(OTHER, "its process ended") in asked(member.renew())


# ---- a table that was lost


def brought(orders: list[Order]) -> list[Rejoin]:
    return [request for request in asked(orders) if isinstance(request, Rejoin)]


def test_a_silo_whose_table_was_lost_keeps_its_lease_and_joins_again_as_itself(member: Story) -> None:
    other_joins(member)
    known, deadline = member.table.table, member.core.deadline
    member.table.lose()
    orders = member.renew()
    assert brought(orders) == [Rejoin(ME, INFO, SiloStatus.JOINING, known)]
    assert member.core.deadline == deadline, "neither longer nor shorter"
    orders = member.answer(brought(orders)[0])
    assert member.core.phase is Phase.MEMBER
    assert member.core.view.is_alive(OTHER)
    assert member.core.view.is_recovering, "until the other one is back"
    declares = asked(orders)[0]
    assert declares == renewal(seen=known.version + 1, prev=1, table=member.table.table.id)
    member.answer(declares)
    assert member.core.deadline == pytest.approx(member.now - 0.01 + 5.0)


def test_what_the_lost_table_still_says_counts_for_nothing(member: Story) -> None:
    late = member.table.carry_out(Join(OTHER, INFO))
    member.table.lose()
    member.answer(brought(member.renew())[0])
    view = member.core.view
    assert not any(isinstance(order, AdoptView) for order in member.on(Answered(Read(), member.now, late)))
    assert member.core.view is view


def test_the_empty_table_of_in_between_that_shows_up_late_is_not_taken_for_a_newer_one(member: Story) -> None:
    asked_at = member.now
    member.table.lose()
    empty = member.table.carry_out(Read())
    member.answer(brought(member.renew())[0])
    view = member.core.view
    member.on(Answered(Read(), asked_at, empty))
    assert brought(member.tick_at(member.core.wake_at(member.now))) == []
    assert member.core.view is view


def test_any_answer_of_another_table_tells_that_it_was_lost(member: Story) -> None:
    member.table.lose()
    member.table.carry_out(Join(OTHER, INFO))
    assert brought(member.on(Answered(Read(), member.now, member.table.carry_out(Read())))) == []
    assert brought(member.tick_at(member.core.wake_at(member.now)))


def fenced_and_lost(member: Story) -> None:
    """The table is lost while the member does not hold the right; it has joined again."""
    request = asked(member.tick_at(member.core.wake_at(member.now)))[0]
    member.table.lose()
    member.now = member.core.deadline
    for each in brought(member.answer(request, after_s=0.0)):
        member.answer(each)


def test_a_silo_without_the_right_comes_back_as_itself_and_starts_nothing_until_the_directory_has_judged(
    member: Story,
) -> None:
    fenced_and_lost(member)
    assert member.core.phase is Phase.MEMBER
    assert member.core.deadline == -math.inf, "it may have been replaced"
    member.renew()
    assert member.core.deadline == -math.inf, "no renewal says that it was not"
    orders = member.on(Confirmed(member.table.table.run))
    assert any(isinstance(order, HoldRight) for order in orders)
    assert member.core.deadline > member.now


def test_the_word_of_the_directory_counts_for_the_table_of_which_it_was_given(member: Story) -> None:
    run = member.table.table.run
    fenced_and_lost(member)
    member.on(Confirmed(run))
    assert member.core.deadline == -math.inf


def test_a_table_that_came_back_as_it_was_earlier_is_lost(member: Story) -> None:
    kept = member.table.copy()
    other_joins(member)
    member.renew()
    known, deadline = member.table.table, member.core.deadline
    member.table.set_back(kept)
    orders = member.renew()
    assert [request.known for request in brought(orders)] == [known]
    assert member.core.deadline == deadline
    member.answer(brought(orders)[0])
    assert member.table.table.id != known.id, "it is another table from now on"
    assert member.core.view.is_alive(OTHER)


def test_who_was_dead_is_dead_in_a_table_that_came_back_as_it_was_earlier(member: Story) -> None:
    other_joins(member)
    kept = member.table.copy()
    member.table.carry_out(Bury(OTHER, "its process ended"))
    member.renew()
    member.table.set_back(kept)
    assert member.table.carry_out(Read()).table.rows[-1].status is not SiloStatus.DEAD
    member.answer(brought(member.renew())[0])
    assert member.core.view.is_dead(OTHER)


def test_a_reading_of_the_next_table_says_nothing_before_the_silo_is_in_it(member: Story) -> None:
    member.table.lose()
    member.renew()
    member.on(ReadAsked(9))
    (failed,) = [order for order in member.answer(Read()) if isinstance(order, Conclude)]
    assert isinstance(failed.error, MembershipUnavailable)


def test_a_join_again_whose_answer_was_lost_is_repeated_and_gives_no_lease_of_its_own(member: Story) -> None:
    member.table.lose()
    rejoin = brought(member.renew())[0]
    member.table.carry_out(rejoin)
    deadline = member.core.deadline
    member.on(Failed(rejoin, member.now, LOST))
    again = brought(member.tick_at(member.core.wake_at(member.now)))
    assert again == [rejoin]
    orders = member.answer(again[0])
    assert member.core.deadline == deadline
    assert isinstance(asked(orders)[0], Renew)


def test_an_advance_that_meets_another_table_is_asked_again(member: Story) -> None:
    member.table.lose()
    member.table.carry_out(Join(OTHER, INFO))
    advance = Advance(ME, SiloStatus.ACTIVE)
    member.on(AdvanceAsked(7, SiloStatus.ACTIVE))
    assert not any(isinstance(order, Conclude | ResignRight) for order in member.answer(advance))
    requests = [*asked(member.tick_at(member.core.wake_at(member.now)))]
    while Advance(ME, SiloStatus.ACTIVE) not in requests:
        member.answer(requests[0])
        requests = asked(member.tick_at(member.core.wake_at(member.now)))
    assert Conclude(7) in member.answer(advance)
    assert member.table.table.rows[-1].status is SiloStatus.ACTIVE


def test_a_silo_that_declared_nothing_in_this_table_dies_of_no_majority(member: Story) -> None:
    other_joins(member)
    member.table.lose()
    for request in asked(member.answer(brought(member.renew())[0])):
        member.answer(request)
    since = member.core.since(OTHER)
    verdict: list[TableRequest] = []
    while not verdict:
        orders = member.answer(asked(member.tick_at(member.core.wake_at(member.now)))[0], after_s=0.0)
        verdict = [request for request in asked(orders) if isinstance(request, Verdict)]
    assert member.now - since >= member.core.settings.wait_alone_s, "mine would be the majority at W"


# ---- silos of an earlier table


def given_up(orders: list[Order]) -> list[Verdict]:
    return [request for request in asked(orders) if isinstance(request, Verdict) and request.target == EARLIER]


def beats(member: Story, until: float) -> list[Verdict]:
    """Renew on and on; the verdicts on earlier silos that were asked for by then."""
    found: list[Verdict] = []
    while member.core.wake_at(member.now) < until:
        for request in asked(member.tick_at(member.core.wake_at(member.now))):
            found += given_up(member.answer(request, after_s=0.0))
    return found


def test_silos_of_an_earlier_table_are_given_up_s_after_the_table_was_first_seen(member: Story) -> None:
    seen_at, wait_s = 100.01, member.core.settings.wait_alone_s
    assert beats(member, seen_at + wait_s) == []
    (verdict,) = beats(member, seen_at + wait_s + member.core.settings.renew_every_s)
    table = member.table.table
    assert verdict == Verdict(EARLIER, table.run, table.version, 0)
    assert member.core.view.table.awaits_earlier
    member.answer(verdict)
    assert not member.core.view.is_recovering
    assert beats(member, member.now + 3 * wait_s) == [], "once"


def test_another_one_gives_them_up_once_it_has_itself_seen_the_table_for_s() -> None:
    story = Story()
    story.table.carry_out(Join(OTHER, INFO))
    story.table.carry_out(Bury(OTHER, "it began the table"))
    story.now += 1000.0
    story.join()
    story.renew()
    came_at, wait_s = story.now, story.core.settings.wait_alone_s
    assert beats(story, came_at + wait_s - 1.1) == [], "how old the table is no clock of another tells"
    assert beats(story, came_at + wait_s + 1.1)


def test_an_order_to_give_up_that_was_lost_or_came_too_late_is_given_again(member: Story) -> None:
    wait_s = member.core.settings.wait_alone_s
    (verdict,) = beats(member, member.now + wait_s + 0.5)
    member.on(Failed(verdict, member.now, LOST))
    (again,) = beats(member, member.now + 1.5)
    member.table.carry_out(Join(OTHER, INFO))
    orders = member.answer(again)
    assert given_up(orders) == [Verdict(EARLIER, again.run, again.version + 1, 0)]
    member.answer(given_up(orders)[0])
    assert not member.core.view.is_recovering


def test_who_awaits_earlier_silos_begins_anew_with_another_run_of_the_store(member: Story) -> None:
    wait_s = member.core.settings.wait_alone_s
    assert beats(member, member.now + wait_s - 2) == []
    member.table.fail_over()
    for request in brought(member.renew()):
        member.answer(request)
    assert member.table.table.awaits_earlier
    assert beats(member, member.now + wait_s - 2) == []


def test_earlier_silos_are_asked_after_of_nobody_and_count_as_no_members(member: Story) -> None:
    told: list[Order] = []
    until = member.now + member.core.settings.wait_alone_s
    while member.core.wake_at(member.now) < until:
        orders = member.tick_at(member.core.wake_at(member.now))
        for request in asked(orders):
            orders += member.answer(request, after_s=0.0)
        told += [order for order in orders if isinstance(order, Tell)]
    assert told == []
    assert list(member.core.observations) == []


def test_the_first_silo_of_a_cluster_says_so_when_it_joins(story: Story) -> None:
    assert story.on(JoinAsked(1, ME, INFO, bootstrap=True)) == [AskTable(Join(ME, INFO, bootstrap=True))]
    story.answer(Join(ME, INFO, bootstrap=True))
    assert not story.core.view.is_recovering
    assert beats(story, story.now + 2 * story.core.settings.wait_alone_s) == []


def test_a_silo_that_was_given_up_and_comes_back_is_dead(member: Story) -> None:
    member.table.lose()
    member.table.carry_out(Join(OTHER, INFO))
    stands = member.table.table
    member.table.carry_out(Verdict(EARLIER, stands.run, stands.version, 0))
    member.now += 100.0
    (rejoin,) = brought(member.renew())
    orders = member.answer(rejoin)
    assert any(isinstance(order, ResignRight) and order.dead for order in orders)
    assert member.core.phase is Phase.DEAD


# ---- everything at any time


def test_any_event_in_any_phase_is_borne() -> None:
    answer = MemoryMembershipTable().carry_out(Join(ME, INFO))
    events: list[Event] = [
        JoinAsked(1, ME, INFO),
        JoinAsked(2, OTHER, INFO),
        AdvanceAsked(3, SiloStatus.ACTIVE),
        ReadAsked(4),
        GoodbyeAsked(5),
        Ticked(),
        Hinted(3),
        ProcessEnded(OTHER),
        *(
            Answered(request, 1.0, TableAnswer(status, answer.table))
            for request in (Join(ME, INFO), Renew(ME, 1, 1), Verdict(OTHER, "r", 1, 1), Bury(OTHER, ""), Read())
            for status in TableStatus
        ),
        PeerSaid(OTHER, Probe(1.0)),
        PeerSaid(OTHER, Acknowledgement(1.0)),
        PeerSaid(OTHER, AssentAsked(Verdict(ME, "r", 1, 1))),
        PeerSaid(OTHER, AssentAsked(Verdict(OTHER, "r", 1, 1))),
        PeerSaid(OTHER, Assent(Verdict(OTHER, "r", 1, 1))),
        PeerSaid(OTHER, Forward(1.0, Renew(OTHER, 1, 1))),
        *(PeerSaid(OTHER, Forwarded(1.0, Renew(ME, 1, 1), TableAnswer(each, answer.table))) for each in TableStatus),
        Failed(Join(ME, INFO), 1.0, LOST),
        Failed(Renew(ME, 1, 1), 1.0, LOST),
        Failed(Read(), 1.0, LOST),
    ]
    for first, second, third in itertools.product(events, repeat=3):
        core = LeaseCore(LeaseSettings())
        for event in (first, second, third):
            core.on(event, 2.0)
            core.wake_at(2.0)
        holds = core.deadline > -math.inf
        assert not holds or core.phase is Phase.MEMBER, (first, second, third)


def test_settings_out_of_range_are_refused() -> None:
    for lease_s in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(InvalidSettings, match="lease_s"):
            LeaseSettings(lease_s=lease_s)
    for grace_s in (-1.0, math.inf, math.nan):
        with pytest.raises(InvalidSettings, match="grace_s"):
            LeaseSettings(grace_s=grace_s)
    for drift in (0.0, 1.0, -0.1):
        with pytest.raises(InvalidSettings, match="drift"):
            LeaseSettings(drift=drift)


def test_R120_a_beat_is_shorter_than_eligibility_and_that_shorter_than_the_wait() -> None:
    settings = LeaseSettings()
    assert settings.renew_every_s < settings.eligible_within_s < settings.gap_s < settings.lease_s < settings.wait_s
    assert settings.probe_after_s + 2 * settings.renew_every_s < settings.lease_s, "there is time to ask the others"
    assert settings.lease_s + settings.grace_s < settings.wait_alone_s
    assert (settings.renew_every_s, settings.eligible_within_s, settings.wait_s) == (1.0, 2.0, 5.5)
    assert settings.wait_alone_s == pytest.approx(33.0)
