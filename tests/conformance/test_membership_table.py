"""What every membership table keeps to, whichever store it is on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator
from typing import Any, cast

import msgspec
import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from silo.directory.addresses import SiloAddress
from silo.directory.errors import InvalidSettings, MembershipUnavailable
from silo.directory.membership import (
    EARLIER,
    Advance,
    Bury,
    Cordon,
    Join,
    MembershipTable,
    ProcessIdentity,
    Read,
    Rejoin,
    Renew,
    SiloInfo,
    SiloRow,
    SiloStatus,
    Table,
    TableAnswer,
    TableRequest,
    TableStatus,
    Verdict,
    View,
)
from silo.directory.memory_membership import DEAD_ROWS_KEPT, RUN_LEAP, MemoryMembershipTable
from silo.directory.redis_connection import open_sync
from silo.directory.redis_membership import RedisMembershipTable, members_key, views_channel
from silo.embedded import EmbeddedServer

A, B, C = (SiloAddress(f"10.0.0.{n}:7000", 2**62 + n) for n in (1, 2, 3))
INFO = SiloInfo(
    name="silo-1\0é\n",
    kinds=("room", "player"),
    meta={"zone": "a b"},
    app_version="1.2",
    process=ProcessIdentity("boot/1/2", 17, 2**40),
)
OK, STALE, DEAD, LOST = TableStatus.OK, TableStatus.STALE, TableStatus.DEAD, TableStatus.LOST
TIMEOUT_S = 5.0


@pytest.fixture(
    params=[
        "memory",
        pytest.param("redis_url", marks=pytest.mark.redis),
        pytest.param("redis_cluster_url", marks=pytest.mark.redis),
    ]
)
def table(request: pytest.FixtureRequest, cluster_name: str) -> Iterator[MembershipTable]:
    if request.param == "memory":
        yield MemoryMembershipTable()
        return
    url: str = request.getfixturevalue(request.param)
    redis_table = RedisMembershipTable(lambda timeout_s: open_sync(url, timeout_s), cluster_name)
    yield redis_table
    redis_table.close()


def ask(table: MembershipTable, request: TableRequest) -> TableAnswer:
    return table.ask(request, TIMEOUT_S)


def raw(url: str) -> Any:
    """A client for what the table does not do; typed loosely, as redis-py's own types are."""
    return cast("Any", redis.Redis).from_url(url)


def row(answer: TableAnswer, silo: SiloAddress) -> SiloRow:
    return next(row for row in answer.table.rows if row.silo == silo)


def verdict(answer: TableAnswer, target: SiloAddress) -> Verdict:
    return Verdict(target, answer.table.run, answer.table.version, row(answer, target).seq)


def test_an_empty_table_has_version_0(table: MembershipTable) -> None:
    answer = ask(table, Read())
    assert (answer.status, answer.table.version, answer.table.rows) == (OK, 0, ())
    assert answer.table.run


def test_a_join_adds_a_joining_row_that_has_seen_its_own_version(table: MembershipTable) -> None:
    answer = ask(table, Join(A, INFO))
    assert answer.status is OK
    assert answer.table.rows == (SiloRow(A, INFO, SiloStatus.JOINING, seq=1, seen=1, joined=1),)
    second = ask(table, Join(B, INFO))
    assert [(row.silo, row.joined) for row in second.table.rows] == [(A, 1), (B, 2)]


def test_a_join_that_is_there_already_is_stale_so_that_no_lease_counts_from_its_repetition(
    table: MembershipTable,
) -> None:
    first = ask(table, Join(A, INFO))
    again = ask(table, Join(A, INFO))
    assert (again.status, again.table) == (STALE, first.table)


def test_S022_a_restart_on_the_same_endpoint_joins_beside_the_one_before(table: MembershipTable) -> None:
    ask(table, Join(A, INFO))
    restarted = SiloAddress(A.endpoint, A.incarnation + 1)
    answer = ask(table, Join(restarted, INFO))
    assert answer.status is OK
    assert [row.silo for row in answer.table.rows] == [A, restarted]


