"""SIGKILL of the source or of the target at every step of a move, before and after each write. R-430."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

import pytest

from silo.client import Client
from silo.directory.errors import NotExecuted, OutcomeUnknown
from silo.reference import with_hint, with_timeout
from silo.testing.witness import What
from tests.process.grains import OFFER_TIMEOUT_S, Victim
from tests.process.stage import LONG, Stage, ended_with, in_ms
from tests.process.witnessed import WitnessedCaller

SOURCE, TARGET = "silo-1", "silo-2"
POINTS = {
    "on_migrating": SOURCE,
    "on_deactivate": TARGET,
    "on_dehydrate": SOURCE,
    "on_rehydrate": TARGET,
    "on_activate": SOURCE,
    "first_turn": TARGET,
    "giving_back": SOURCE,
    "refused": SOURCE,
    "fenced": TARGET,
    "given_back": TARGET,
}
"""The points, and who dies there in the short form. In the long one each of the two does."""
CASES = [(point, who) for point in POINTS for who in (SOURCE, TARGET)] if LONG else list(POINTS.items())
CALLERS = 3
DEADLINE_S = 4.0
ANSWERS_WITHIN_S = 3.0
"""After the death, which silos of one machine prove to each other at once."""


class Load:
    """Callers that call one grain without a break."""

    def __init__(self, stage: Stage, victim: Victim, name: str) -> None:
        self._stage = stage
        self._victim = with_timeout(victim, DEADLINE_S)
        self._name = name
        self._callers = [WitnessedCaller(stage.witness, f"{name}-{number}") for number in range(CALLERS)]
        self._stops = asyncio.Event()
        self.answered_at: dict[str, float] = {}

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for caller in self._callers:
                group.create_task(self._call(caller))

    async def _call(self, caller: WitnessedCaller) -> None:
        while not self._stops.is_set():
            target = f"victim/{self._name}"
            if await caller.call(self._victim.increment, target=target, deadline_s=DEADLINE_S) is not None:
                self.answered_at[caller.name] = self._stage.now()
            else:
                await asyncio.sleep(0.01)

    async def all_answered_after(self, moment: float) -> float:
        """Wait until every caller has had an answer later than that; how long after it that was."""
        async with asyncio.timeout(ANSWERS_WITHIN_S + DEADLINE_S):
            while len(self.answered_at) < CALLERS or min(self.answered_at.values()) <= moment:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.005)
        return self._stage.now() - moment

    def stop(self) -> None:
        self._stops.set()


async def kill_at(stage: Stage, client: Client, point: str, who: str) -> float:
    """Move a grain under load, with a death at that point; how long its callers waited for it to answer again."""
    key = f"{point}-{who}"
    victim = client.grain(Victim, key)
    row = await stage.row(who)
    process = stage.cluster[who]
    await with_hint(victim, SOURCE).arm(point, process.process.pid, str(row.silo), TARGET)
    load = Load(stage, victim, key)
    running = asyncio.create_task(load.run())
    try:
        await load.all_answered_after(stage.now())
        moving = asyncio.create_task(client.migrate(victim, to=TARGET))
        assert await ended_with(process, 20.0) == -signal.SIGKILL
        took_s = await load.all_answered_after(stage.now())
        (ended,) = await asyncio.gather(moving, return_exceptions=True)
        assert not isinstance(ended, BaseException) or isinstance(ended, (NotExecuted, OutcomeUnknown)), ended
    finally:
        load.stop()
        await running
    stage.healed()
    await stage.start(who)
    await stage.until(lambda view: {SOURCE, TARGET} <= {each.info.name for each in view.active()}, 10.0)
    return took_s


@pytest.mark.timeout(300)
async def test_R430_killing_source_or_target_at_any_step_loses_no_call_repeats_none_and_leaves_one_activation(
    make_stage: Callable[..., Stage],
) -> None:
    async with make_stage({"migration.offer_timeout_s": OFFER_TIMEOUT_S}) as stage:
        await stage.start(SOURCE, TARGET, "silo-3")
        async with stage.client(role="admin") as client:
            waited = {f"{point}, {who} dies": await kill_at(stage, client, point, who) for point, who in CASES}

        events = stage.assert_promises_kept(settle_s=DEADLINE_S)
        deaths = [event.because for event in events if event.what is What.FAULT]
        print(
            f"\n{len(deaths)} deaths in the middle of a move; callers waited {in_ms(list(waited.values()))}: {waited}"
        )
        assert deaths == [f"killed at {point}" for point, _ in CASES]
        assert max(waited.values()) < ANSWERS_WITHIN_S
