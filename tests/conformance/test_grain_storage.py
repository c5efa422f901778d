"""The promises of GrainStorage, held by every implementation: in memory, and on Redis or Valkey."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from silo.directory.addresses import EPOCH_MAX, GrainId
from silo.directory.errors import InvalidIdentity
from silo.persistence.contract import (
    NO_ETAG,
    Change,
    Claim,
    Conflicting,
    GrainStorage,
    Reading,
    StateBody,
    StoredState,
    Superseded,
    Written,
)
from silo.persistence.memory_storage import MemoryStorage
from silo.persistence.redis_storage import RedisStorage

ADA = GrainId("player", "ada")
LOBBY = GrainId("room", "lobby")
FIRST = Claim(ADA, 5, "a1")
SECOND = Claim(ADA, 6, "a2")
HELLO = StateBody(1, 1, b"\x00hello\xff")
WORLD = StateBody(1, 1, b"world")
NOTHING_STORED = StoredState()


@pytest.fixture(
    params=[
        "memory",
        pytest.param("redis_url", marks=pytest.mark.redis),
        pytest.param("redis_cluster_url", marks=pytest.mark.redis),
    ]
)
async def storage(request: pytest.FixtureRequest, cluster_name: str) -> AsyncIterator[GrainStorage]:
    if request.param == "memory":
        yield MemoryStorage()
        return
    redis_storage = RedisStorage.at(request.getfixturevalue(request.param), cluster_name)
    yield redis_storage
    await redis_storage.close()


def first_write(etag: str = "e1", body: StateBody = HELLO) -> Change:
    return Change("profile", NO_ETAG, False, etag, body)


def rewrite(of: str, etag: str, body: StateBody = WORLD) -> Change:
    return Change("profile", of, True, etag, body)


async def profile(storage: GrainStorage, claim: Claim) -> StoredState | Superseded:
    answer = await storage.read(claim, ["profile"])
    return answer if isinstance(answer, Superseded) else answer[0]


async def test_it_opens(storage: GrainStorage) -> None:
    await storage.open()


async def test_what_was_never_written_reads_as_nothing_without_an_etag(storage: GrainStorage) -> None:
    assert await storage.read(FIRST, ["profile", "cart"]) == [NOTHING_STORED, NOTHING_STORED]


async def test_what_was_written_is_read_to_the_byte_by_every_later_activation(storage: GrainStorage) -> None:
    assert await storage.write(FIRST, first_write()) == Written()
    assert await profile(storage, FIRST) == StoredState("e1", HELLO)
    assert await profile(storage, SECOND) == StoredState("e1", HELLO)


async def test_states_and_grains_have_nothing_to_do_with_each_other(storage: GrainStorage) -> None:
    await storage.write(FIRST, first_write())
    await storage.write(FIRST, Change("cart", NO_ETAG, False, "c1", WORLD))
    assert await storage.read(FIRST, ["cart", "profile"]) == [StoredState("c1", WORLD), StoredState("e1", HELLO)]
    assert await storage.read(Claim(LOBBY, 1, "b1"), ["profile"]) == [NOTHING_STORED]


async def test_a_first_write_inserts_and_never_replaces(storage: GrainStorage) -> None:
    await storage.write(FIRST, first_write("e1"))
    assert await storage.write(FIRST, first_write("e2", WORLD)) == Conflicting("e1")
    assert await profile(storage, FIRST) == StoredState("e1", HELLO)


async def test_R352_a_write_that_expects_another_etag_is_refused_and_told_which_stands(storage: GrainStorage) -> None:
    await storage.write(FIRST, first_write("e1"))
    assert await storage.write(FIRST, rewrite("e0", "e2")) == Conflicting("e1")
    assert await storage.write(FIRST, rewrite("e1", "e2")) == Written()
    assert await storage.write(FIRST, rewrite("e1", "e3", HELLO)) == Conflicting("e2")
    assert await profile(storage, FIRST) == StoredState("e2", WORLD)


async def test_a_write_that_knows_of_a_value_is_refused_where_there_is_none(storage: GrainStorage) -> None:
    assert await storage.write(FIRST, rewrite("e1", "e2")) == Conflicting(NO_ETAG)
    assert await profile(storage, FIRST) == NOTHING_STORED


async def test_a_write_that_was_carried_out_is_told_so_when_sent_again(storage: GrainStorage) -> None:
    for _ in range(3):
        assert await storage.write(FIRST, first_write("e1")) == Written()
    for _ in range(2):
        assert await storage.write(FIRST, rewrite("e1", "e2")) == Written()
    assert await storage.write(FIRST, first_write("e1")) == Conflicting("e2")


async def test_S078_whoever_was_replaced_writes_nothing_from_the_moment_its_successor_has_read(
    storage: GrainStorage,
) -> None:
    await storage.write(FIRST, first_write("e1"))
    assert await profile(storage, SECOND) == StoredState("e1", HELLO)
    assert await storage.write(FIRST, rewrite("e1", "e2")) == Superseded(6)
    assert await storage.write(SECOND, rewrite("e1", "e3")) == Written()
    assert await profile(storage, SECOND) == StoredState("e3", WORLD)


async def test_S078_nor_does_it_insert_where_its_successor_found_nothing(storage: GrainStorage) -> None:
    assert await profile(storage, SECOND) == NOTHING_STORED
    assert await storage.write(FIRST, first_write()) == Superseded(6)
    assert await storage.write(SECOND, first_write()) == Written()


async def test_whoever_was_replaced_reads_nothing_more(storage: GrainStorage) -> None:
    await storage.write(SECOND, first_write())
    assert await profile(storage, FIRST) == Superseded(6)


async def test_a_write_alone_claims_as_a_read_does(storage: GrainStorage) -> None:
    """A grain that has moved reads nothing on arrival."""
    await storage.write(FIRST, first_write("e1"))
    assert await storage.write(SECOND, rewrite("e1", "e2")) == Written()
    assert await storage.write(FIRST, rewrite("e2", "e3", HELLO)) == Superseded(6)


async def test_one_claim_stands_for_all_states_of_a_grain(storage: GrainStorage) -> None:
    await storage.read(SECOND, ["cart"])
    assert await storage.write(FIRST, first_write()) == Superseded(6)


async def test_two_activations_never_share_an_epoch(storage: GrainStorage) -> None:
    """A directory that lost its data may give one again; who claimed first stays."""
    await storage.read(FIRST, ["profile"])
    other = Claim(ADA, FIRST.epoch, "a9")
    assert await profile(storage, other) == Superseded(FIRST.epoch)
    assert await storage.write(other, first_write()) == Superseded(FIRST.epoch)
    assert await storage.write(FIRST, first_write()) == Written()


async def test_a_refused_write_claims_nothing(storage: GrainStorage) -> None:
    await storage.write(FIRST, first_write("e1"))
    assert await storage.write(SECOND, rewrite("e0", "e2")) == Conflicting("e1")
    assert await storage.write(FIRST, rewrite("e1", "e3")) == Written()


async def test_a_state_that_was_cleared_reads_as_nothing_and_can_be_written_again(storage: GrainStorage) -> None:
    await storage.write(FIRST, first_write("e1"))
    assert await storage.write(FIRST, Change("profile", "e1", True, "e2", None)) == Written()
    assert await profile(storage, FIRST) == StoredState("e2", None)
    assert await storage.write(FIRST, Change("profile", "e2", False, "e3", WORLD)) == Written()
    assert await profile(storage, FIRST) == StoredState("e3", WORLD)


async def test_a_late_copy_of_a_first_write_does_not_bring_a_cleared_state_back(storage: GrainStorage) -> None:
    await storage.write(FIRST, first_write("e1"))
    await storage.write(FIRST, Change("profile", "e1", True, "e2", None))
    assert await storage.write(FIRST, first_write("e1")) == Conflicting("e2")
    assert await profile(storage, FIRST) == StoredState("e2", None)


async def test_a_clear_does_not_take_the_fence_away(storage: GrainStorage) -> None:
    await storage.write(SECOND, first_write("e1"))
    await storage.write(SECOND, Change("profile", "e1", True, "e2", None))
    assert await storage.write(FIRST, Change("profile", "e2", False, "e3", WORLD)) == Superseded(6)


async def test_of_many_writers_that_have_read_the_same_one_wins(storage: GrainStorage) -> None:
    await storage.write(FIRST, first_write("e0"))
    answers = await asyncio.gather(*(storage.write(FIRST, rewrite("e0", f"e{n}")) for n in range(1, 21)))
    assert answers.count(Written()) == 1
    winner = f"e{answers.index(Written()) + 1}"
    assert set(answers) == {Written(), Conflicting(winner)}


@pytest.mark.parametrize("epoch", [0, -1, EPOCH_MAX])
def test_epochs_out_of_range_are_refused(epoch: int) -> None:
    with pytest.raises(InvalidIdentity):
        Claim(ADA, epoch, "a1")


async def test_the_largest_epochs_are_compared_exactly(storage: GrainStorage) -> None:
    last = EPOCH_MAX - 1
    await storage.read(Claim(ADA, last, "a2"), ["profile"])
    assert await profile(storage, Claim(ADA, last - 1, "a1")) == Superseded(last)


async def test_keys_of_any_form_and_values_of_any_size_are_kept(storage: GrainStorage) -> None:
    odd = Claim(GrainId("player", "a b/{c}\n\u00e9*"), 1, "a1")
    large = StateBody(3, 1, random.Random(1).randbytes(1_000_000))
    assert await storage.write(odd, first_write("e1", large)) == Written()
    assert await profile(storage, odd) == StoredState("e1", large)
    assert await storage.write(odd, rewrite("e1", "e2", StateBody(1, 2, b""))) == Written()
    assert await profile(storage, odd) == StoredState("e2", StateBody(1, 2, b""))


@pytest.mark.parametrize("seed", range(5))
async def test_both_storages_answer_alike_to_any_history(storage: GrainStorage, seed: int) -> None:
    rng, model = random.Random(seed), MemoryStorage()
    etags = [NO_ETAG]
    for step in range(150):
        claim = Claim(ADA, rng.randint(1, 4), f"a{rng.randint(1, 2)}")
        wanted: Reading | object
        if rng.random() < 0.3:
            wanted = await model.read(claim, ["x", "y"])
            assert await storage.read(claim, ["x", "y"]) == wanted
            continue
        etag = rng.choice(etags[-3:]) if rng.random() < 0.2 and etags[-1] else f"e{step}"
        body = StateBody(1, 1, etag.encode()) if rng.random() < 0.7 else None
        change = Change(rng.choice("xy"), rng.choice(etags[-4:]), rng.random() < 0.5, etag or "e", body)
        etags.append(change.etag)
        wanted = await model.write(claim, change)
        assert await storage.write(claim, change) == wanted
