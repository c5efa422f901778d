"""The registrar: many callers, few calls of the directory, and nobody pays for another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

import pytest

from silo.directory import registrar as registrar_module
from silo.directory.addresses import Entry, GrainId, SiloAddress
from silo.directory.contract import Claim, Registration
from silo.directory.directory_scripts import bucket_of
from silo.directory.errors import (
    Closed,
    DirectoryRowUnreadable,
    DirectoryUnavailable,
    DirectoryUnsettled,
    Overloaded,
)
from silo.directory.lives import Lives
from silo.directory.memory_directory import DirectoryCall, DirectoryRows, MemoryDirectory
from silo.directory.registrar import BATCH_GRAINS_MAX, BATCH_GRAINS_SPLIT, BATCHES_IN_FLIGHT_MAX, Registrar

ADA = GrainId("player", "ada")
ONE = SiloAddress("10.0.0.1:7000", 1)


def grain(number: int) -> GrainId:
    return GrainId("k", str(number))


class WatchedDirectory(MemoryDirectory):
    """Notes the batches it is asked, and answers when its gate is open."""

    def __init__(self) -> None:
        super().__init__(DirectoryRows(), before=self._hold)
        self.gate = asyncio.Event()
        self.gate.set()
        self.asked = asyncio.Event()
        self.lookups: list[list[GrainId]] = []
        self.registrations: list[list[Registration]] = []
        self.broken: set[GrainId] = set()
        self.unreadable: set[GrainId] = set()

    async def _hold(self, call: DirectoryCall) -> None:
        self.asked.set()
        await self.gate.wait()

    async def lookup(self, grains: Sequence[GrainId]) -> list[Entry | None]:
        self.lookups.append(list(grains))
        if self.broken.intersection(grains):
            raise DirectoryUnavailable("broken")
        if self.unreadable.intersection(grains):
            raise DirectoryRowUnreadable({str(grain): "too new" for grain in self.unreadable.intersection(grains)})
        return await super().lookup(grains)

    async def register(self, registrations: Sequence[Registration]) -> list[Entry | None]:
        self.registrations.append(list(registrations))
        return await super().register(registrations)


@pytest.fixture
def directory() -> WatchedDirectory:
    return WatchedDirectory()


@pytest.fixture
async def registrar(directory: WatchedDirectory) -> AsyncIterator[Registrar]:
    opened = Registrar(directory)
    yield opened
    directory.gate.set()
    await opened.close()


async def test_calls_of_one_loop_pass_travel_together(directory: WatchedDirectory, registrar: Registrar) -> None:
    entries = await asyncio.gather(
        *(registrar.register(Registration(grain(n), ONE, f"a{n}")) for n in range(BATCH_GRAINS_SPLIT))
    )
    assert [entry and entry.activation for entry in entries] == [f"a{n}" for n in range(BATCH_GRAINS_SPLIT)]
    assert [len(batch) for batch in directory.registrations] == [BATCH_GRAINS_SPLIT]
    found = await asyncio.gather(*(registrar.lookup(grain(n)) for n in range(BATCH_GRAINS_SPLIT)))
    assert found == entries
    assert [len(batch) for batch in directory.lookups] == [BATCH_GRAINS_SPLIT]
    removed = await asyncio.gather(*(registrar.unregister(entry) for entry in entries if entry is not None))
    assert removed == [True] * BATCH_GRAINS_SPLIT


async def test_what_waits_together_is_spread_over_the_batches_that_may_be_out(
    directory: WatchedDirectory, registrar: Registrar
) -> None:
    """So that the answers of one can be dealt with while others are on their way; too small they would cost more."""
    directory.gate.clear()
    for count, sizes in (
        (BATCH_GRAINS_SPLIT, [BATCH_GRAINS_SPLIT]),
        (BATCH_GRAINS_SPLIT + 1, [BATCH_GRAINS_SPLIT, 1]),
        (5 * BATCH_GRAINS_SPLIT * BATCHES_IN_FLIGHT_MAX, [5 * BATCH_GRAINS_SPLIT] * BATCHES_IN_FLIGHT_MAX),
    ):
        directory.lookups.clear()
        answers = asyncio.gather(*(registrar.lookup(grain(n)) for n in range(count)))
        for _ in range(BATCHES_IN_FLIGHT_MAX + 1):
            await asyncio.sleep(0)  # each begins the next
        assert [len(batch) for batch in directory.lookups] == sizes
        directory.gate.set()
        assert await answers == [None] * count
        directory.gate.clear()


async def test_batches_are_bounded_in_size_and_in_number(directory: WatchedDirectory, registrar: Registrar) -> None:
    directory.gate.clear()
    count = (BATCHES_IN_FLIGHT_MAX + 1) * BATCH_GRAINS_MAX + 1
    answers = asyncio.gather(*(registrar.lookup(grain(n)) for n in range(count)))
    await directory.asked.wait()
    for _ in range(BATCHES_IN_FLIGHT_MAX):
        await asyncio.sleep(0)  # each begins the next
    assert [len(batch) for batch in directory.lookups] == [BATCH_GRAINS_MAX] * BATCHES_IN_FLIGHT_MAX
    directory.gate.set()
    assert await answers == [None] * count
    assert max(len(batch) for batch in directory.lookups) == BATCH_GRAINS_MAX
    assert sum(len(batch) for batch in directory.lookups) == count


async def test_calls_that_come_while_all_batches_are_out_gather(
    directory: WatchedDirectory, registrar: Registrar
) -> None:
    directory.gate.clear()
    callers: list[asyncio.Task[Entry | None]] = []
    for n in range(BATCHES_IN_FLIGHT_MAX + 20):
        callers.append(asyncio.create_task(registrar.lookup(grain(n))))
        for _ in range(4):
            await asyncio.sleep(0)  # let it be sent, if it may
    assert [len(batch) for batch in directory.lookups] == [1] * BATCHES_IN_FLIGHT_MAX
    directory.gate.set()
    await asyncio.gather(*callers)
    assert [len(batch) for batch in directory.lookups] == [1] * BATCHES_IN_FLIGHT_MAX + [20]


async def test_two_lookups_of_one_grain_share_one(directory: WatchedDirectory, registrar: Registrar) -> None:
    await asyncio.gather(*(registrar.lookup(ADA) for _ in range(10)))
    assert directory.lookups == [[ADA]]


async def test_whoever_has_no_task_is_called_back_with_the_row_or_with_the_error(
    directory: WatchedDirectory, registrar: Registrar
) -> None:
    told: dict[GrainId, Entry | Exception | None] = {}

    def tell(wanted: GrainId) -> Callable[[Entry | Exception | None], None]:
        return lambda row: told.__setitem__(wanted, row)

    directory.unreadable = {grain(2)}
    entry = directory.rows.register(Registration(grain(1), ONE, "a1"))
    for n in range(3):
        registrar.look_up(grain(n), tell(grain(n)))
    assert await registrar.lookup(grain(1)) == entry
    assert [told.pop(grain(n)) for n in range(2)] == [None, entry]
    assert isinstance(told.pop(grain(2)), DirectoryRowUnreadable)
    assert len(directory.lookups[0]) == 3, "with whoever waits for the same row"


async def test_a_listener_that_fails_is_told_once_and_harms_no_other(
    directory: WatchedDirectory, registrar: Registrar, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[Entry | Exception | None] = []

    def fail(row: Entry | Exception | None) -> None:
        told.append(row)
        raise ValueError("of the listener's own")

    registrar.look_up(grain(1), fail)
    assert [await registrar.lookup(grain(1)), await registrar.lookup(grain(2))] == [None, None]
    assert told == [None]
    assert "listener_failed" in caplog.text


async def test_a_registration_without_a_task_is_called_back_and_counts_in_its_life_alone(
    directory: WatchedDirectory,
) -> None:
    lives = Lives()
    registrar = Registrar(directory, lives)
    bucket = bucket_of(str(ADA))
    first, second = (asyncio.Future[Entry | Exception | None]() for _ in range(2))
    with pytest.raises(DirectoryUnsettled):
        registrar.register_soon(Registration(ADA, ONE, "a1"), first.set_result)
    assert bucket in lives.take_claims()
    (standing,) = await directory.claim([Claim(bucket, ONE, new_life="life")])
    assert standing is not None
    lives.claimed(bucket, standing.life, is_settled=True)

    registrar.register_soon(Registration(ADA, ONE, "a1"), first.set_result)
    entry = await first
    assert isinstance(entry, Entry)
    assert lives.floor(bucket) == entry.epoch

    registrar.register_soon(Registration(ADA, ONE, "a2", expected=entry), second.set_result)
    lives.doubt([bucket])
    assert lives.take_claims() == {}, "not while it is out"
    assert isinstance(await second, DirectoryUnsettled)
    assert bucket in lives.take_claims()
    await registrar.close()


async def test_a_lookup_sees_what_was_registered_before_it_even_if_an_older_one_is_out(
    directory: WatchedDirectory, registrar: Registrar
) -> None:
    directory.gate.clear()
    older = asyncio.create_task(registrar.lookup(ADA))
    await directory.asked.wait()
    entry = directory.rows.register(Registration(ADA, ONE, "a1"))
    newer = asyncio.create_task(registrar.lookup(ADA))
    await asyncio.sleep(0)
    directory.gate.set()
    assert await newer == entry
    await older
    assert directory.lookups == [[ADA], [ADA]]


async def test_a_batch_that_fails_fails_its_callers_and_no_others(
    directory: WatchedDirectory, registrar: Registrar
) -> None:
    directory.broken = {grain(0)}
    answers = await asyncio.gather(
        *(registrar.lookup(grain(n)) for n in range(BATCH_GRAINS_MAX + 3)), return_exceptions=True
    )
    first = len(directory.lookups[0])
    failed, fine = answers[:first], answers[first:]
    assert all(isinstance(answer, DirectoryUnavailable) for answer in failed)
    assert len({id(answer) for answer in failed}) == first  # each caller may raise its own
    assert fine
    assert fine == [None] * len(fine)


async def test_a_row_that_cannot_be_read_fails_only_those_who_asked_for_it(
    directory: WatchedDirectory, registrar: Registrar
) -> None:
    directory.unreadable = {grain(3), grain(5)}
    answers = await asyncio.gather(*(registrar.lookup(grain(n)) for n in range(8)), return_exceptions=True)
    for n, answer in enumerate(answers):
        if n in (3, 5):
            assert isinstance(answer, DirectoryRowUnreadable)
            assert list(answer.rows) == [f"k/{n}"]
        else:
            assert answer is None


async def test_S100_a_cancelled_caller_takes_nothing_from_the_others(
    directory: WatchedDirectory, registrar: Registrar
) -> None:
    directory.gate.clear()
    callers = [asyncio.create_task(registrar.register(Registration(grain(n), ONE, f"a{n}"))) for n in range(10)]
    await directory.asked.wait()
    callers[4].cancel()
    await asyncio.sleep(0)
    directory.gate.set()
    answers = await asyncio.gather(*callers, return_exceptions=True)
    assert isinstance(answers[4], asyncio.CancelledError)
    assert all(isinstance(answer, Entry) for n, answer in enumerate(answers) if n != 4)
    assert directory.rows.look_up(grain(4)) is not None  # it had been sent, and was carried out


async def test_a_call_that_all_its_callers_gave_up_before_it_was_sent_is_not_sent(
    directory: WatchedDirectory, registrar: Registrar
) -> None:
    given_up = asyncio.create_task(registrar.register(Registration(ADA, ONE, "a1")))
    kept = asyncio.create_task(registrar.register(Registration(grain(1), ONE, "a2")))
    asyncio.get_running_loop().call_soon(given_up.cancel)
    await asyncio.wait([given_up, kept])
    assert given_up.cancelled()
    assert directory.rows.look_up(grain(1)) == kept.result()


async def test_more_waiting_callers_than_there_may_be_are_refused(
    directory: WatchedDirectory, registrar: Registrar, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registrar_module, "WAITING_CALLS_MAX", 5)
    answers = await asyncio.gather(*(registrar.lookup(grain(n)) for n in range(7)), return_exceptions=True)
    assert answers[:5] == [None] * 5
    refused = answers[5]
    assert isinstance(refused, Overloaded)
    assert refused.limit == "WAITING_CALLS_MAX"


class HalfStuckDirectory(MemoryDirectory):
    """A directory in two parts, of which that of the even buckets does not answer."""

    def part_of(self, bucket: int) -> str:
        return "odd" if bucket % 2 else "even"

    async def lookup(self, grains: Sequence[GrainId]) -> list[Entry | None]:
        if any(bucket_of(str(grain)) % 2 == 0 for grain in grains):
            await asyncio.Event().wait()
        return await super().lookup(grains)


async def test_a_part_of_the_directory_that_does_not_answer_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registrar_module, "CLOSE_TIMEOUT_S", 0.01)
    registrar = Registrar(HalfStuckDirectory())
    asked = [grain(n) for n in range(3 * BATCHES_IN_FLIGHT_MAX * BATCH_GRAINS_MAX)]
    lookups: tuple[list[asyncio.Task[Entry | None]], ...] = ([], [])
    for each in asked:
        lookups[bucket_of(str(each)) % 2].append(asyncio.create_task(registrar.lookup(each)))
    stuck, others = lookups
    assert len(stuck) > BATCHES_IN_FLIGHT_MAX * BATCH_GRAINS_MAX
    async with asyncio.timeout(5):
        assert await asyncio.gather(*others) == [None] * len(others)
    assert not any(lookup.done() for lookup in stuck)
    await registrar.close()
    ended = await asyncio.gather(*stuck, return_exceptions=True)
    assert {type(each) for each in ended} == {DirectoryUnavailable, Closed}, "what was out, and what waited"


async def test_close_answers_what_was_sent_and_refuses_the_rest(directory: WatchedDirectory) -> None:
    registrar = Registrar(directory)
    directory.gate.clear()
    sent = [asyncio.create_task(registrar.lookup(grain(n))) for n in range(BATCHES_IN_FLIGHT_MAX * BATCH_GRAINS_MAX)]
    await directory.asked.wait()
    waiting = asyncio.create_task(registrar.lookup(ADA))
    await asyncio.sleep(0)
    closing = asyncio.create_task(registrar.close())
    with pytest.raises(Closed):
        await waiting
    directory.gate.set()
    await closing
    assert await asyncio.gather(*sent) == [None] * len(sent)
    with pytest.raises(Closed):
        await registrar.lookup(ADA)


async def test_close_gives_up_batches_that_do_not_end(
    directory: WatchedDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registrar_module, "CLOSE_TIMEOUT_S", 0.01)
    registrar = Registrar(directory)
    directory.gate.clear()
    stuck = asyncio.create_task(registrar.lookup(ADA))
    await directory.asked.wait()
    await registrar.close()
    with pytest.raises(DirectoryUnavailable, match="closed"):
        await stuck
