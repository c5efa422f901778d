"""The load of the demonstration: many callers, each counting what became of its calls."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from samples.demo.grains import Meter
from silo import Client, NotExecuted, OutcomeUnknown


@dataclass
class Tally:
    """What the callers have seen so far."""

    made: int = 0
    answered: int = 0
    lost: int = 0
    """Calls that failed or left no trace although nothing was killed."""
    repeated: int = 0
    """Calls that were run twice."""
    unknown: int = 0
    """Calls whose outcome nobody can know, since the silo that had them was killed."""
    refused: int = 0
    """Calls that were not executed, and say so."""
    fresh: int = 0
    """Grains that began again, since their silo was killed."""
    pause_s: float = 0.0
    """The longest that one call took before the kill."""
    problems: list[str] = field(default_factory=list[str])

    def note(self, problem: str) -> None:
        if len(self.problems) < 20:
            self.problems.append(problem)


@dataclass
class Kill:
    """When a silo was killed, and how soon its grains answered again."""

    silo: str
    at: float
    first_success_s: dict[str, float] = field(default_factory=dict[str, float])


class Load:
    """Calls every grain again and again, one call at a time each."""

    def __init__(self, client: Client, grains: int) -> None:
        self.meters = [client.grain(Meter, f"meter-{number}") for number in range(grains)]
        self.where = [""] * grains
        self.tally = Tally()
        self.kill: Kill | None = None
        self._running = True
        self._hosted_by_the_dead: set[int] = set()

    def killed(self, silo: str) -> None:
        """From now on calls to grains of this silo may fail, and these grains begin again."""
        self.kill = Kill(silo, time.monotonic())
        self._hosted_by_the_dead = {number for number, where in enumerate(self.where) if where == silo}

    def stop(self) -> None:
        self._running = False

    @property
    def recovered(self) -> bool:
        """Whether every grain of the silo that was killed has answered again."""
        return self.kill is not None and len(self.kill.first_success_s) == len(self._hosted_by_the_dead)

    async def run(self) -> None:
        await asyncio.gather(*(self._call(number) for number in range(len(self.meters))))

    async def _call(self, index: int) -> None:
        meter, tally = self.meters[index], self.tally
        sent = last = 0
        may_be_run: set[int] = set()
        while self._running:
            sent += 1
            tally.made += 1
            began = time.monotonic()
            try:
                reading = await meter.read(sent)
            except OutcomeUnknown as error:
                self._failed(index, f"unknown: {error}")
                may_be_run.add(sent)
                continue
            except NotExecuted as error:
                if self.kill is None:
                    tally.lost += 1
                    tally.note(f"refused: {error}")
                tally.refused += 1
                continue
            tally.answered += 1
            ended = time.monotonic()
            self.where[index] = reading.silo
            self._account(index, reading.before, last, may_be_run, sent)
            last = sent
            may_be_run.clear()
            if self.kill is None:
                tally.pause_s = max(tally.pause_s, ended - began)
            elif index in self._hosted_by_the_dead:
                self.kill.first_success_s.setdefault(meter.__class__.__name__ + str(index), ended - self.kill.at)

    def _failed(self, index: int, problem: str) -> None:
        if self.kill is None:
            self.tally.lost += 1
            self.tally.note(f"meter-{index}: {problem}")
        self.tally.unknown += 1

    def _account(self, index: int, before: int, last: int, may_be_run: set[int], sent: int) -> None:
        """Hold what the grain remembers against what its caller knows."""
        tally = self.tally
        if before == last or before in may_be_run:
            return
        if before == 0 and self.kill is not None:
            tally.fresh += 1
        elif before >= sent:
            tally.repeated += 1
            tally.note(f"meter-{index}: call {sent} ran although {before} had run")
        else:
            tally.lost += 1
            tally.note(f"meter-{index}: remembers call {before}, its caller had an answer to {last}")