def test_a_renewal_counts_up_and_declares_without_a_new_version(table: MembershipTable) -> None:
    ask(table, Join(A, INFO))
    ask(table, Join(B, INFO))
    answer = ask(table, Renew(A, seen=2, prev=1))
    assert answer.status is OK
    assert (row(answer, A).seq, row(answer, A).seen, answer.table.version) == (2, 2, 2)
    assert row(ask(table, Renew(A, seen=1, prev=2)), A).seen == 2, "what was declared stays declared"


def test_H11_a_renewal_without_the_last_answer_changes_nothing(table: MembershipTable) -> None:
    ask(table, Join(A, INFO))
    ask(table, Renew(A, seen=1, prev=1))
    answer = ask(table, Renew(A, seen=1, prev=1))
    assert answer.status is STALE
    assert row(answer, A).seq == 2


def test_a_silo_that_is_dead_or_unknown_is_told_so(table: MembershipTable) -> None:
    assert ask(table, Renew(A, seen=0, prev=1)).status is DEAD
    assert ask(table, Advance(A, SiloStatus.ACTIVE)).status is DEAD
    ask(table, Join(A, INFO))
    ask(table, Bury(A, "test"))
    assert ask(table, Renew(A, seen=1, prev=1)).status is DEAD
    assert ask(table, Advance(A, SiloStatus.ACTIVE)).status is DEAD
    assert ask(table, Join(A, INFO)).status is DEAD, "dead is final"


def test_the_status_only_moves_forward(table: MembershipTable) -> None:
    ask(table, Join(A, INFO))
    active = ask(table, Advance(A, SiloStatus.ACTIVE))
    assert (active.status, row(active, A).status, active.table.version) == (OK, SiloStatus.ACTIVE, 2)
    assert ask(table, Advance(A, SiloStatus.ACTIVE)).table == active.table
    leaving = ask(table, Advance(A, SiloStatus.LEAVING))
    assert row(leaving, A).status is SiloStatus.LEAVING
    back = ask(table, Advance(A, SiloStatus.ACTIVE))
    assert (back.status, back.table) == (OK, leaving.table)
    assert ask(table, Advance(A, SiloStatus.DEAD)).table == leaving.table, "nobody advances to death"


def test_a_cordon_is_one_change_in_a_row_that_stays_otherwise_as_it_was(table: MembershipTable) -> None:
    before = ask(table, Join(A, INFO)).table
    cordoned = ask(table, Cordon(A, INFO, True, before.version))
    assert (cordoned.status, cordoned.table.version) == (OK, before.version + 1)
    assert row(cordoned, A) == msgspec.structs.replace(before.rows[0], cordoned=True)
    assert ask(table, Cordon(A, INFO, True, before.version)).table == cordoned.table, "it is so already"
    active = ask(table, Advance(A, SiloStatus.ACTIVE))
    renewed = ask(table, Renew(A, seen=active.table.version, prev=1))
    assert row(renewed, A).cordoned, "neither an advance nor a renewal ends it"
    back = ask(table, Cordon(A, INFO, False, renewed.table.version))
    assert (back.status, row(back, A).cordoned, back.table.version) == (OK, False, renewed.table.version + 1)


def test_a_cordon_that_comes_late_undoes_no_later_order(table: MembershipTable) -> None:
    late = Cordon(A, INFO, True, ask(table, Join(A, INFO)).table.version)
    done = ask(table, late)
    undone = ask(table, Cordon(A, INFO, False, done.table.version))
    again = ask(table, late)
    assert (again.status, again.table) == (STALE, undone.table)


def test_only_a_living_silo_that_is_the_one_meant_is_cordoned(table: MembershipTable) -> None:
    assert ask(table, Cordon(A, INFO, True, 0)).status is DEAD
    joined = ask(table, Join(A, INFO)).table
    another = msgspec.structs.replace(INFO, name="another")
    assert ask(table, Cordon(A, another, True, joined.version)).status is STALE
    buried = ask(table, Bury(A, "test")).table
    assert ask(table, Cordon(A, INFO, True, buried.version)).status is DEAD


