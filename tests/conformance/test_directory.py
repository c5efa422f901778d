"""The promises of GrainDirectory, held by every implementation: in memory, and on Redis or Valkey."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from silo.directory.addresses import EPOCH_MAX, Entry, GrainId, SiloAddress
from silo.directory.contract import Claim, GrainDirectory, Inquiry, Registration, Standing
from silo.directory.directory_scripts import bucket_keys, bucket_of
from silo.directory.errors import DirectoryLifeOver, InvalidIdentity
from silo.directory.memory_directory import MemoryDirectory
from silo.directory.redis_directory import RedisDirectory

ADA = GrainId("player", "ada")
LOBBY = GrainId("room", "lobby")
ONE = SiloAddress("10.0.0.1:7000", 11)
TWO = SiloAddress("10.0.0.2:7000", 22)


@pytest.fixture(
    params=[
        "memory",
        pytest.param("redis_url", marks=pytest.mark.redis),
        pytest.param("redis_cluster_url", marks=pytest.mark.redis),
    ]
)
async def directory(request: pytest.FixtureRequest, cluster_name: str) -> AsyncIterator[GrainDirectory]:
    if request.param == "memory":
        yield MemoryDirectory()
        return
    redis_directory = RedisDirectory.at(request.getfixturevalue(request.param), cluster_name)
    yield redis_directory
    await redis_directory.close()


async def registered(directory: GrainDirectory, grain: GrainId, silo: SiloAddress, activation: str) -> Entry:
    """The row of a grain that had none, now held by this activation."""
    (entry,) = await directory.register([Registration(grain, silo, activation)])
    assert entry is not None
    assert (entry.grain, entry.silo, entry.activation) == (grain, silo, activation)
    return entry


async def rows(directory: GrainDirectory, silo: SiloAddress | None = None) -> set[Entry]:
    return {entry async for page in directory.entries(silo) for entry in page}


async def test_an_unknown_grain_has_no_row(directory: GrainDirectory) -> None:
    assert await directory.lookup([ADA]) == [None]


async def test_a_registration_is_seen_by_every_lookup_after_it(directory: GrainDirectory) -> None:
    entry = await registered(directory, ADA, ONE, "a1")
    assert await directory.lookup([LOBBY, ADA, ADA]) == [None, entry, entry]


async def test_S017_of_two_registrations_at_once_one_wins_and_both_learn_which(directory: GrainDirectory) -> None:
    answers = await asyncio.gather(
        *(directory.register([Registration(ADA, ONE, f"a{n}"), Registration(LOBBY, TWO, f"b{n}")]) for n in range(20))
    )
    assert len({tuple(answer) for answer in answers}) == 1
    assert await directory.lookup([ADA, LOBBY]) == answers[0]


async def test_R418_a_move_replaces_exactly_the_row_it_expects(directory: GrainDirectory) -> None:
    source = await registered(directory, ADA, ONE, "a1")
    (target,) = await directory.register([Registration(ADA, TWO, "a2", expected=source)])
    assert target is not None
    assert (target.silo, target.activation) == (TWO, "a2")
    assert target.epoch > source.epoch


async def test_R418_the_mover_that_comes_too_late_is_told_who_won(directory: GrainDirectory) -> None:
    source = await registered(directory, ADA, ONE, "a1")
    (winner,) = await directory.register([Registration(ADA, TWO, "a2", expected=source)])
    assert await directory.register([Registration(ADA, ONE, "a3", expected=source)]) == [winner]
    assert await directory.lookup([ADA]) == [winner]


@pytest.mark.parametrize("difference", ["silo", "incarnation", "activation", "epoch"])
async def test_every_part_of_the_expected_row_counts(directory: GrainDirectory, difference: str) -> None:
    standing = await registered(directory, ADA, ONE, "a1")
    believed = {
        "silo": Entry(ADA, TWO, "a1", standing.epoch),
        "incarnation": Entry(ADA, SiloAddress(ONE.endpoint, 12), "a1", standing.epoch),
        "activation": Entry(ADA, ONE, "a2", standing.epoch),
        "epoch": Entry(ADA, ONE, "a1", standing.epoch + 1),
    }[difference]
    assert await directory.register([Registration(ADA, TWO, "b1", expected=believed)]) == [standing]
    assert await directory.unregister([believed]) == [False]
    assert await directory.lookup([ADA]) == [standing]


async def test_none_is_answered_only_where_a_row_was_expected_and_none_stands(directory: GrainDirectory) -> None:
    gone = await registered(directory, ADA, ONE, "a1")
    assert await directory.unregister([gone]) == [True]
    assert await directory.register([Registration(ADA, TWO, "a2", expected=gone)]) == [None]
    assert await directory.lookup([ADA]) == [None]


async def test_S014_the_same_registration_asked_again_answers_with_its_own_row(directory: GrainDirectory) -> None:
    asked = Registration(ADA, ONE, "a1")
    first = await directory.register([asked])
    assert await directory.register([asked]) == first
    (source,) = first
    move = Registration(ADA, TWO, "a2", expected=source)
    moved = await directory.register([move])
    assert await directory.register([move]) == moved


async def test_S016_a_late_unregister_leaves_the_newer_row(directory: GrainDirectory) -> None:
    old = await registered(directory, ADA, ONE, "a1")
    (new,) = await directory.register([Registration(ADA, TWO, "a2", expected=old)])
    assert await directory.unregister([old]) == [False]
    assert await directory.lookup([ADA]) == [new]


async def test_unregister_removes_a_row_once(directory: GrainDirectory) -> None:
    ada = await registered(directory, ADA, ONE, "a1")
    lobby = await registered(directory, LOBBY, ONE, "b1")
    assert await directory.unregister([ada, lobby, ada]) == [True, True, False]
    assert await rows(directory) == set()


async def test_the_epoch_grows_over_a_grains_life_even_across_unregistering(directory: GrainDirectory) -> None:
    epochs: list[int] = []
    for turn in range(5):
        entry = await registered(directory, ADA, ONE, f"a{turn}")
        epochs.append(entry.epoch)
        await directory.unregister([entry])
    assert epochs == sorted(set(epochs))


async def test_the_epoch_exceeds_the_floor_that_the_asker_knows(directory: GrainDirectory) -> None:
    (entry,) = await directory.register([Registration(ADA, ONE, "a1", floor=2**40)])
    assert entry is not None
    assert entry.epoch == 2**40 + 1
    (moved,) = await directory.register([Registration(ADA, TWO, "a2", expected=entry, floor=7)])
    assert moved is not None
    assert moved.epoch == 2**40 + 2


async def test_an_epoch_too_great_for_lua_is_refused_where_it_is_asked_for(directory: GrainDirectory) -> None:
    with pytest.raises(InvalidIdentity, match="2\\*\\*53"):
        await directory.register([Registration(ADA, ONE, "a1", floor=EPOCH_MAX)])


async def test_the_greatest_epoch_is_exact(directory: GrainDirectory) -> None:
    (entry,) = await directory.register([Registration(ADA, ONE, "a1", floor=EPOCH_MAX - 2)])
    assert entry is not None
    assert entry.epoch == EPOCH_MAX - 1
    assert await directory.lookup([ADA]) == [entry]


async def test_a_batch_is_many_compare_and_sets_each_alone(directory: GrainDirectory) -> None:
    held = await registered(directory, ADA, ONE, "a1")
    gone = Entry(LOBBY, ONE, "old", 1)
    answers = await directory.register(
        [
            Registration(ADA, TWO, "a2"),
            Registration(LOBBY, TWO, "b1", expected=gone),
            Registration(GrainId("room", "new"), TWO, "c1"),
            Registration(GrainId("room", "new"), ONE, "c2"),
        ]
    )
    assert answers[:2] == [held, None]
    assert answers[2] is not None
    assert answers[2].activation == "c1"
    assert answers[3] == answers[2]


async def test_answers_come_in_the_order_of_the_questions_over_all_buckets(directory: GrainDirectory) -> None:
    grains = [GrainId("k", f"{n}") for n in range(3_000)]
    asked = [Registration(grain, ONE, f"a{n}") for n, grain in enumerate(grains)]
    entries = await directory.register(asked)
    assert [entry and (entry.grain, entry.activation) for entry in entries] == [(a.grain, a.activation) for a in asked]
    order = random.Random(7).sample(range(len(grains)), len(grains))
    assert await directory.lookup([grains[n] for n in order]) == [entries[n] for n in order]
    assert await rows(directory) == set(entries)
    present = [entry for entry in entries if entry is not None]
    assert await directory.unregister(present) == [True] * len(grains)
    assert await rows(directory) == set()


async def test_nothing_asked_is_nothing_answered(directory: GrainDirectory) -> None:
    assert await directory.lookup([]) == []
    assert await directory.register([]) == []
    assert await directory.unregister([]) == []
    assert await rows(directory) == set()


async def test_entries_of_one_silo_are_those_of_this_incarnation(directory: GrainDirectory) -> None:
    again = SiloAddress(ONE.endpoint, ONE.incarnation + 1)
    ada = await registered(directory, ADA, ONE, "a1")
    lobby = await registered(directory, LOBBY, again, "b1")
    assert await rows(directory, ONE) == {ada}
    assert await rows(directory, again) == {lobby}
    assert await rows(directory, TWO) == set()


@pytest.mark.parametrize(
    "key", ["with blank", " ", "a/b/c", "new\nline", "ключ", "🗝", "x" * 512, "'", '"', "{x}", "\\"]
)
async def test_every_key_that_a_grain_may_have_comes_back(directory: GrainDirectory, key: str) -> None:
    entry = await registered(directory, GrainId.of("k", key), ONE, "a1")
    assert await directory.lookup([GrainId("k", key)]) == [entry]
    assert await rows(directory) == {entry}
    assert await directory.unregister([entry]) == [True]


@pytest.mark.parametrize(
    "asked",
    [
        Registration(ADA, ONE, "two words"),
        Registration(ADA, ONE, ""),
        Registration(ADA, SiloAddress("host name:1", 1), "a1"),
        Registration(ADA, ONE, "a1", expected=Entry(LOBBY, ONE, "a0", 1)),
    ],
)
async def test_what_no_row_could_hold_is_refused_before_anything_is_written(
    directory: GrainDirectory, asked: Registration
) -> None:
    with pytest.raises(InvalidIdentity):
        await directory.register([Registration(LOBBY, ONE, "b1"), asked])
    assert await directory.lookup([LOBBY]) == [None]


Step = tuple[str, int, int, int]
"""What to do, to which grain, for which silo, and which of the rows seen so far to expect or remove."""

STEPS = st.tuples(st.sampled_from(["register", "unregister"]), st.integers(0, 2), st.integers(0, 1), st.integers(0, 5))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=st.lists(STEPS, max_size=25))
async def test_memory_and_redis_answer_alike(redis_url: str, history: list[Step]) -> None:
    twin = MemoryDirectory()
    directory = RedisDirectory.at(redis_url, f"twin-{random.SystemRandom().getrandbits(48):x}")
    try:
        seen: list[Entry | None] = [None]
        for number, (what, grain, silo, which) in enumerate(history):
            believed = seen[which % len(seen)]
            if what == "register":
                named = GrainId("k", str(grain)) if believed is None else believed.grain
                asked = [Registration(named, (ONE, TWO)[silo], f"a{number}", expected=believed, floor=which)]
                answers = await directory.register(asked)
                assert answers == await twin.register(asked)
                seen += answers
            elif believed is not None:
                assert await directory.unregister([believed]) == await twin.unregister([believed])
        assert await rows(directory) == await rows(twin)
    finally:
        await directory.close()


# ---- lives: what was lost is claimed again


BUCKET = bucket_of(str(ADA))


def claim(*entries: Entry, silo: SiloAddress = ONE, new_life: str = "first", **options: Any) -> Claim:
    return Claim(BUCKET, silo, entries, new_life=new_life, **options)


async def claimed(directory: GrainDirectory, *entries: Entry, **options: Any) -> Standing:
    (standing,) = await directory.claim([claim(*entries, **options)])
    assert standing is not None
    return standing


async def inquired(directory: GrainDirectory, life: str = "", *members: SiloAddress) -> Standing:
    (standing,) = await directory.inquire([Inquiry(BUCKET, life, members)])
    assert standing is not None
    return standing


def ada(silo: SiloAddress, activation: str, epoch: int) -> Entry:
    return Entry(ADA, silo, activation, epoch)


async def test_R434_a_life_begins_with_a_claim_and_is_settled_once_all_members_have_claimed(
    directory: GrainDirectory,
) -> None:
    assert await inquired(directory) == Standing("", False)
    first = (await claimed(directory)).life
    assert first.startswith("first")
    assert await claimed(directory, silo=TWO, whole=False, new_life="unused") == Standing(first, False)
    assert await inquired(directory, first, ONE, TWO) == Standing(first, False), "the second has more to say"
    await claimed(directory, silo=TWO, new_life="unused")
    assert await inquired(directory) == Standing(first, False), "nobody has said who lives"
    assert await inquired(directory, "another", ONE, TWO) == Standing(first, False)
    assert await inquired(directory, first, ONE, TWO) == Standing(first, True)
    assert await inquired(directory) == Standing(first, True)


async def test_R434_a_registration_counts_in_the_life_that_it_names_and_in_no_other(directory: GrainDirectory) -> None:
    first = (await claimed(directory)).life
    (entry,) = await directory.register([Registration(ADA, ONE, "a1", life=first)])
    assert entry is not None
    other = GrainId("room", "elsewhere")
    assert bucket_of(str(other)) != BUCKET
    with pytest.raises(DirectoryLifeOver) as over:
        await directory.register([Registration(ADA, TWO, "a2", entry, life="before"), Registration(other, TWO, "b1")])
    assert over.value.buckets == {BUCKET}
    assert await directory.lookup([ADA]) == [entry]
    assert (await directory.lookup([other]))[0] is not None, "all others were carried out"


async def test_R434_a_claim_is_written_as_it_is_where_no_row_stands_or_one_of_a_lower_epoch(
    directory: GrainDirectory,
) -> None:
    lower, mine, higher = ada(TWO, "a1", 6), ada(ONE, "a2", 7), ada(TWO, "a3", 8)
    assert (await claimed(directory, lower, silo=TWO)).entries == (lower,)
    assert (await claimed(directory, mine)).entries == (mine,)
    assert (await claimed(directory, lower, silo=TWO)).entries == (mine,), "it has been replaced"
    assert (await claimed(directory, ada(TWO, "b2", 7), silo=TWO)).entries == (mine,), "the first of two stands"
    assert (await claimed(directory, higher, silo=TWO)).entries == (higher,)
    (moved,) = await directory.register([Registration(ADA, ONE, "a4", expected=higher)])
    assert moved is not None
    assert moved.epoch == 9


async def test_R434_epochs_go_on_above_those_that_the_claimants_know(directory: GrainDirectory) -> None:
    await claimed(directory, floor=40)
    assert (await registered(directory, ADA, ONE, "a1")).epoch == 41


async def test_R434_a_life_that_is_said_to_be_over_ends_once(directory: GrainDirectory) -> None:
    first = (await claimed(directory)).life
    assert await inquired(directory, first, ONE) == Standing(first, True)
    second = (await claimed(directory, over=first, new_life="second")).life
    assert second.startswith("second")
    again = await claimed(directory, silo=TWO, over=first, new_life="third")
    assert again == Standing(second, False), "it is over already"
    assert (await inquired(directory, second, TWO)).is_settled
    assert not (await claimed(directory, life=first, whole=False, new_life="third")).entries


async def test_R434_a_claim_that_is_carried_out_twice_begins_two_lives(
    directory: GrainDirectory, cluster_name: str
) -> None:
    """What began with it may be long settled, and lost: nobody may take the second for the first."""
    first = (await claimed(directory)).life
    await wipe(directory, cluster_name)
    again = (await claimed(directory)).life
    assert first != again
    with pytest.raises(DirectoryLifeOver):
        await directory.register([Registration(ADA, TWO, "a2", life=first)])


async def test_R434_what_a_silo_brings_that_was_not_heard_puts_a_settled_life_in_doubt(
    directory: GrainDirectory,
) -> None:
    first = (await claimed(directory)).life
    await inquired(directory, first, ONE)
    assert (await claimed(directory, silo=TWO, new_life="second")).is_settled, "it brings nothing"
    late = SiloAddress("10.0.0.3:7000", 33)
    standing = await claimed(directory, ada(late, "a1", 5), silo=late, new_life="second")
    assert standing.life.startswith("second")
    assert not standing.is_settled


async def test_R434_a_silo_that_sweeps_is_shown_its_rows_that_it_did_not_claim(directory: GrainDirectory) -> None:
    left = ada(ONE, "a1", 3)
    await claimed(directory, left)
    assert (await claimed(directory)).strays == ()
    assert (await claimed(directory, sweeps=True)).strays == (left,)
    assert (await claimed(directory, left, sweeps=True)).strays == ()
    assert (await claimed(directory, silo=TWO, sweeps=True)).strays == ()


async def wipe(directory: GrainDirectory, cluster: str) -> None:
    """The bucket is lost, and the store lives on."""
    if isinstance(directory, MemoryDirectory):
        directory.rows.lose()
    else:
        redis = cast("Any", directory)._redis  # as an operator, past the directory
        await redis.execute_command("DEL", *bucket_keys(cluster)[BUCKET])


async def test_R434_a_wiped_bucket_has_no_life(directory: GrainDirectory, cluster_name: str) -> None:
    first = (await claimed(directory, ada(ONE, "a1", 3))).life
    await wipe(directory, cluster_name)
    assert await inquired(directory, first, ONE) == Standing("", False)
    second = await claimed(directory, over=first, new_life="second")
    assert second.life.startswith("second")
    assert not second.is_settled


async def test_R434_another_run_of_the_store_ends_every_life_since_rows_may_be_lost(
    directory: GrainDirectory, cluster_name: str
) -> None:
    entry = ada(ONE, "a1", 3)
    first = (await claimed(directory, entry)).life
    await inquired(directory, first, ONE)
    if isinstance(directory, MemoryDirectory):
        directory.rows.restart()
    else:
        redis = cast("Any", directory)._redis  # as an operator, past the directory
        await redis.execute_command("HSET", bucket_keys(cluster_name)[BUCKET][1], "run", "the-run-before")
    assert await inquired(directory, first, ONE) == Standing("", False)
    with pytest.raises(DirectoryLifeOver):
        await directory.register([Registration(ADA, TWO, "a2", entry, life=first)])
    second = await claimed(directory, entry, new_life="second")
    assert (second.is_settled, second.entries) == (False, (entry,))
    (moved,) = await directory.register([Registration(ADA, TWO, "a2", entry, life=second.life)])
    assert moved is not None
    assert moved.epoch > 2**24
