"""After the directory has lost rows, each silo says again what it serves: paced, and by compare-and-set.

What may be registered meanwhile `silo.directory.settling` decides for each bucket; here is its shell. Nobody is
deactivated for a row that is missing: it is written again, epoch and all. Only a row of a higher epoch says that a
grain is served elsewhere by now.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from silo.activation.catalog import Catalog
from silo.directory.addresses import Entry, SiloAddress
from silo.directory.cache import DirectoryCache
from silo.directory.contract import STRAYS_MAX, Claim, GrainDirectory, Inquiry, Standing
from silo.directory.directory_scripts import DIRECTORY_BUCKETS, bucket_of
from silo.directory.errors import DirectoryUnavailable, MembershipUnavailable, NotExecuted
from silo.directory.lives import ASSERTED_AGAIN, Lives
from silo.directory.membership import EMPTY_VIEW, Membership, View
from silo.directory.registrar import Registrar
from silo.logs import get_logger
from silo.messaging.links import Links
from silo.wire.frames import Unsettled

log = get_logger(__name__)

CLAIM_ROWS_MAX = 500
"""Rows of one claim, which is one script call: a bucket that has more is claimed in parts."""
ROUND_ROWS_MAX = 2_000
"""Rows that one silo claims at once; more follow when these are answered."""
COLLECTED_AT_ONCE = 2_000
"""Activations that are looked through before others get their turn on the loop."""
LOOK_EVERY_S = 2.0
"""How often some lives are looked at where nothing says that they have changed."""
LOOKED_AT_ONCE = 32
"""How many lives those are: each bucket has its turn within sixteen seconds."""
ASK_PAUSE_FIRST_S = 0.05
ASK_PAUSE_LAST_S = 1.0
"""The pause before others are asked after again, and after a failure: the first, and the longest."""


@dataclass(slots=True, eq=False)
class _Part:
    """A part of the directory: a master of a Redis Cluster, say. It is waited for alone, and holds up no other."""

    name: str
    work: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when there is something to claim, or to find out."""
    told: dict[int, str] = field(default_factory=dict[int, str])
    """The life of each bucket of which the others were told last."""
    pause_s: float = ASK_PAUSE_FIRST_S
    turn: int = 0
    """Which of its lives are looked at next where nothing says that they have changed."""
    claiming: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held from when claims go out until what their answers say is done."""

    def next_pause_s(self) -> float:
        pause_s, self.pause_s = self.pause_s, min(self.pause_s * 2, ASK_PAUSE_LAST_S)
        return pause_s


class Reassertion:
    """Claims what one silo serves whenever a bucket has begun another life, and finds out when that is settled.

    Args:
        new_life: a name that no life has had.
        earlier_within_s: how long silos of an earlier table are waited for, of which the store knows nothing.
    """

    def __init__(
        self,
        me: SiloAddress,
        *,
        directory: GrainDirectory,
        registrar: Registrar,
        lives: Lives,
        membership: Membership,
        catalog: Catalog,
        cache: DirectoryCache,
        links: Links,
        new_life: Callable[[], str],
        earlier_within_s: float,
    ) -> None:
        self._me = me
        self._directory = directory
        self._registrar = registrar
        self._lives = lives
        self._membership = membership
        self._catalog = catalog
        self._cache = cache
        self._links = links
        self._new_life = new_life
        self._earlier_within_s = earlier_within_s
        self._view = EMPTY_VIEW
        self._turns = DIRECTORY_BUCKETS // LOOKED_AT_ONCE
        self._parts: dict[str, _Part] = {}
        self._due: dict[int, str] = {}
        """The buckets to claim that nobody is claiming now, with the life in each that is over."""
        self._confirmed = ""
        """The run of the table for which the directory has confirmed what is served here."""
        self._claimed_in: tuple[str, ...] = ()
        """The lives that were settled when it was last claimed for that confirmation."""
        self._has_finished = False

    def on_view(self, view: View) -> None:
        """Another table, or another run of its store: what was written to that store last may be lost as well."""
        before, self._view = self._view, view
        if not before.table.run:
            self._confirmed = view.table.run  # a newcomer serves nothing
        elif before.table.run != view.table.run:
            self._lives.doubt(is_over=True)
        if before.table.awaits_earlier != view.table.awaits_earlier:
            self._tell_awaited(view)
        for part in self._parts.values():
            part.pause_s = ASK_PAUSE_FIRST_S
            if not self._lives.all_settled:
                part.work.set()

    def _tell_awaited(self, view: View) -> None:
        """Say why new grains wait, to the log and to those who call them; or that they wait for it no more."""
        seconds = round(self._earlier_within_s, 1)
        if view.table.awaits_earlier:
            self._lives.why_unsettled = (
                "this store holds no cluster table of earlier silos; the first silo of a new cluster is started with "
                f"--bootstrap; otherwise new grains wait up to {seconds:g} s for silos that may still serve them"
            )
            log.warning("silo.awaits_earlier_silos", seconds=seconds, why=self._lives.why_unsettled)
        else:
            self._lives.why_unsettled = ASSERTED_AGAIN
            log.info("silo.earlier_silos_awaited_no_more", came_back=view.table.earlier is None)

    def on_frame(self, frame: Unsettled) -> None:
        """Another silo waits for the claims of this one."""
        if frame.run != self._view.table.run:  # taken now, these lives would be thought to be over when it changes
            return
        for bucket, life in frame.lives.items():
            self._lives.seen(bucket, life, is_settled=False)

    async def run(self) -> None:
        """Say at once what is served here, so that buckets which are new are settled before anybody wants them."""
        self._lives.doubt()
        async with asyncio.TaskGroup() as parts:
            while True:
                self._lives.work.clear()
                claims = self._lives.take_claims()
                self._due.update(claims)
                part_of = self._directory.part_of
                for name in dict.fromkeys(map(part_of, range(DIRECTORY_BUCKETS))):
                    if name not in self._parts:
                        self._parts[name] = _Part(name)
                        parts.create_task(self._keep_up(self._parts[name]), name=f"claim what lies in {name!r}")
                for name in dict.fromkeys(map(part_of, claims)):
                    self._parts[name].work.set()
                await _until(self._lives.work, LOOK_EVERY_S)

    async def finish(self) -> None:
        """Claim nothing more, and wait for the answers to what was claimed: for a silo that leaves, and serves no more.

        A claim that lands after its grains have ended writes their rows again, which is found out by its answer.
        """
        self._has_finished = True
        for part in list(self._parts.values()):
            async with part.claiming:
                pass  # it claims nothing now

    async def _keep_up(self, part: _Part) -> None:
        """Claim what is to be claimed in one part, and find out when that is settled, for as long as it has buckets."""
        while buckets := self._buckets_of(part):
            part.work.clear()
            try:
                async with part.claiming:
                    await self._claim(buckets)
                await self._look(part, buckets)
                if self._lives.are_settled(buckets):
                    pause_s, part.pause_s = LOOK_EVERY_S, ASK_PAUSE_FIRST_S
                else:
                    pause_s = part.next_pause_s()
            except (DirectoryUnavailable, MembershipUnavailable) as error:
                log.debug("reassertion.put_off", why=str(error))
                pause_s = part.next_pause_s()
            except NotExecuted as error:  # such as a row of another release
                log.warning("reassertion.failed", why=str(error))
                pause_s = ASK_PAUSE_LAST_S
            except Exception:  # unforeseen, and no reason to leave what is served here unsaid for ever
                log.exception("reassertion.failed")
                pause_s = ASK_PAUSE_LAST_S
            await _until(part.work, pause_s)
        del self._parts[part.name]

    def _buckets_of(self, part: _Part) -> list[int]:
        part_of, name = self._directory.part_of, part.name
        return [bucket for bucket in range(DIRECTORY_BUCKETS) if part_of(bucket) == name]

    # ----------------------------------------------------------------------------------------------------------- claims

    async def _claim(self, buckets: Collection[int]) -> None:
        """Claim what is to be claimed of these, a round after the other. What cannot be now is put off, and no more."""
        if not self._due or self._has_finished:
            return
        due = {bucket: self._due.pop(bucket) for bucket in buckets if bucket in self._due}
        try:
            served = await self._served(due)
            lives = await self._lives_of(due)
            for claims in self._rounds(lives, served):
                with _put_off():
                    await self._claim_round(claims, served, due)
            for bucket in [bucket for bucket in lives if len(served[bucket]) > CLAIM_ROWS_MAX]:
                with _put_off():
                    await self._claim_in_parts(bucket, lives[bucket], served[bucket])
                    del due[bucket]
        finally:
            self._due.update(due)

    async def _lives_of(self, due: Mapping[int, str]) -> dict[int, str]:
        """The lives of these buckets, which begin with that where there is none, or one that is over.

        What is claimed then counts in that life alone: a claim that comes late, when this silo has long registered more
        or is dead, must say nothing in one that has begun since.
        """
        asked = [
            Claim(bucket, self._me, over=over, new_life=self._new_life(), whole=False) for bucket, over in due.items()
        ]
        lives: dict[int, str] = {}
        if asked:
            with _put_off():
                for claim, standing in zip(asked, await self._directory.claim(asked), strict=True):
                    if standing is not None:
                        lives[claim.bucket] = standing.life
        return lives

    async def _claim_round(
        self, claims: Sequence[Claim], served: Mapping[int, Sequence[Entry]], due: dict[int, str]
    ) -> None:
        """Buckets with few rows, many at a time; what has been claimed is due no more."""
        for claim, standing in zip(claims, await self._directory.claim(claims), strict=True):
            try:
                stands = self._expect_life(claim, standing)
                if claim.entries or stands.strays:  # few buckets have any where a silo starts
                    await self._heed_rows(stands, served[claim.bucket])
                self._on_claimed(claim, stands)
                del due[claim.bucket]
            except DirectoryUnavailable as error:
                _tell_put_off(error)

    async def _served(self, buckets: Mapping[int, str]) -> dict[int, list[Entry]]:
        """What stands in these buckets for all that is known here."""
        served: defaultdict[int, list[Entry]] = defaultdict(list)
        for number, entry in enumerate(self._catalog.entries() if buckets else ()):
            bucket = bucket_of(str(entry.grain))
            if bucket in buckets:
                served[bucket].append(entry)
            if number % COLLECTED_AT_ONCE == COLLECTED_AT_ONCE - 1:
                await asyncio.sleep(0)
        return served

    async def _claim_in_parts(self, bucket: int, life: str, entries: Sequence[Entry]) -> None:
        """A bucket with many rows; should its life end meanwhile, all of it is claimed once more, later."""
        for start in range(0, len(entries), CLAIM_ROWS_MAX):
            part = entries[start : start + CLAIM_ROWS_MAX]
            claim = self._claim_of(bucket, life, part, whole=start + CLAIM_ROWS_MAX >= len(entries))
            (standing,) = await self._directory.claim([claim])
            stands = self._expect_life(claim, standing)
            await self._heed_rows(stands, part)
            self._on_claimed(claim, stands)

    def _claim_of(self, bucket: int, life: str, entries: Sequence[Entry], *, whole: bool = True) -> Claim:
        return Claim(
            bucket,
            self._me,
            tuple(entries),
            life,
            new_life=self._new_life(),
            whole=whole,
            sweeps=whole and bool(self._lives.life(bucket)),  # rows that are over: a newcomer has none
            floor=self._lives.floor(bucket),
        )

    @staticmethod
    def _expect_life(claim: Claim, standing: Standing | None) -> Standing:
        """The answer to a claim, if it is of the life that was claimed.

        Raises:
            DirectoryUnavailable: it is to be claimed once more.
        """
        if standing is None:
            raise DirectoryUnavailable(f"bucket {claim.bucket} could not be claimed")
        if standing.life != claim.life:
            raise DirectoryUnavailable(f"bucket {claim.bucket} has begun another life while it was claimed")
        return standing

    async def _heed_rows(self, standing: Standing, entries: Sequence[Entry]) -> None:
        """What follows from the rows that stand where these were claimed, and from others that name this silo.

        Raises:
            DirectoryUnavailable: it is to be claimed once more.
        """
        for entry, stands in zip(entries, standing.entries, strict=True):
            if stands is not None and stands != entry:
                self._catalog.outdone(entry, stands)
            elif not self._catalog.is_served(entry):
                await self._registrar.unregister(entry)  # it has ended since, and its row was written again
        for entry in standing.strays:
            if not self._catalog.is_given_back(entry) and not self._catalog.is_served(entry):
                await self._registrar.unregister(entry)

    def _on_claimed(self, claim: Claim, standing: Standing) -> None:
        before = self._lives.life(claim.bucket)
        if before and before != standing.life:
            self._cache.clear()  # its floors keep out rows that are of before and true again
        if claim.whole:
            self._lives.claimed(claim.bucket, standing.life, is_settled=standing.is_settled)
            if len(standing.strays) == STRAYS_MAX:
                self._lives.doubt([claim.bucket])  # there may be more

    def _rounds(self, lives: Mapping[int, str], served: Mapping[int, Sequence[Entry]]) -> Iterator[list[Claim]]:
        """The claims of buckets with few rows, as many at a time as may go out at once."""
        claims: list[Claim] = []
        rows = 0
        for bucket, life in lives.items():
            entries = served.get(bucket, ())
            if len(entries) > CLAIM_ROWS_MAX:
                continue
            if rows + len(entries) > ROUND_ROWS_MAX:
                yield claims
                claims, rows = [], 0
            claims.append(self._claim_of(bucket, life, entries))
            rows += len(entries)
        if claims:
            yield claims

    # ----------------------------------------------------------------------------------------------------------- others

    async def _look(self, part: _Part, buckets: Collection[int]) -> None:
        """See whether the others have claimed, now that these live; and whether a life has ended unnoticed."""
        lives = self._lives
        unsettled = lives.unsettled()
        here = frozenset(buckets) if unsettled else frozenset[int]()
        waiting = {bucket: life for bucket, life in unsettled if bucket in here}
        members: tuple[SiloAddress, ...] = ()
        if waiting:
            # Read after the claim: whoever has registered anything in a life before had joined by then.
            view = await self._membership.refresh()
            if not view.is_recovering:
                members = tuple(row.silo for row in view.living())
            self._tell(part, waiting, view)
        asked = [Inquiry(bucket, life, members) for bucket, life in waiting.items()]
        turn = range(part.turn, DIRECTORY_BUCKETS, self._turns)
        asked += [
            Inquiry(bucket)
            for bucket in turn
            if self._directory.part_of(bucket) == part.name and bucket not in waiting and lives.is_known(bucket)
        ]
        part.turn = (part.turn + 1) % self._turns
        for inquiry, standing in zip(asked, await self._directory.inquire(asked), strict=True):
            if standing is not None:
                lives.seen(inquiry.bucket, standing.life, is_settled=standing.is_settled)
        if lives.all_settled and self._confirmed != self._view.table.run:
            self._confirm()

    def _tell(self, part: _Part, waiting: Mapping[int, str], view: View) -> None:
        """Tell the others, once, of lives in which they may not have claimed: else they may look much later."""
        news = {bucket: life for bucket, life in waiting.items() if part.told.get(bucket) != life}
        if news:
            part.told.update(news)
            for row in view.others(self._me):
                self._links.to(row.silo).send(Unsettled(view.table.run, news))

    def _confirm(self) -> None:
        """A silo that came back without the right goes on with what is its own: it claims once more, now that all
        others have, since who took over its grains may have claimed them after it did."""
        lives = tuple(self._lives.life(bucket) for bucket in self._lives.known())
        if lives == self._claimed_in:
            self._confirmed = self._view.table.run
            self._membership.confirm(self._view)
        else:
            self._claimed_in = lives
            self._lives.doubt()


async def _until(work: asyncio.Event, pause_s: float) -> None:
    """Wait until there is work, or it is time to look."""
    try:
        async with asyncio.timeout(pause_s):
            await work.wait()
    except TimeoutError:
        pass


@contextmanager
def _put_off() -> Generator[None]:
    """What fails here because the directory cannot be asked is done again later; the rest goes on."""
    try:
        yield
    except DirectoryUnavailable as error:
        _tell_put_off(error)


def _tell_put_off(error: DirectoryUnavailable) -> None:
    log.debug("reassertion.put_off", why=str(error))