def test_a_cordon_outlives_the_table(table: MembershipTable, request: pytest.FixtureRequest, cluster_name: str) -> None:
    ask(table, Join(A, INFO))
    known = ask(table, Cordon(A, INFO, True, ask(table, Join(B, INFO)).table.version)).table
    lose(table, request, cluster_name)
    assert row(ask(table, Rejoin(B, INFO, SiloStatus.ACTIVE, known)), A).cordoned, "brought by another"
    assert row(ask(table, Rejoin(A, INFO, SiloStatus.ACTIVE, known, cordoned=True)), A).cordoned, "brought by itself"


@pytest.mark.parametrize("moved", ["run", "version", "seq"])
def test_a_verdict_on_facts_that_have_moved_changes_nothing(table: MembershipTable, moved: str) -> None:
    ask(table, Join(A, INFO))
    seen = ask(table, Join(B, INFO))
    given_ = verdict(seen, A)
    other: dict[str, object] = {"run": "another", "version": given_.version - 1, "seq": given_.seq + 1}
    refused = ask(table, msgspec.structs.replace(given_, **{moved: other[moved]}))
    assert (refused.status, refused.table) == (STALE, seen.table)
    committed = ask(table, given_)
    assert (committed.status, row(committed, A).status, row(committed, A).dead) == (OK, SiloStatus.DEAD, 3)
    assert committed.table.version == 3
    assert ask(table, given_).status is STALE


def test_H6_a_verdict_that_comes_after_a_renewal_changes_nothing(table: MembershipTable) -> None:
    ask(table, Join(A, INFO))
    late = verdict(ask(table, Join(B, INFO)), A)
    ask(table, Renew(A, seen=2, prev=1))
    assert row(ask(table, late), A).dead is None


def test_a_burial_needs_no_facts_and_may_be_repeated(table: MembershipTable) -> None:
    ask(table, Join(A, INFO))
    buried = ask(table, Bury(A, "test"))
    assert (buried.status, row(buried, A).dead) == (OK, 2)
    assert ask(table, Bury(A, "test")).table == buried.table
    assert ask(table, Bury(C, "never was")).table == buried.table


def test_dead_rows_beyond_the_limit_stay_until_every_living_silo_has_seen_them(table: MembershipTable) -> None:
    answer = ask(table, Join(A, INFO))
    for n in range(DEAD_ROWS_KEPT + 3):
        silo = SiloAddress("10.0.1.1:7000", n)
        ask(table, Join(silo, INFO))
        answer = ask(table, Bury(silo, "test"))
    assert len(answer.table.rows) == 1 + DEAD_ROWS_KEPT + 3
    ask(table, Renew(A, seen=answer.table.version, prev=1))
    assert ask(table, Read()).table.rows[1:] == answer.table.rows[1:], "a version always names the same rows"
    after = ask(table, Join(B, INFO))
    dead = [row.silo.incarnation for row in after.table.rows if row.status is SiloStatus.DEAD]
    assert dead == list(range(3, DEAD_ROWS_KEPT + 3))


@contextlib.contextmanager
def opened(request: pytest.FixtureRequest) -> Generator[Any]:
    """What the table of this test lies in, as an operator sees it."""
    url: str = request.getfixturevalue(request.node.callspec.params["table"])
    with contextlib.closing(cast("Any", open_sync(url, TIMEOUT_S))) as client:
        yield client


def lose(table: MembershipTable, request: pytest.FixtureRequest, cluster: str) -> None:
    """Whatever the store had is gone."""
    if isinstance(table, MemoryMembershipTable):
        table.lose()
        return
    with opened(request) as client:
        client.delete(members_key(cluster))


