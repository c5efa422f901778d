"""One outage: the only silo is killed, and comes back after a while; who calls meanwhile is the difference."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field

from samples.local_cluster import LocalCluster
from samples.restart_under_traffic.counter import Counter
from silo import Client, SiloError, with_timeout

SILO = "silo-1"
RECOVERY_TIMEOUT_S = 30.0


class Case(enum.Enum):
    """Who calls while there is no silo: its name, and within what time of the silo's return the grain answers."""

    TRAFFIC = "traffic", "calls one after the other, with 8 s each", 1.0
    QUIET = "quiet", "nobody calls until the silo is back", 0.2
    SILENCE = "silence after traffic", "calls, and then silence until the silo is back", 0.2
    STORM = "storm", "a call every 10 ms", 1.0

    def __init__(self, title: str, what: str, within_s: float) -> None:
        self.title = title
        self.what = what
        self.within_s = within_s


@dataclass(frozen=True, slots=True)
class Moment:
    """What happened, and how long after the silo was killed; before it, the time is negative."""

    at_s: float
    what: str


@dataclass
class Outage:
    """What was seen of one outage."""

    case: Case
    tell: Callable[[Moment], None] = lambda moment: None
    moments: list[Moment] = field(default_factory=list[Moment])
    calls: int = 0
    failed: int = 0
    answered: int = 0
    recovered_s: float | None = None
    """From the silo's return to the first answer."""
    _began: float = field(default_factory=time.monotonic)
    _back: float | None = None
    _recovered: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_good(self) -> bool:
        """Whether the grain was back in time."""
        return self.recovered_s is not None and self.recovered_s <= self.case.within_s

    def note(self, what: str) -> None:
        """This happens now."""
        moment = Moment(round(time.monotonic() - self._began, 3), what)
        self.moments.append(moment)
        self.tell(moment)

    def killed(self) -> None:
        """The time of the outage begins."""
        self._began = time.monotonic()
        self.note(f"{SILO} is killed")

    def returned(self) -> None:
        """The silo serves again."""
        self._back = time.monotonic()
        self.note(f"{SILO} is ready again")

    async def call(self, counter: Counter, timeout_s: float) -> None:
        """Make one call, whatever becomes of it; the first of each kind is noted."""
        self.calls += 1
        try:
            await with_timeout(counter, timeout_s).count()
        except SiloError as error:
            self.failed += 1
            if self.failed == 1:
                self.note(f"the first call fails: {type(error).__name__}")
        else:
            self.answered += 1
            if self._back is not None and self.recovered_s is None:
                self.recovered_s = round(time.monotonic() - self._back, 3)
                self.note(f"the grain answers, {self.recovered_s * 1000:.0f} ms after that")
                self._recovered.set()

    async def recovered(self) -> None:
        """Wait until the grain has answered, or should have long ago."""
        with contextlib.suppress(TimeoutError):  # the verdict says so
            async with asyncio.timeout(RECOVERY_TIMEOUT_S):
                await self._recovered.wait()


async def play(cluster: LocalCluster, outage: Outage, seconds: float) -> None:
    """One outage of so many seconds, and what follows."""
    counter = _counter(cluster.client, outage.case)
    await counter.count()
    await cluster.silos[SILO].kill()
    outage.killed()
    async with contextlib.AsyncExitStack() as callers:
        await _let_call(callers, counter, outage, seconds)
        await cluster.silos.start(SILO)
        outage.returned()
        if outage.case in (Case.QUIET, Case.SILENCE):
            await outage.call(counter, RECOVERY_TIMEOUT_S)
        await outage.recovered()


def _counter(client: Client, case: Case) -> Counter:
    return client.grain(Counter, case.title)


async def _let_call(callers: contextlib.AsyncExitStack, counter: Counter, outage: Outage, seconds: float) -> None:
    """Have the callers of this case call, for the time of the outage and, in some cases, on until they are stopped."""
    match outage.case:
        case Case.TRAFFIC:
            await callers.enter_async_context(_calling(counter, outage, timeout_s=8.0))
            await asyncio.sleep(seconds)
        case Case.STORM:
            await callers.enter_async_context(_storming(counter, outage))
            await asyncio.sleep(seconds)
        case Case.SILENCE:
            async with _calling(counter, outage, timeout_s=0.5):
                await asyncio.sleep(seconds / 2)
            outage.note("the callers fall silent")
            await asyncio.sleep(seconds / 2)
        case Case.QUIET:
            await asyncio.sleep(seconds)


@contextlib.asynccontextmanager
async def _calling(counter: Counter, outage: Outage, *, timeout_s: float) -> AsyncGenerator[None]:
    """One call after the other, beside the block."""

    async def run() -> None:
        while True:
            await outage.call(counter, timeout_s)

    task = asyncio.create_task(run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


@contextlib.asynccontextmanager
async def _storming(counter: Counter, outage: Outage) -> AsyncGenerator[None]:
    """A call every 10 ms, whatever has become of those before, beside the block."""

    async def run() -> None:
        async with asyncio.TaskGroup() as calls:
            while True:
                calls.create_task(outage.call(counter, 8.0))
                await asyncio.sleep(0.01)

    task = asyncio.create_task(run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
