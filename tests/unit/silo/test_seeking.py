"""Who serves a grain, asked of the members: who is asked, whose answer counts, and that it ends in time. R-434."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from silo.activation.catalog import Catalog
from silo.directory.addresses import Entry, GrainId, SiloAddress
from silo.directory.membership import Membership, SiloInfo, SiloRow, SiloStatus, Table, View
from silo.messaging.links import Links
from silo.routing import seeking as seeking_module
from silo.routing.seeking import ANSWERS_WITHIN_S, SILOS_ASKED_MAX, SOUGHT_MAX, Seeking
from silo.testing.virtual_time import run
from silo.wire.frames import Frame, Seek, SeekAnswer

ADA = GrainId("player", "ada")
ME, *OTHERS = (SiloAddress(f"silo-{number}:7000", 1) for number in range(100))
B, C, D = OTHERS[:3]
AT_B, AT_C, AT_ME = (Entry(ADA, silo, f"on {silo}", epoch) for epoch, silo in enumerate((B, C, ME), 1))


def row(silo: SiloAddress, status: SiloStatus = SiloStatus.ACTIVE) -> SiloRow:
    dead = 1 if status is SiloStatus.DEAD else None
    return SiloRow(silo, SiloInfo(str(silo)), status, seq=1, seen=1, joined=1, dead=dead)


class Members:
    """The members as this silo sees them."""

    def __init__(self, *rows: SiloRow) -> None:
        self.view = View(Table("run", 1, rows))


class Served:
    """What is served here."""

    def __init__(self) -> None:
        self.entries: dict[GrainId, Entry] = {}

    def entry_of(self, grain: GrainId) -> Entry | None:
        return self.entries.get(grain)


class Way:
    """All links at once: what went by which."""

    def __init__(self) -> None:
        self.sent: list[tuple[SiloAddress, Frame]] = []
        self._to: SiloAddress

    def to(self, silo: SiloAddress) -> Way:
        self._to = silo
        return self

    def send(self, frame: Frame) -> None:
        self.sent.append((self._to, frame))


class Stage:
    """One silo that seeks, and everything around it."""

    def __init__(self, *others: SiloAddress) -> None:
        self.members = Members(row(ME), *map(row, others))
        self.served = Served()
        self.way = Way()
        catalog, membership, links = cast("Catalog", self.served), cast("Membership", self.members), self.way
        self.seeking = Seeking(ME, catalog, membership, cast("Links", links))

    def answer(self, peer: SiloAddress, entry: Entry | None = None, grain: GrainId = ADA) -> None:
        self.seeking.on_frame(peer, SeekAnswer(grain, entry))

    async def asked(self, grain: GrainId = ADA) -> asyncio.Task[Entry | None]:
        """A question that is under way."""
        asked = asyncio.create_task(self.seeking.seek(grain))
        await asyncio.sleep(0)
        return asked


def told(story: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """The story under virtual time, which nothing but a wait moves on."""

    def test() -> None:
        run(story)

    test.__name__, test.__doc__ = story.__name__, story.__doc__
    return test


def now() -> float:
    return asyncio.get_running_loop().time()


@told
async def test_R434_every_other_member_is_asked_and_who_serves_the_grain_is_believed_at_once() -> None:
    stage = Stage(B, C)
    began = now()
    asked = await stage.asked()
    assert stage.way.sent == [(B, Seek(ADA)), (C, Seek(ADA))]
    stage.answer(C, AT_C)
    assert await asked == AT_C
    assert now() == began


@told
async def test_that_nobody_serves_it_is_known_when_all_have_said_so() -> None:
    stage = Stage(B, C)
    began = now()
    asked = await stage.asked()
    for peer in (B, B):  # it says so twice
        stage.answer(peer)
        await asyncio.sleep(0)
        assert not asked.done()
    stage.answer(C)
    assert await asked is None
    assert now() == began


@told
async def test_a_peer_that_dies_before_it_has_answered_is_waited_for_no_longer_than_the_bound() -> None:
    stage = Stage(B, C)
    began = now()
    asked = await stage.asked()
    stage.answer(B)
    stage.members.view = View(Table("run", 2, (row(ME), row(B), row(C, SiloStatus.DEAD))))
    assert await asked is None
    assert now() - began == pytest.approx(ANSWERS_WITHIN_S)


@told
async def test_an_answer_that_comes_late_or_once_more_is_of_no_question() -> None:
    stage = Stage(B, C)
    assert await stage.seeking.seek(ADA) is None
    stage.answer(B, AT_B)
    asked = await stage.asked()
    stage.answer(B, AT_B)
    stage.answer(C, AT_C)
    stage.answer(B)
    assert await asked == AT_B
    assert len(stage.way.sent) == 4, "what came late was kept for nobody"


@pytest.mark.parametrize(
    ("peer", "entry"),
    [
        pytest.param(B, AT_ME, id="this very silo, which would know"),
        pytest.param(B, Entry(ADA, D, "a1", 9), id="a silo that is dead"),
    ],
)
def test_an_entry_that_leads_nowhere_ends_no_question_that_another_may_answer(peer: SiloAddress, entry: Entry) -> None:
    async def story() -> None:
        stage = Stage(B, C)
        stage.members.view = View(Table("run", 2, (row(ME), row(B), row(C), row(D, SiloStatus.DEAD))))
        asked = await stage.asked()
        stage.answer(peer, entry)
        await asyncio.sleep(0)
        assert not asked.done()
        stage.answer(C, AT_C)
        assert await asked == AT_C

    run(story)


@told
async def test_those_who_ask_for_one_grain_share_a_question_and_its_time() -> None:
    stage = Stage(B)
    began = now()
    first = await stage.asked()
    await asyncio.sleep(ANSWERS_WITHIN_S / 2)
    second = await stage.asked()
    assert stage.way.sent == [(B, Seek(ADA))]
    assert (await first, await second) == (None, None)
    assert now() - began == pytest.approx(ANSWERS_WITHIN_S)
    assert await stage.seeking.seek(ADA) is None
    assert len(stage.way.sent) == 2, "the next one is asked anew"


@told
async def test_one_that_gives_up_takes_the_answer_from_nobody_else() -> None:
    stage = Stage(B)
    first, second = await stage.asked(), await stage.asked()
    first.cancel()
    await asyncio.wait([first])
    assert first.cancelled()
    await asyncio.sleep(0)
    assert not second.done()
    stage.answer(B, AT_B)
    assert await second == AT_B


@told
async def test_a_question_that_nobody_waits_for_any_more_ends_all_the_same() -> None:
    stage = Stage(B)
    asked = await stage.asked()
    asked.cancel()
    await asyncio.wait([asked])
    await asyncio.sleep(2 * ANSWERS_WITHIN_S)
    stage.answer(B, AT_B)
    again = await stage.asked()
    assert len(stage.way.sent) == 2
    stage.answer(B, AT_B)
    assert await again == AT_B


@told
async def test_a_silo_that_is_alone_asks_nobody_and_waits_for_nothing() -> None:
    stage = Stage()
    began = now()
    assert await stage.seeking.seek(ADA) is None
    assert (stage.way.sent, now()) == ([], began)


@told
async def test_no_more_members_are_asked_than_the_bound_says() -> None:
    stage = Stage(*OTHERS)
    await stage.seeking.seek(ADA)
    assert len(stage.way.sent) == SILOS_ASKED_MAX < len(OTHERS)


def test_no_more_grains_are_sought_at_once_than_the_bound_says(monkeypatch: pytest.MonkeyPatch) -> None:
    most = 3
    assert most < SOUGHT_MAX
    monkeypatch.setattr(seeking_module, "SOUGHT_MAX", most)

    async def story() -> None:
        stage = Stage(B)
        asked = [await stage.asked(GrainId("player", str(number))) for number in range(most)]
        began = now()
        assert await stage.seeking.seek(ADA) is None
        assert now() == began
        again = await stage.asked(GrainId("player", "0"))
        assert not again.done(), "one that is sought may be waited for by any number"
        assert len(stage.way.sent) == most
        assert await asyncio.gather(*asked, again) == [None] * (most + 1)
        stage.answer(B, AT_B)
        await stage.seeking.seek(ADA)
        assert len(stage.way.sent) == most + 1, "there is room again"

    run(story)


@told
async def test_who_is_asked_answers_with_what_it_serves_or_that_it_does_not() -> None:
    stage = Stage(B)
    stage.seeking.on_frame(B, Seek(ADA))
    stage.served.entries[ADA] = AT_ME
    stage.seeking.on_frame(B, Seek(ADA))
    assert stage.way.sent == [(B, SeekAnswer(ADA, None)), (B, SeekAnswer(ADA, AT_ME))]