def kept(table: MembershipTable, request: pytest.FixtureRequest, cluster: str) -> Callable[[], None]:
    """What sets the store back to what it has now."""
    if isinstance(table, MemoryMembershipTable):
        copy = table.copy()
        return lambda: table.set_back(copy)
    with opened(request) as client:
        value = client.dump(members_key(cluster))

    def restore() -> None:
        with opened(request) as client:
            client.delete(members_key(cluster))
            client.restore(members_key(cluster), 0, value)

    return restore


def test_a_table_that_came_back_as_it_was_earlier_is_lost_and_another_begins_with_its_rows(
    table: MembershipTable, request: pytest.FixtureRequest, cluster_name: str
) -> None:
    ask(table, Join(A, INFO))
    ask(table, Join(B, INFO))
    older = ask(table, Join(C, INFO)).table
    set_back = kept(table, request, cluster_name)
    newer = ask(table, Bury(C, "test")).table
    ask(table, Renew(B, seen=newer.version, prev=1, table=newer.id))
    set_back()
    assert ask(table, Renew(A, seen=newer.version, prev=1, table=newer.id)).status is LOST, "it has seen more"
    assert ask(table, Renew(B, seen=older.version, prev=2, table=newer.id)).status is LOST, "it has renewed since"
    answer = ask(table, Rejoin(A, INFO, SiloStatus.ACTIVE, newer))
    assert answer.status is OK
    assert answer.table.id not in ("", newer.id)
    assert answer.table.version == newer.version + 1
    assert row(answer, C).status is SiloStatus.DEAD, "who was dead is dead"
    assert (row(answer, B).seq, row(answer, B).seen) == (0, 0), "until it is back, it has declared nothing"
    assert ask(table, Renew(B, seen=older.version, prev=1, table=newer.id)).status is LOST


def test_a_table_has_an_id_from_its_first_row_on_until_it_is_lost(
    table: MembershipTable, request: pytest.FixtureRequest, cluster_name: str
) -> None:
    assert ask(table, Read()).table.id == ""
    first = ask(table, Join(A, INFO)).table.id
    assert first
    assert ask(table, Join(B, INFO)).table.id == first
    lose(table, request, cluster_name)
    assert ask(table, Join(A, INFO)).table.id not in ("", first)


def test_a_renewal_in_a_table_that_was_lost_is_told_so_and_changes_nothing(
    table: MembershipTable, request: pytest.FixtureRequest, cluster_name: str
) -> None:
    known = ask(table, Join(A, INFO)).table
    renewal = Renew(A, seen=1, prev=1, table=known.id)
    lose(table, request, cluster_name)
    assert ask(table, renewal).status is TableStatus.LOST, "it is empty"
    other = ask(table, Join(B, INFO))
    answer = ask(table, renewal)
    assert (answer.status, answer.table) == (TableStatus.LOST, other.table)
    assert ask(table, msgspec.structs.replace(renewal, table=other.table.id)).status is DEAD, "it is missing from this"


def test_who_joins_again_brings_all_that_it_knew_and_the_dead_stay_dead(
    table: MembershipTable, request: pytest.FixtureRequest, cluster_name: str
) -> None:
    ask(table, Join(A, INFO))
    ask(table, Join(B, INFO))
    ask(table, Join(C, INFO))
    known = ask(table, Bury(C, "test")).table
    lose(table, request, cluster_name)
    answer = ask(table, Rejoin(A, INFO, SiloStatus.ACTIVE, known))
    assert (answer.status, answer.table.version) == (OK, known.version + 1)
    born = answer.table.version
    assert row(answer, A) == SiloRow(A, INFO, SiloStatus.ACTIVE, seq=1, seen=0, joined=born)
    assert row(answer, B) == SiloRow(B, INFO, SiloStatus.JOINING, seq=0, seen=0, joined=born)
    assert row(answer, C).status is SiloStatus.DEAD
    assert row(answer, C).dead == born
    again = ask(table, Rejoin(A, INFO, SiloStatus.ACTIVE, known))
    assert (again.status, again.table) == (STALE, answer.table)
    assert ask(table, Rejoin(C, INFO, SiloStatus.ACTIVE, known)).status is DEAD
    back = ask(table, Rejoin(B, INFO, SiloStatus.ACTIVE, known))
    assert (back.status, row(back, B).seq, row(back, A)) == (OK, 1, row(answer, A))
    declared = ask(table, Renew(B, seen=back.table.version, prev=1, table=back.table.id))
    assert row(declared, B).seen == back.table.version


