"""The load: one caller for each grain, which keeps account of what became of its calls."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from samples.rolling.ledger import Finding, Ledger
from samples.rolling.meter import Meter, Reading
from silo import Client, NotExecuted, OutcomeUnknown

CALLS_END_WITHIN_S = 35.0
"""How long the last calls may take to end: their deadline of 30 s and some grace."""
ROUND_TIMEOUT_S = 60.0
"""How long it may take until every grain has answered."""
PROBLEMS_KEPT_MAX = 20


@dataclass
class Tally:
    """What the callers have seen so far."""

    made: int = 0
    answered: int = 0
    lost: int = 0
    """Calls that failed, or left no trace, where no crash excuses it."""
    repeated: int = 0
    """Calls that ran twice."""
    unknown: int = 0
    """Calls whose outcome nobody can know since a silo was killed, and which say so."""
    refused: int = 0
    """Calls that did not run since a silo was killed, and which say so."""
    moves: int = 0
    """How often grains have moved, by their own account."""
    slowest_s: float = 0.0
    """The longest call since whoever measures a part of the run set this to 0."""
    where: list[str] = field(default_factory=list[str])
    """The silo of each grain, as its last answer or its last move said."""
    problems: list[str] = field(default_factory=list[str])

    def note(self, problem: str) -> None:
        if len(self.problems) < PROBLEMS_KEPT_MAX:
            self.problems.append(problem)

    @property
    def spread(self) -> dict[str, int]:
        """How many grains each silo has."""
        return dict(sorted(Counter(filter(None, self.where)).items()))


@dataclass
class Crash:
    """A silo that was killed, and how soon its grains answered again."""

    silo: str
    at: float
    hosted: set[int]
    first_answer_s: dict[int, float] = field(default_factory=dict[int, float])
    over: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once every grain that was there has answered from elsewhere."""

    def revived(self, index: int, silo: str) -> bool:
        """Whether this answer is the first one that a grain which was there gives from another silo."""
        first = index in self.hosted and silo != self.silo and index not in self.first_answer_s
        if first:
            self.first_answer_s[index] = time.monotonic() - self.at
        if len(self.first_answer_s) == len(self.hosted):
            self.over.set()
        return first


@dataclass
class _Round:
    """How many answers of which grain it takes until the round is over."""

    missing: dict[int, int]
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def answered(self, index: int) -> None:
        left = self.missing.get(index, 0) - 1
        if left > 0:
            self.missing[index] = left
            return
        self.missing.pop(index, None)
        if not self.missing:
            self.over.set()


class Load:
    """Calls every grain again and again, one call at a time each.

    Args:
        calls_per_s: of all callers together; fewer where answers take longer than a caller's turn comes round.
    """

    def __init__(
        self, client: Client, tally: Tally, *, grains: int, calls_per_s: float, rng: random.Random | None = None
    ) -> None:
        self.meters = [client.grain(Meter, str(number)) for number in range(grains)]
        self.tally = tally
        tally.where = [""] * grains
        self.crash: Crash | None = None
        self._every_s = grains / calls_per_s
        self._rng = rng or random.Random(0)
        self._rounds: list[_Round] = []
        self._out = 0
        self._running = True

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Call for as long as the block runs, then wait until every call has ended; one that does not is lost."""
        callers = asyncio.create_task(self._run(), name="callers")
        try:
            yield
        finally:
            self._running = False
            try:
                async with asyncio.timeout(CALLS_END_WITHIN_S):
                    await callers
            except TimeoutError:
                self.tally.lost += self._out
                self.tally.note(f"{self._out} calls have not ended {CALLS_END_WITHIN_S:.0f} s after the last was made")

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as callers:
            for index in range(len(self.meters)):
                callers.create_task(self._call_again_and_again(index))

    async def round(self) -> None:
        """Wait until every grain has answered a call made after now; raises RuntimeError where one does not."""
        # The next answer may be to a call that is out already; the one after it is not.
        this = _Round(dict.fromkeys(range(len(self.meters)), 2))
        self._rounds.append(this)
        try:
            async with asyncio.timeout(ROUND_TIMEOUT_S):
                await this.over.wait()
        except TimeoutError:
            silent = ", ".join(str(index) for index in sorted(this.missing)[:PROBLEMS_KEPT_MAX])
            problems = "; ".join(self.tally.problems) or "no call has failed"
            raise RuntimeError(f"meters {silent} did not answer within {ROUND_TIMEOUT_S:.0f} s ({problems})") from None
        finally:
            self._rounds.remove(this)

    def moved(self, key: str, silo: str) -> None:
        """A move of this grain that was ordered has been made."""
        self.tally.where[int(key)] = silo

    def crashes(self, silo: str) -> Crash:
        """This silo is about to be killed. From now on calls may fail, and what it hosts may begin again."""
        hosted = {index for index, where in enumerate(self.tally.where) if where == silo}
        self.crash = Crash(silo, time.monotonic(), hosted)
        return self.crash

    async def _call_again_and_again(self, index: int) -> None:
        ledger = Ledger()
        number = 0
        due = time.monotonic() + self._rng.uniform(0, self._every_s)
        while self._running:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            due = max(due + self._every_s, time.monotonic())
            number += 1
            await self._call(index, number, ledger)

    async def _call(self, index: int, number: int, ledger: Ledger) -> None:
        tally = self.tally
        tally.made += 1
        self._out += 1
        began = time.monotonic()
        try:
            reading = await self.meters[index].read(number)
        except OutcomeUnknown as error:
            ledger.unknown(number)
            if self._excused(index, number, error):
                tally.unknown += 1
        except NotExecuted as error:
            if self._excused(index, number, error):
                tally.refused += 1
        else:
            tally.answered += 1
            for each in self._rounds:
                each.answered(index)
            self._judge(index, number, reading, ledger)
        finally:
            self._out -= 1
            tally.slowest_s = max(tally.slowest_s, time.monotonic() - began)

    def _excused(self, index: int, number: int, error: Exception) -> bool:
        """Whether a crash is why the call failed."""
        if self.crash is None:
            self.tally.lost += 1
            self.tally.note(f"meter {index}, call {number}: {type(error).__name__}: {error}")
        return self.crash is not None

    def _judge(self, index: int, number: int, reading: Reading, ledger: Ledger) -> None:
        tally, crash = self.tally, self.crash
        tally.where[index] = reading.silo
        revived = crash is not None and crash.revived(index, reading.silo)
        last, turns, moves = ledger.last, ledger.turns, ledger.moves
        finding = ledger.answered(number, reading, may_begin_again=revived)
        tally.moves += reading.moves - (0 if finding is Finding.BEGAN_AGAIN else moves)
        if finding in (Finding.LOST, Finding.REPEATED):
            tally.lost += finding is Finding.LOST
            tally.repeated += finding is Finding.REPEATED
            tally.note(
                f"meter {index}, call {number}: {finding.value}; the grain says {reading},"
                f" its caller knew of call {last} as turn {turns}"
            )
