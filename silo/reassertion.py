"""After the directory has lost rows, each silo says again what it serves: paced, and by compare-and-set.

What may be registered meanwhile `silo.directory.settling` decides for each bucket; here is its shell. Nobody is
deactivated for a row that is missing: it is written again, epoch and all. Only a row of a higher epoch says that a
grain is served elsewhere by now.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

from silo.activation.catalog import Catalog
from silo.directory.addresses import Entry, SiloAddress
from silo.directory.cache import DirectoryCache
from silo.directory.contract import STRAYS_MAX, Claim, GrainDirectory, Inquiry, Standing
from silo.directory.directory_scripts import DIRECTORY_BUCKETS, bucket_of
from silo.directory.errors import DirectoryUnavailable, MembershipUnavailable, NotExecuted
from silo.directory.lives import Lives
from silo.directory.membership import EMPTY_VIEW, Membership, View
from silo.directory.registrar import Registrar
from silo.logs import get_logger

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


class Reassertion:
    """Claims what one silo serves whenever a bucket has begun another life, and finds out when that is settled.

    Args:
        new_life: a name that no life has had.
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
        new_life: Callable[[], str],
    ) -> None:
        self._me = me
        self._directory = directory
        self._registrar = registrar
        self._lives = lives
        self._membership = membership
        self._catalog = catalog
        self._cache = cache
        self._new_life = new_life
        self._view = EMPTY_VIEW
        self._pause_s = ASK_PAUSE_FIRST_S
        self._turn, self._turns = 0, DIRECTORY_BUCKETS // LOOKED_AT_ONCE
        self._confirmed = ""
        """The run of the table for which the directory has confirmed what is served here."""
        self._claimed_in: tuple[str, ...] = ()
        """The lives that were settled when it was last claimed for that confirmation."""

    def on_view(self, view: View) -> None:
        """Another table, or another run of its store: what was written to that store last may be lost as well."""
        before, self._view = self._view, view
        if not before.table.run:
            self._confirmed = view.table.run  # a newcomer serves nothing
        elif before.table.run != view.table.run:
            self._lives.doubt(is_over=True)
        self._pause_s = ASK_PAUSE_FIRST_S
        if not self._lives.all_settled:
            self._lives.work.set()

    async def run(self) -> None:
        """Say at once what is served here, so that buckets which are new are settled before anybody wants them."""
        lives = self._lives
        lives.doubt()
        while True:
            lives.work.clear()
            try:
                await self._claim()
                await self._look()
                pause_s = LOOK_EVERY_S if lives.all_settled else self._next_pause_s()
            except (DirectoryUnavailable, MembershipUnavailable) as error:
                log.debug("reassertion.put_off", why=str(error))
                pause_s = self._next_pause_s()
            except NotExecuted as error:  # such as a row of another release
                log.warning("reassertion.failed", why=str(error))
                pause_s = ASK_PAUSE_LAST_S
            except Exception:  # unforeseen, and no reason to leave what is served here unsaid for ever
                log.exception("reassertion.failed")
                pause_s = ASK_PAUSE_LAST_S
            await self._until_work(pause_s)

    def _next_pause_s(self) -> float:
        pause_s, self._pause_s = self._pause_s, min(self._pause_s * 2, ASK_PAUSE_LAST_S)
        return pause_s

    async def _until_work(self, pause_s: float) -> None:
        try:
            async with asyncio.timeout(pause_s):
                await self._lives.work.wait()
        except TimeoutError:
            pass  # time to look

    # ----------------------------------------------------------------------------------------------------------- claims

    async def _claim(self) -> None:
        """Claim what is to be claimed, a round after the other."""
        due = self._lives.take_claims()
        try:
            served = await self._served(due)
            for claims in self._rounds(due, served):
                standings = await self._directory.claim(claims)
                # That all is said counts in the life that was answered: a claim that comes late, when this silo has
                # long registered more, must not count for one that has begun since.
                last = [
                    Claim(claim.bucket, self._me, life=standing.life)
                    for claim, standing in zip(claims, standings, strict=True)
                ]
                said = await self._directory.claim(last)
                for claim, standing, then in zip(claims, standings, said, strict=True):
                    await self._on_standing(claim, standing, served[claim.bucket])
                    self._claimed(claim.bucket, standing, standing.life == then.life and then.is_settled)
                    del due[claim.bucket]
            for bucket in list(due):
                await self._claim_in_parts(bucket, due[bucket], served[bucket])
                del due[bucket]
        finally:
            self._lives.unclaimed(due.items())

    def _sweeps(self, bucket: int) -> bool:
        """Whether rows of this silo may stand there that are over: a newcomer has none."""
        return bool(self._lives.life(bucket))

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

    async def _claim_in_parts(self, bucket: int, over: str, entries: Sequence[Entry]) -> None:
        """A bucket with many rows; should its life end meanwhile, all of it is claimed once more, later."""
        life, new_life = "", self._new_life()
        for start in range(0, len(entries), CLAIM_ROWS_MAX):
            part = tuple(entries[start : start + CLAIM_ROWS_MAX])
            whole = start + CLAIM_ROWS_MAX >= len(entries)
            claim = Claim(
                bucket,
                self._me,
                part,
                life,
                over,
                new_life,
                whole,
                sweeps=whole and self._sweeps(bucket),
                floor=self._lives.floor(bucket),
            )
            (standing,) = await self._directory.claim([claim])
            if len(standing.entries) != len(part):
                raise DirectoryUnavailable(f"bucket {bucket} has begun another life while it was claimed")
            life, over = standing.life, ""
            await self._on_standing(claim, standing, part)
            if whole:
                self._claimed(bucket, standing, standing.is_settled)

    async def _on_standing(self, claim: Claim, standing: Standing, entries: Sequence[Entry]) -> None:
        for entry, stands in zip(entries, standing.entries, strict=True):
            if stands is not None and stands != entry:
                self._catalog.outdone(entry, stands)
            elif not self._catalog.is_served(entry):
                await self._registrar.unregister(entry)  # it has ended since, and its row was written again
        for entry in standing.strays:
            if not self._catalog.is_given_back(entry) and not self._catalog.is_served(entry):
                await self._registrar.unregister(entry)
        if self._sweeps(claim.bucket) and standing.life != self._lives.life(claim.bucket):
            self._cache.clear()  # its floors keep out rows that are of before and true again

    def _claimed(self, bucket: int, standing: Standing, is_settled: bool) -> None:
        self._lives.claimed(bucket, standing.life, is_settled=is_settled)
        if len(standing.strays) == STRAYS_MAX:
            self._lives.doubt([bucket])  # there may be more

    def _rounds(self, due: Mapping[int, str], served: Mapping[int, Sequence[Entry]]) -> Iterator[list[Claim]]:
        """The claims of buckets with few rows, as many at a time as may go out at once."""
        claims: list[Claim] = []
        rows = 0
        for bucket, over in list(due.items()):
            entries = tuple(served.get(bucket, ()))
            if len(entries) > CLAIM_ROWS_MAX:
                continue
            if rows + len(entries) > ROUND_ROWS_MAX:
                yield claims
                claims, rows = [], 0
            claims.append(
                Claim(
                    bucket,
                    self._me,
                    entries,
                    "",
                    over,
                    self._new_life(),
                    whole=False,
                    sweeps=self._sweeps(bucket),
                    floor=self._lives.floor(bucket),
                )
            )
            rows += len(entries)
        if claims:
            yield claims

    # ----------------------------------------------------------------------------------------------------------- others

    async def _look(self) -> None:
        """See whether the others have claimed, now that these live; and whether a life has ended unnoticed."""
        lives = self._lives
        waiting = dict(lives.unsettled())
        members: tuple[SiloAddress, ...] = ()
        if waiting:
            # Read after the claim: whoever has registered anything in a life before had joined by then.
            view = await self._membership.refresh()
            if not view.is_recovering:
                members = tuple(row.silo for row in view.living())
        asked = [Inquiry(bucket, life, members) for bucket, life in waiting.items()]
        known = [bucket for bucket in lives.known() if bucket not in waiting]
        asked += [Inquiry(bucket) for bucket in known if bucket % self._turns == self._turn]
        self._turn = (self._turn + 1) % self._turns
        for inquiry, standing in zip(asked, await self._directory.inquire(asked), strict=True):
            lives.seen(inquiry.bucket, standing.life, is_settled=standing.is_settled)
        if lives.all_settled and self._confirmed != self._view.table.run:
            self._confirm()

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