def test_a_death_that_only_the_second_to_join_again_knows_of_is_taken_over(
    table: MembershipTable, request: pytest.FixtureRequest, cluster_name: str
) -> None:
    ask(table, Join(A, INFO))
    ask(table, Join(B, INFO))
    older = ask(table, Join(C, INFO)).table
    newer = ask(table, Bury(C, "test")).table
    lose(table, request, cluster_name)
    assert row(ask(table, Rejoin(A, INFO, SiloStatus.ACTIVE, older)), C).dead is None
    answer = ask(table, Rejoin(B, INFO, SiloStatus.ACTIVE, newer))
    assert row(answer, C).dead == answer.table.version > newer.version


# ---- a table that may not be the first


def give_up(table: MembershipTable) -> TableAnswer:
    stands = ask(table, Read()).table
    return ask(table, Verdict(EARLIER, stands.run, stands.version, 0))


def test_a_table_that_was_not_founded_as_the_first_awaits_silos_of_an_earlier_one(table: MembershipTable) -> None:
    answer = ask(table, Join(A, INFO))
    assert answer.table.awaits_earlier
    assert View(answer.table).is_recovering
    assert [row.silo for row in answer.table.rows] == [A], "they are nobody's row"
    late = ask(table, Join(B, INFO, bootstrap=True)).table
    assert late.awaits_earlier, "it is a table already: who says that it is the first says nothing of it"


def test_a_table_that_was_founded_as_the_first_awaits_nobody(table: MembershipTable) -> None:
    answer = ask(table, Join(A, INFO, bootstrap=True))
    assert answer.table.earlier is None
    assert ask(table, Join(B, INFO)).table.earlier is None, "it was founded, whoever comes later"
    ask(table, Bury(A, "test"))
    ask(table, Bury(B, "test"))
    assert not View(ask(table, Join(C, INFO)).table).is_recovering, "a full stop is no loss"


def test_who_gives_earlier_silos_up_is_judged_by_the_table_that_was_seen(table: MembershipTable) -> None:
    seen = ask(table, Join(A, INFO)).table
    late = Verdict(EARLIER, seen.run, seen.version, 0)
    ask(table, Join(B, INFO))
    assert (ask(table, late).status, ask(table, Read()).table.awaits_earlier) == (STALE, True)
    answer = give_up(table)
    assert (answer.status, answer.table.awaits_earlier) == (OK, False)
    assert answer.table.earlier is not None
    assert answer.table.earlier.dead == answer.table.version
    assert give_up(table).status is STALE


def test_who_was_given_up_is_dead_when_it_comes_back(
    table: MembershipTable, request: pytest.FixtureRequest, cluster_name: str
) -> None:
    known = ask(table, Join(A, INFO, bootstrap=True)).table
    lose(table, request, cluster_name)
    ask(table, Join(B, INFO))
    after = give_up(table).table
    answer = ask(table, Rejoin(A, INFO, SiloStatus.ACTIVE, known))
    assert (answer.status, answer.table) == (DEAD, after)
    for number in range(DEAD_ROWS_KEPT + 3):
        silo = SiloAddress("10.1.0.1:7000", number)
        ask(table, Join(silo, INFO))
        ask(table, Bury(silo, "test"))
        ask(table, Renew(B, seen=ask(table, Read()).table.version, prev=number + 1))
    assert ask(table, Rejoin(A, INFO, SiloStatus.ACTIVE, known)).status is DEAD, "nor is that forgotten"


