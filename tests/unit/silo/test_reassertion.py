"""What one silo says again when the directory has lost rows: in rounds, in lives, and for each part apart. R-434."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from silo import reassertion as reassertion_module
from silo.activation.catalog import Catalog
from silo.directory.addresses import Entry, GrainId, SiloAddress
from silo.directory.cache import DirectoryCache
from silo.directory.contract import Claim, Inquiry, Registration, Standing
from silo.directory.directory_scripts import DIRECTORY_BUCKETS, bucket_of
from silo.directory.errors import DirectoryUnavailable, MembershipUnavailable
from silo.directory.lives import Lives
from silo.directory.membership import Membership, SiloInfo, SiloRow, SiloStatus, Table, View
from silo.directory.memory_directory import MemoryDirectory
from silo.directory.registrar import Registrar
from silo.messaging.links import Links
from silo.reassertion import (
    ASK_PAUSE_LAST_S,
    CLAIM_ROWS_MAX,
    LOOK_EVERY_S,
    LOOKED_AT_ONCE,
    ROUND_ROWS_MAX,
    Reassertion,
)
from silo.tasks import cancelled
from silo.testing.virtual_time import run
from silo.wire.frames import Unsettled

ME, OTHER = SiloAddress("me:7000", 1), SiloAddress("other:7000", 1)
NOTICED_WITHIN_S = LOOK_EVERY_S * DIRECTORY_BUCKETS / LOOKED_AT_ONCE + LOOK_EVERY_S
PARTS = ("even", "odd")


def served_in(bucket: int, count: int, silo: SiloAddress = ME) -> list[Entry]:
    grains = (GrainId("player", str(number)) for number in itertools.count())
    mine = itertools.islice((grain for grain in grains if bucket_of(str(grain)) == bucket), count)
    return [Entry(grain, silo, f"on {silo}", epoch) for epoch, grain in enumerate(mine, 1)]


class Parts(MemoryDirectory):
    """A directory in two parts: either may be away, or not answer before its gate opens."""

    def __init__(self) -> None:
        super().__init__()
        self.away: set[str] = set()
        self.stuck: dict[str, asyncio.Event] = {}
        self.lost_answers = 0
        """How many claims are carried out, and not answered."""
        self.unasked: set[int] = set()
        """Buckets that cannot be asked, such as those of a slot that is on its way."""
        self.claims: list[list[Claim]] = []
        self.on_claim: Callable[[Claim], None] = lambda _: None

    def part_of(self, bucket: int) -> str:
        return PARTS[bucket % 2]

    async def _reached(self, buckets: list[int]) -> None:
        await asyncio.sleep(0.001)
        for part in sorted({self.part_of(bucket) for bucket in buckets}):
            if part in self.stuck:
                await self.stuck[part].wait()
            if part in self.away:
                raise DirectoryUnavailable(f"{part} is away")

    async def claim(self, claims: Sequence[Claim]) -> list[Standing | None]:
        self.claims.append(list(claims))
        await self._reached([claim.bucket for claim in claims])
        for claim in claims:
            self.on_claim(claim)
        standings = await super().claim([claim for claim in claims if claim.bucket not in self.unasked])
        if self.lost_answers:
            self.lost_answers -= 1
            raise DirectoryUnavailable("the answer was lost")
        answers = iter(standings)
        return [None if claim.bucket in self.unasked else next(answers) for claim in claims]

    async def inquire(self, inquiries: Sequence[Inquiry]) -> list[Standing | None]:
        await self._reached([inquiry.bucket for inquiry in inquiries])
        return await super().inquire(inquiries)


class Served:
    """What is served here, as the catalog says it."""

    def __init__(self) -> None:
        self.all: dict[GrainId, Entry] = {}
        self.outdone_by: list[tuple[Entry, Entry]] = []
        self.given_back: set[Entry] = set()

    def entries(self) -> Iterator[Entry]:
        return iter(tuple(self.all.values()))

    def is_served(self, entry: Entry) -> bool:
        return self.all.get(entry.grain) == entry or entry.silo != ME

    def outdone(self, entry: Entry, by: Entry) -> None:
        self.outdone_by.append((entry, by))
        del self.all[entry.grain]

    def is_given_back(self, entry: Entry) -> bool:
        return entry in self.given_back


def view_of(*silos: SiloAddress, run: str = "run-1") -> View:
    rows = (SiloRow(silo, SiloInfo(str(silo)), SiloStatus.ACTIVE, seq=1, seen=1, joined=1) for silo in silos)
    return View(Table(run, 1, tuple(rows)))


class Members:
    def __init__(self, *silos: SiloAddress) -> None:
        self.view = view_of(*silos)
        self.is_away = False
        self.confirmed: list[View] = []

    async def refresh(self) -> View:
        if self.is_away:
            raise MembershipUnavailable("the table is away")
        return self.view

    def confirm(self, view: View) -> None:
        self.confirmed.append(view)


class Told:
    """What the others are told."""

    def __init__(self) -> None:
        self.sent: list[tuple[SiloAddress, Unsettled]] = []

    def to(self, silo: SiloAddress) -> Told:
        self._to = silo
        return self

    def send(self, frame: Unsettled) -> None:
        self.sent.append((self._to, frame))


class Scene:
    """One silo, everything around it, and another silo that claims when the test says so."""

    def __init__(self, *others: SiloAddress) -> None:
        self.directory = Parts()
        self.lives = Lives()
        self.served = Served()
        self.members = Members(ME, *others)
        self.registrar = Registrar(self.directory, self.lives)
        self.links = Told()
        self.reassertion = Reassertion(
            ME,
            directory=self.directory,
            registrar=self.registrar,
            lives=self.lives,
            membership=cast("Membership", self.members),
            catalog=cast("Catalog", self.served),
            cache=DirectoryCache(),
            links=cast("Links", self.links),
            new_life=map(str, itertools.count()).__next__,
            earlier_within_s=33.0,
        )
        self.reassertion.on_view(self.members.view)

    def serve(self, entries: Sequence[Entry]) -> None:
        self.served.all.update((entry.grain, entry) for entry in entries)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        task = asyncio.create_task(self.reassertion.run())
        try:
            yield
        finally:
            await cancelled([task])
            await self.registrar.close()

    async def until(self, condition: Callable[[], object], within_s: float = 5.0) -> None:
        async with asyncio.timeout(within_s):
            while not condition():  # noqa: ASYNC110 - nothing sets an event for the test
                await asyncio.sleep(0.001)

    async def settled(self, within_s: float = 5.0) -> None:
        await self.until(lambda: self.lives.all_settled, within_s)

    def rows(self) -> set[Entry]:
        return set(self.directory.rows.all())

    def other_claims(self, *buckets: int) -> None:
        rows = self.directory.rows
        for bucket in buckets or range(DIRECTORY_BUCKETS):
            rows.claim(Claim(bucket, OTHER, new_life="of the other"))


def told(story: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """The story under virtual time."""

    def test() -> None:
        run(story, step_s=1e-6)

    test.__name__, test.__doc__ = story.__name__, story.__doc__
    return test


@told
async def test_a_silo_that_is_alone_settles_everything_at_once_and_what_it_serves_stands_there() -> None:
    scene = Scene()
    scene.serve(served_in(3, 5) + served_in(4, 5))
    async with scene.running():
        await scene.settled(0.1)
        assert scene.rows() == set(scene.served.all.values())
        assert not scene.served.outdone_by


@told
async def test_R434_what_was_lost_is_said_again_epoch_and_all_and_noticed_though_nobody_registers() -> None:
    scene = Scene()
    async with scene.running():
        await scene.settled()
        scene.serve(served_in(3, 5))
        scene.directory.rows.lose()
        await scene.until(lambda: scene.rows() == set(scene.served.all.values()), NOTICED_WITHIN_S)
        await scene.settled(NOTICED_WITHIN_S)


@told
async def test_R434_a_registration_finds_out_at_once_and_none_is_given_an_epoch_twice() -> None:
    scene = Scene()
    (entry,) = served_in(3, 1)
    async with scene.running():
        await scene.settled()
        scene.lives.saw(bucket_of(str(entry.grain)), 40)
        scene.directory.rows.lose()
        await scene.registrar.lookup(entry.grain)
        with pytest.raises(DirectoryUnavailable):
            await scene.registrar.register(Registration(entry.grain, ME, "a2"))
        await scene.until(lambda: scene.lives.is_settled(entry.grain), 0.5)
        registered = await scene.registrar.register(Registration(entry.grain, ME, "a2"))
        assert registered is not None
        assert registered.epoch == 41


@told
async def test_R434_nothing_is_settled_before_every_member_has_claimed_and_all_is_as_soon_as_they_have() -> None:
    scene = Scene(OTHER)
    async with scene.running():
        await asyncio.sleep(10.0)
        assert not any(scene.lives.are_settled([bucket]) for bucket in range(DIRECTORY_BUCKETS))
        scene.other_claims(*range(100))
        await scene.until(lambda: scene.lives.are_settled(range(100)), 2 * ASK_PAUSE_LAST_S)
        assert not any(scene.lives.are_settled([bucket]) for bucket in range(100, DIRECTORY_BUCKETS))
        scene.other_claims()
        await scene.settled(2 * ASK_PAUSE_LAST_S)


@told
async def test_the_others_are_told_once_of_a_life_that_waits_for_them() -> None:
    scene = Scene(OTHER)
    scene.other_claims()
    (entry,) = served_in(3, 1)
    async with scene.running():
        await scene.settled()
        scene.links.sent.clear()
        scene.directory.rows.lose()
        with pytest.raises(DirectoryUnavailable):
            await scene.registrar.register(Registration(entry.grain, ME, "a"))
        await scene.until(lambda: scene.links.sent, 0.1)
        life = scene.lives.life(3)
        assert scene.links.sent == [(OTHER, Unsettled("run-1", {3: life}))]
        await asyncio.sleep(1.0)
        assert sum(3 in frame.lives for _, frame in scene.links.sent) == 1
        scene.other_claims(3)
        await scene.until(lambda: scene.lives.is_settled(entry.grain), 2 * ASK_PAUSE_LAST_S)


@told
async def test_a_silo_that_is_waited_for_claims_at_once_in_a_life_under_the_run_that_it_knows_and_in_no_other() -> None:
    scene = Scene(OTHER)
    scene.other_claims()
    async with scene.running():
        await scene.settled()
        was = scene.lives.life(3)
        scene.directory.rows.lose()
        scene.other_claims(3)
        life = "as the other says"
        scene.reassertion.on_frame(Unsettled("run-2", {3: life}))
        assert scene.lives.life(3) == was
        assert scene.lives.are_settled([3])
        scene.reassertion.on_frame(Unsettled("run-1", {3: life}))
        assert not scene.lives.are_settled([3])
        await scene.until(lambda: scene.lives.are_settled([3]), 0.1)
        assert scene.lives.life(3) not in (was, life), "what it is told is a hint: the directory knows the life"


@told
async def test_a_member_that_dies_before_it_has_claimed_is_waited_for_no_more() -> None:
    scene = Scene(OTHER)
    async with scene.running():
        await asyncio.sleep(10.0)
        scene.members.view = view_of(ME)
        scene.reassertion.on_view(scene.members.view)
        await scene.settled(0.1)


@told
async def test_nothing_is_settled_by_a_view_that_cannot_be_read() -> None:
    scene = Scene()
    scene.members.is_away = True
    async with scene.running():
        await asyncio.sleep(10.0)
        assert scene.lives.known(), "it has claimed"
        assert not scene.lives.all_settled
        scene.members.is_away = False
        await scene.settled(2 * ASK_PAUSE_LAST_S)


@told
async def test_rows_go_out_in_rounds_and_large_buckets_in_parts() -> None:
    scene = Scene()
    scene.serve(served_in(2, 2 * CLAIM_ROWS_MAX + 1) + [e for b in range(4, 18, 2) for e in served_in(b, 400)])
    async with scene.running():
        await scene.settled()
    assert scene.rows() == set(scene.served.all.values())
    rows = [[len(claim.entries) for claim in claims if claim.life] for claims in scene.directory.claims]
    assert all(sum(each) <= ROUND_ROWS_MAX for each in rows)
    assert all(count <= CLAIM_ROWS_MAX for each in rows for count in each)
    whole = [claim.whole for claims in scene.directory.claims for claim in claims if claim.bucket == 2 and claim.life]
    assert whole == [False, False, True]


@told
async def test_what_was_carried_out_and_not_answered_is_claimed_once_more() -> None:
    scene = Scene()
    scene.serve(served_in(3, 5))
    scene.directory.lost_answers = 5
    async with scene.running():
        await scene.settled(10.0)
        assert scene.rows() == set(scene.served.all.values())


@told
async def test_a_life_that_ends_between_two_claims_is_not_mistaken_for_the_next() -> None:
    """It was wiped when this silo had asked for the life and not said what it serves."""
    scene = Scene()
    scene.serve(served_in(3, 2 * CLAIM_ROWS_MAX))
    left = [3, 5]

    def lose(claim: Claim) -> None:
        if claim.life and claim.bucket in left:
            left.remove(claim.bucket)
            scene.directory.rows.lose()

    scene.directory.on_claim = lose
    async with scene.running():
        await scene.until(lambda: not left)
        await scene.settled(NOTICED_WITHIN_S)
        assert scene.rows() == set(scene.served.all.values())


@told
async def test_what_has_ended_while_it_was_claimed_does_not_stay() -> None:
    scene = Scene()
    first, second = served_in(3, 2)
    scene.serve([first, second])

    def end(_: Claim) -> None:
        scene.served.all.pop(first.grain, None)

    scene.directory.on_claim = end
    async with scene.running():
        await scene.settled()
        assert scene.rows() == {second}


@told
async def test_a_silo_that_leaves_waits_for_its_claims_and_leaves_no_row_behind_that_one_wrote_late() -> None:
    scene = Scene()
    scene.serve(served_in(3, 2))
    scene.directory.stuck["odd"] = asyncio.Event()
    async with scene.running():
        await scene.until(lambda: any(claim.bucket == 3 for claims in scene.directory.claims for claim in claims))
        finishing = asyncio.create_task(scene.reassertion.finish())
        scene.served.all.clear()
        await asyncio.sleep(1)
        assert not finishing.done()
        scene.directory.stuck.pop("odd").set()
        async with asyncio.timeout(1):
            await finishing
        assert not scene.rows()
        claims = len(scene.directory.claims)
        scene.lives.doubt(is_over=True)
        await asyncio.sleep(LOOK_EVERY_S)
        assert len(scene.directory.claims) == claims


@told
async def test_a_row_of_a_higher_epoch_stands_and_who_served_by_a_lower_one_is_told() -> None:
    scene = Scene()
    (mine,) = served_in(3, 1)
    theirs = Entry(mine.grain, OTHER, "a2", mine.epoch + 1)
    scene.serve([mine])
    scene.directory.rows.claim(Claim(3, OTHER, (theirs,), whole=False))
    async with scene.running():
        await scene.settled()
        assert scene.served.outdone_by == [(mine, theirs)]
        assert scene.rows() == {theirs}


@told
async def test_rows_of_this_silo_that_came_back_with_an_older_store_are_swept_but_not_those_given_back() -> None:
    scene = Scene()
    over, given_back = served_in(3, 2)
    async with scene.running():
        await scene.settled()
        scene.served.given_back.add(given_back)
        scene.directory.rows.restart()
        for entry in (over, given_back):
            scene.directory.rows.register(Registration(entry.grain, ME, entry.activation))
        stands = {entry.grain: entry for entry in scene.rows()}
        scene.served.given_back = {stands[given_back.grain]}
        scene.members.view = view_of(ME, run="run-2")
        scene.reassertion.on_view(scene.members.view)
        await scene.settled()
        await scene.until(lambda: scene.rows() == {stands[given_back.grain]})


@told
async def test_a_silo_that_came_back_claims_once_more_when_all_others_have_and_is_confirmed_once() -> None:
    scene = Scene(OTHER)
    async with scene.running():
        scene.other_claims()
        await scene.settled()
        assert not scene.members.confirmed, "a newcomer has nothing to confirm"
        scene.members.view = view_of(ME, OTHER, run="run-2")
        scene.directory.rows.lose()
        scene.reassertion.on_view(scene.members.view)
        await asyncio.sleep(5.0)
        assert not scene.members.confirmed
        scene.other_claims()
        await scene.until(lambda: scene.members.confirmed, 2 * ASK_PAUSE_LAST_S)
        await asyncio.sleep(5.0)
        assert scene.members.confirmed == [scene.members.view]


# ---- parts that are away


def evens() -> list[int]:
    return list(range(0, DIRECTORY_BUCKETS, 2))


def odds() -> list[int]:
    return list(range(1, DIRECTORY_BUCKETS, 2))


@pytest.mark.parametrize("how", ["away", "stuck"])
def test_a_part_of_the_directory_that_is_not_there_holds_up_its_own_buckets_and_no_others(how: str) -> None:
    async def story() -> None:
        scene = Scene()
        scene.serve(served_in(3, 5) + served_in(4, 5))
        gate = asyncio.Event()
        if how == "away":
            scene.directory.away.add("odd")
        else:
            scene.directory.stuck["odd"] = gate
        async with scene.running():
            await scene.until(lambda: scene.lives.are_settled(evens()), 0.1)
            scene.directory.rows.lose()
            scene.lives.doubt(evens())
            await scene.until(lambda: scene.lives.are_settled(evens()), 0.1)
            await asyncio.sleep(30.0)
            assert not any(scene.lives.are_settled([bucket]) for bucket in odds())
            asked = [claims for claims in scene.directory.claims if claims[0].bucket % 2]
            assert len(asked) <= 30.0 / ASK_PAUSE_LAST_S + 6, "it is asked again at its pace, whatever the other is"
            scene.directory.away.clear()
            gate.set()
            scene.directory.stuck.clear()
            await scene.settled(2 * ASK_PAUSE_LAST_S)
            assert scene.rows() == set(scene.served.all.values())

    run(story, step_s=1e-6)


@told
async def test_a_bucket_that_cannot_be_asked_holds_up_itself_alone() -> None:
    scene = Scene()
    scene.serve(served_in(3, 5) + served_in(5, 5))
    scene.directory.unasked.add(3)
    async with scene.running():
        await scene.until(lambda: scene.lives.are_settled([b for b in range(DIRECTORY_BUCKETS) if b != 3]), 0.5)
        await asyncio.sleep(10.0)
        assert not scene.lives.are_settled([3])
        scene.directory.unasked.clear()
        await scene.settled(2 * ASK_PAUSE_LAST_S)


@told
async def test_it_goes_on_after_a_failure_that_nobody_foresaw() -> None:
    scene = Scene()
    failures = [ValueError("a mistake"), ValueError("another")]

    def fail(_: Claim) -> None:
        if failures:
            raise failures.pop()

    scene.directory.on_claim = fail
    async with scene.running():
        await scene.settled(10.0)
    assert not failures


@told
async def test_it_can_be_ended_while_the_directory_does_not_answer() -> None:
    scene = Scene()
    scene.directory.stuck = {part: asyncio.Event() for part in PARTS}
    async with scene.running():
        await asyncio.sleep(1.0)
    assert not scene.lives.known()


def test_the_bounds_fit_each_other() -> None:
    assert DIRECTORY_BUCKETS % LOOKED_AT_ONCE == 0
    assert CLAIM_ROWS_MAX <= ROUND_ROWS_MAX
    assert reassertion_module.ASK_PAUSE_FIRST_S < ASK_PAUSE_LAST_S <= LOOK_EVERY_S
