"""The lives of all buckets as one silo knows them: what may be registered, what is to be claimed, and who waits."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from silo.directory.addresses import GrainId, SiloAddress
from silo.directory.directory_scripts import DIRECTORY_BUCKETS, bucket_of
from silo.directory.errors import DirectoryUnavailable, DirectoryUnsettled
from silo.directory.lives import Lives, Registering

ADA = GrainId("player", "ada")
BUCKET = bucket_of(str(ADA))
ONE = SiloAddress("one:7000", 1)
LIFE, NEXT = "life-1", "life-2"


def grains_of(bucket: int, count: int) -> list[GrainId]:
    grains = (GrainId("player", str(number)) for number in itertools.count())
    return list(itertools.islice((grain for grain in grains if bucket_of(str(grain)) == bucket), count))


def settled(lives: Lives, life: str = LIFE, bucket: int = BUCKET) -> None:
    """Claim the bucket, and have it settled in this life."""
    lives.doubt([bucket])
    assert bucket in lives.take_claims()
    lives.claimed(bucket, life, is_settled=True)


async def passes(times: int = 3) -> None:
    """Let everybody on the loop have their turn."""
    for _ in range(times):
        await asyncio.sleep(0)


# ---- whoever registers


async def test_R434_nobody_registers_where_nothing_was_claimed_and_wanting_to_has_it_claimed() -> None:
    lives = Lives()
    assert not lives.is_settled(ADA)
    with pytest.raises(DirectoryUnsettled, match="player/ada"), lives.registering(ADA):
        raise AssertionError("a registration went out")
    assert lives.work.is_set()
    assert lives.take_claims() == {BUCKET: ""}
    assert lives.take_claims() == {}, "each is given out once"


async def test_R434_a_registration_names_the_life_that_is_settled_and_the_highest_epoch_that_is_known() -> None:
    lives = Lives()
    settled(lives)
    for epoch in (7, 4):
        lives.saw(BUCKET, epoch)
    with lives.registering(ADA) as named:
        assert (named.life, named.floor) == (LIFE, 7)
    assert lives.floor(BUCKET) == 7
    assert lives.floor((BUCKET + 1) % DIRECTORY_BUCKETS) == 0


async def test_R434_an_answer_counts_for_nothing_once_the_bucket_is_in_doubt() -> None:
    lives = Lives()
    settled(lives)
    with pytest.raises(DirectoryUnsettled, match="lost rows"), lives.registering(ADA):
        lives.doubt()


async def test_R434_nor_does_it_when_another_life_is_settled_by_the_time_that_it_comes() -> None:
    """It stays open, since another one of the same bucket is out: no claim goes out before both have ended."""
    lives = Lives()
    settled(lives)
    first, second = lives.registering(ADA), lives.registering(ADA)
    first.__enter__()
    second.__enter__()
    lives.doubt([BUCKET])
    for each in (first, second):
        assert lives.take_claims() == {}
        with pytest.raises(DirectoryUnsettled):
            each.__exit__(None, None, None)
    assert lives.take_claims() == {BUCKET: ""}
    lives.claimed(BUCKET, NEXT, is_settled=True)
    assert lives.is_settled(ADA)


async def test_R434_a_registration_that_fails_drains_as_one_that_is_answered() -> None:
    lives = Lives()
    settled(lives)

    def fail() -> None:
        with lives.registering(ADA):
            lives.doubt([BUCKET])
            raise DirectoryUnavailable("no answer")

    with pytest.raises(DirectoryUnavailable):
        fail()
    assert lives.take_claims() == {BUCKET: ""}


async def test_R434_doubt_of_one_bucket_holds_up_no_other() -> None:
    lives = Lives()
    other = (BUCKET + 1) % DIRECTORY_BUCKETS
    (elsewhere,) = grains_of(other, 1)
    settled(lives)
    settled(lives, bucket=other)
    lives.doubt([BUCKET])
    with lives.registering(elsewhere) as named:
        assert (named.life, named.floor) == (LIFE, 0)
    assert not lives.is_settled(ADA)
    assert not lives.all_settled


# ---- whoever waits


async def test_R434_all_that_wait_for_a_bucket_go_on_when_it_is_settled_and_those_of_another_wait_on() -> None:
    lives = Lives()
    other = (BUCKET + 1) % DIRECTORY_BUCKETS
    here = [asyncio.create_task(lives.settled(grain)) for grain in grains_of(BUCKET, 5)]
    there = asyncio.create_task(lives.settled(*grains_of(other, 1)))
    await passes()
    assert lives.take_claims() == {BUCKET: "", other: ""}
    lives.claimed(BUCKET, LIFE, is_settled=False)
    await passes()
    assert not any(each.done() for each in here), "the others have not claimed"
    lives.seen(BUCKET, LIFE, is_settled=True)
    await asyncio.gather(*here)
    await passes()
    assert not there.done()
    lives.claimed(other, LIFE, is_settled=True)
    await there


async def test_R434_who_is_cancelled_while_waiting_takes_nothing_from_the_others() -> None:
    lives = Lives()
    first, second = (asyncio.create_task(lives.settled(ADA)) for _ in range(2))
    await passes()
    first.cancel()
    await asyncio.wait([first])
    assert first.cancelled()
    lives.take_claims()
    lives.claimed(BUCKET, LIFE, is_settled=True)
    await second


async def test_R434_one_that_wakes_to_a_bucket_that_is_in_doubt_again_waits_on() -> None:
    lives = Lives()
    waiting = asyncio.create_task(lives.settled(ADA))
    await passes()
    lives.take_claims()
    lives.claimed(BUCKET, LIFE, is_settled=True)
    lives.doubt([BUCKET])
    await passes()
    assert not waiting.done()
    lives.take_claims()
    lives.claimed(BUCKET, NEXT, is_settled=True)
    await waiting


async def test_R434_that_buckets_are_settled_is_told_once_for_many_and_again_for_later_ones() -> None:
    told: list[int] = []
    lives = Lives()
    lives.on_settled = lambda: told.append(sum(bucket not in unsettled() for bucket in range(DIRECTORY_BUCKETS)))

    def unsettled() -> list[int]:
        return [bucket for bucket in range(DIRECTORY_BUCKETS) if lives.life(bucket) == ""]

    lives.doubt()
    for bucket in list(lives.take_claims())[:10]:
        lives.claimed(bucket, LIFE, is_settled=True)
    assert told == []
    await passes()
    assert told == [10]
    lives.claimed(10, LIFE, is_settled=True)
    await passes()
    assert told == [10, 11]


# ---- whoever claims


async def test_R434_a_claim_says_which_life_is_over_and_is_given_out_once() -> None:
    lives = Lives()
    settled(lives)
    lives.work.clear()
    lives.doubt([BUCKET], is_over=True)
    assert lives.work.is_set()
    assert lives.take_claims() == {BUCKET: LIFE}
    assert lives.take_claims() == {}


async def test_R434_an_answer_to_a_claim_that_comes_twice_changes_nothing() -> None:
    lives = Lives()
    settled(lives)
    lives.claimed(BUCKET, "another", is_settled=False)
    assert (lives.life(BUCKET), lives.is_settled(ADA)) == (LIFE, True)


async def test_R434_what_is_known_of_buckets_is_told_apart() -> None:
    lives = Lives()
    assert (lives.known(), lives.unsettled()) == ([], [])
    lives.doubt()
    assert sorted(lives.take_claims()) == list(range(DIRECTORY_BUCKETS))
    lives.claimed(1, LIFE, is_settled=False)
    lives.claimed(2, LIFE, is_settled=True)
    assert (lives.known(), lives.unsettled()) == ([1, 2], [(1, LIFE)])
    lives.seen(1, LIFE, is_settled=True)
    lives.seen(2, NEXT, is_settled=True)
    assert (lives.known(), lives.unsettled()) == ([1], [])
    assert lives.take_claims() == {2: ""}
    all_settled = [lives.all_settled]
    for bucket in range(DIRECTORY_BUCKETS):
        lives.claimed(bucket, LIFE, is_settled=True)
    assert [*all_settled, lives.all_settled] == [False, True]
    lives.doubt([5])
    assert [lives.are_settled(buckets) for buckets in ([4, 6], [4, 5])] == [True, False]


ACTS = st.sampled_from(("begin", "end", "doubt", "over", "claim", "settle", "another life"))


@given(acts=st.lists(ACTS, max_size=80))
def test_R434_no_claim_goes_out_with_a_registration_and_none_counts_whose_life_was_doubted(acts: list[str]) -> None:
    """Whatever comes in which order: one bucket, and registrations of several of its grains."""

    async def story() -> None:
        lives = Lives()
        out: list[tuple[Registering, int]] = []
        doubts = claims = 0
        life = 0
        for act in acts:
            match act:
                case "begin":
                    registering = lives.registering(ADA)
                    if lives.is_settled(ADA):
                        assert registering.__enter__().life == lives.life(BUCKET)
                        out.append((registering, doubts))
                    else:
                        with pytest.raises(DirectoryUnsettled):
                            registering.__enter__()
                case "end" if out:
                    ended, doubts_then = out.pop(0)
                    try:
                        ended.__exit__(None, None, None)
                    except DirectoryUnsettled:
                        assert doubts > doubts_then
                    else:
                        assert doubts == doubts_then
                case "doubt" | "over":
                    doubts += 1
                    lives.doubt([BUCKET], is_over=act == "over")
                case "claim":
                    taken = lives.take_claims()
                    assert not (taken and out), "a claim goes out while a registration is"
                    claims += len(taken)
                case "settle" if claims:
                    claims -= 1
                    life += 1
                    lives.claimed(BUCKET, str(life), is_settled=True)
                case "another life":
                    doubts += lives.is_settled(ADA)
                    lives.seen(BUCKET, "never seen", is_settled=True)
                case _:
                    pass

    asyncio.run(story())