def test_with_the_first_of_the_earlier_silos_all_are_known_that_it_brings(
    table: MembershipTable, request: pytest.FixtureRequest, cluster_name: str
) -> None:
    ask(table, Join(A, INFO, bootstrap=True))
    known = ask(table, Join(B, INFO)).table
    lose(table, request, cluster_name)
    ask(table, Join(C, INFO))
    answer = ask(table, Rejoin(A, INFO, SiloStatus.ACTIVE, known))
    assert (answer.status, answer.table.earlier) == (OK, None)
    assert View(answer.table).is_recovering, "the other one is missing"
    answer = ask(table, Rejoin(B, INFO, SiloStatus.ACTIVE, known))
    assert (answer.status, View(answer.table).is_recovering) == (OK, False)


def test_what_a_lost_table_awaited_is_awaited_still(
    table: MembershipTable, request: pytest.FixtureRequest, cluster_name: str
) -> None:
    known = ask(table, Join(A, INFO)).table
    lose(table, request, cluster_name)
    ask(table, Join(B, INFO))
    answer = ask(table, Rejoin(A, INFO, SiloStatus.ACTIVE, known))
    assert (answer.status, answer.table.awaits_earlier) == (OK, True)


def test_whom_a_lost_table_had_given_up_stays_given_up_and_its_own_silos_do_not(
    table: MembershipTable, request: pytest.FixtureRequest, cluster_name: str
) -> None:
    lost_first = ask(table, Join(A, INFO, bootstrap=True)).table
    lose(table, request, cluster_name)
    ask(table, Join(B, INFO))
    known = give_up(table).table
    lose(table, request, cluster_name)
    assert ask(table, Rejoin(B, INFO, SiloStatus.ACTIVE, known)).status is OK
    assert ask(table, Rejoin(A, INFO, SiloStatus.ACTIVE, lost_first)).status is DEAD
    assert ask(table, Rejoin(C, INFO, SiloStatus.ACTIVE, known)).status is OK, "it came later, and is of that table"


SILOS = st.sampled_from([A, B, C])
LOST_EARLIER = SiloRow(EARLIER, SiloInfo("earlier than the lost"), SiloStatus.JOINING, seq=0, seen=0, joined=1)
KNOWN = Table(
    "run/table",
    9,
    (
        SiloRow(A, INFO, SiloStatus.ACTIVE, seq=3, seen=2, joined=1),
        SiloRow(B, INFO, SiloStatus.DEAD, seq=3, seen=2, joined=2, dead=4),
        SiloRow(C, INFO, SiloStatus.ACTIVE, seq=3, seen=2, joined=2, cordoned=True),
    ),
)
EARLIER_ROWS = (LOST_EARLIER, msgspec.structs.replace(LOST_EARLIER, status=SiloStatus.DEAD, dead=3))
REQUESTS = st.one_of(
    st.builds(Join, SILOS, st.just(INFO), st.booleans()),
    st.builds(Renew, SILOS, st.integers(0, 6), st.integers(1, 4)),
    st.builds(Renew, SILOS, st.integers(0, 6), st.integers(1, 4), st.just("another")),
    st.builds(
        Rejoin,
        SILOS,
        st.just(INFO),
        st.sampled_from([SiloStatus.ACTIVE, SiloStatus.LEAVING]),
        st.sampled_from([KNOWN, *(msgspec.structs.replace(KNOWN, earlier=earlier) for earlier in EARLIER_ROWS)]),
        st.booleans(),
    ),
    st.builds(Advance, SILOS, st.sampled_from(SiloStatus)),
    st.builds(Cordon, SILOS, st.just(INFO), st.booleans(), st.integers(0, 6)),
    st.builds(Verdict, SILOS, st.just("here"), st.integers(0, 6), st.integers(1, 4)),
    st.builds(Verdict, st.just(EARLIER), st.just("here"), st.integers(1, 3), st.just(0)),
    st.builds(Bury, SILOS, st.just("test")),
    st.just(Read()),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(requests=st.lists(REQUESTS, max_size=25))
def test_the_two_tables_answer_alike(requests: list[TableRequest], redis_url: str) -> None:
    client = open_sync(redis_url, TIMEOUT_S)
    client.delete(members_key("twins"))
    client.close()
    memory, on_redis = MemoryMembershipTable(), redis_table(redis_url, "twins")
    twins: tuple[MembershipTable, MembershipTable] = (memory, on_redis)
    try:
        for request in requests:
            answers: list[TableAnswer] = []
            for table in twins:
                run = ask(table, Read()).table.run
                asked = msgspec.structs.replace(request, run=run) if isinstance(request, Verdict) else request
                answer = ask(table, asked)
                assert answer.table.run.startswith(run)
                assert bool(answer.table.id) == (answer.table.version > 0)
                earlier = answer.table.earlier
                if earlier is not None and earlier.info != LOST_EARLIER.info:  # each names its own
                    earlier = msgspec.structs.replace(earlier, info=SiloInfo("earlier"))
                shown = Table("", answer.table.version, answer.table.rows, earlier)
                answers.append(msgspec.structs.replace(answer, table=shown))
            assert answers[0] == answers[1], request
    finally:
        on_redis.close()


# ---- of the one in memory


def test_a_failover_in_memory_loses_renewals_and_leaps_ahead() -> None:
    table = MemoryMembershipTable()
    before = ask(table, Join(A, INFO)).table
    ask(table, Renew(A, seen=1, prev=1))
    table.fail_over(before)
    answer = ask(table, Renew(A, seen=1, prev=2))
    assert answer.status is LOST, "what was written last may be lost: another table begins with what is left"
    assert (row(answer, A).seq, answer.table.version) == (0, 1 + RUN_LEAP)
    assert answer.table.run != before.run
    assert answer.table.id != before.id


# ---- of the one on Redis


def redis_table(url: str, cluster: str) -> RedisMembershipTable:
    return RedisMembershipTable(lambda timeout_s: open_sync(url, timeout_s), cluster)


def test_a_restart_that_keeps_the_rows_has_another_run_and_leaps_ahead(cluster_name: str, redis_url: str) -> None:
    with raw(redis_url) as client:
        table = redis_table(redis_url, cluster_name)
        seen = ask(table, Join(A, INFO))
        client.hset(members_key(cluster_name), "run", "the-run-before")
        refused = ask(table, verdict(seen, A))
        assert (refused.status, refused.table.version) == (STALE, 1 + RUN_LEAP)
        assert ask(table, verdict(refused, A)).status is OK
        table.close()


def test_each_new_version_is_published_and_renewals_are_not(cluster_name: str, redis_url: str) -> None:
    with raw(redis_url) as client, client.pubsub() as pubsub:
        pubsub.subscribe(views_channel(cluster_name))
        assert pubsub.get_message(timeout=TIMEOUT_S) is not None
        table = redis_table(redis_url, cluster_name)
        ask(table, Join(A, INFO))
        ask(table, Renew(A, seen=1, prev=1))
        ask(table, Advance(A, SiloStatus.ACTIVE))
        table.close()
        heard = [pubsub.get_message(timeout=TIMEOUT_S)["data"] for _ in range(2)]
        assert heard == [b"1", b"2"]
        assert pubsub.get_message(timeout=0) is None


def test_clusters_on_one_server_do_not_see_each_other(cluster_name: str, redis_url: str) -> None:
    one, two = redis_table(redis_url, cluster_name), redis_table(redis_url, f"{cluster_name}-2")
    ask(one, Join(A, INFO))
    assert ask(two, Read()).table.rows == ()
    one.close()
    two.close()


def test_a_row_of_an_unknown_format_is_left_alone_and_named(cluster_name: str, redis_url: str) -> None:
    with raw(redis_url) as client:
        table = redis_table(redis_url, cluster_name)
        ask(table, Join(A, INFO))
        client.hset(members_key(cluster_name), str(B), b"2 of another kind")
        for request in (Read(), Bury(B, "test"), Renew(B, seen=1, prev=1)):
            with pytest.raises(MembershipUnavailable, match=B.endpoint):
                ask(table, request)
        assert client.hget(members_key(cluster_name), str(B)) == b"2 of another kind"
        table.close()


GOLDEN_ROW = b"1 1 3 2 1 0 \x97\xa3one\x91\xa4room\x81\xa4zone\xa1a\xc3\xa31.8\x93\xa1m\x01\x02\xad10.0.0.1:7001"
"""An active row as releases before cordons wrote it, and every release writes it that is not cordoned."""
GOLDEN_ROW_CORDONED = GOLDEN_ROW.replace(b"\x97\xa3one", b"\x98\xa3one") + b"\xc3"
GOLDEN_INFO = SiloInfo(
    "one", ("room",), {"zone": "a"}, True, "1.8", ProcessIdentity("m", 1, 2), lease_endpoint="10.0.0.1:7001"
)


def test_rows_read_and_write_as_golden_and_one_without_the_field_is_not_cordoned(
    cluster_name: str, redis_url: str
) -> None:
    key = members_key(cluster_name)
    with raw(redis_url) as client:
        table = redis_table(redis_url, cluster_name)
        client.hset(key, mapping={"version": 4, str(A): GOLDEN_ROW})
        read = ask(table, Read())
        assert row(read, A) == SiloRow(A, GOLDEN_INFO, SiloStatus.ACTIVE, seq=3, seen=2, joined=1)
        cordoned = ask(table, Cordon(A, GOLDEN_INFO, True, read.table.version))
        assert row(cordoned, A).cordoned
        assert client.hget(key, str(A)) == GOLDEN_ROW_CORDONED
        ask(table, Cordon(A, GOLDEN_INFO, False, cordoned.table.version))
        assert client.hget(key, str(A)) == GOLDEN_ROW
        table.close()


def test_a_release_that_knows_of_no_cordon_reads_the_row_of_a_cordoned_silo() -> None:
    about = GOLDEN_ROW_CORDONED.split(b" ", 6)[6]
    assert msgspec.msgpack.decode(about, type=SiloInfo) == GOLDEN_INFO


def test_a_lost_script_or_connection_is_made_good(cluster_name: str, own_redis_server: EmbeddedServer) -> None:
    with raw(own_redis_server.url) as client:
        table = redis_table(own_redis_server.url, cluster_name)
        ask(table, Join(A, INFO))
        client.script_flush()
        assert ask(table, Renew(A, seen=1, prev=1)).status is OK
        client.client_kill_filter(_type="normal", skipme=True)
        assert ask(table, Read()).status is OK
        assert row(ask(table, Renew(A, seen=1, prev=2)), A).seq == 3
        table.close()


def test_S106_a_store_that_stands_still_fails_the_request_within_its_timeout(
    cluster_name: str, own_redis_server: EmbeddedServer
) -> None:
    with raw(own_redis_server.url) as client:
        table = redis_table(own_redis_server.url, cluster_name)
        table.ask(Join(A, INFO), 0.1)
        client.execute_command("CLIENT", "PAUSE", "600", "ALL")
        with pytest.raises(MembershipUnavailable):
            table.ask(Renew(A, seen=1, prev=1), 0.1)
        assert table.ask(Read(), TIMEOUT_S).status is OK
        table.close()


def test_rights_that_are_missing_are_named_at_once(cluster_name: str, own_redis_server: EmbeddedServer) -> None:
    with raw(own_redis_server.url) as client:
        client.execute_command("ACL", "SETUSER", "poor", "on", ">pw", "~*", "&*", "+@all", "-info")
        url = own_redis_server.url.replace("redis://", "redis://poor:pw@")
        table = redis_table(url, cluster_name)
        with pytest.raises(InvalidSettings, match="INFO"):
            ask(table, Join(A, INFO))
        table.close()
        assert client.exists(members_key(cluster_name)) == 0
