"""The short form of the chaos bench: every kind of fault within seconds, and every promise kept."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from silo.application import Loop, run_on
from tests.chaos.bench import Bench, Plan
from tests.chaos.network import LANE, STREAM
from tests.chaos.schedule import OF_WIPES, REDIS, Act, Beat
from tests.chaos.verdict import Verdict

PLAN = Plan(seconds=7.0, seed=1, lease_s=1.0, grains=30, call_rate=30.0, move_rate=15.0, warm_s=0.5)
STORY = (
    Beat(0.0, Act.CUT, "caller-1", "silo-3", 0.6),
    Beat(0.3, Act.REDIS_PAUSE, REDIS, lasts_s=0.3),
    Beat(0.5, Act.TERMINATE, "silo-2"),
    Beat(1.5, Act.LOSE_ANSWER, "silo-3", "silo-1"),
    Beat(2.5, Act.DELAY, "silo-1", REDIS, 0.8, 0.1),
    Beat(3.0, Act.KILL, "silo-3", lasts_s=0.5),
    Beat(4.2, Act.REDIS_CRASH, REDIS, lasts_s=0.8),
    Beat(4.5, Act.RESET, "caller-2", "silo-1"),
    Beat(5.0, Act.HOLD, "silo-2", "silo-1", 0.3),
    Beat(5.5, Act.FREEZE, "silo-1", lasts_s=3.2),
    Beat(6.0, Act.REDIS_RESTART, REDIS),
    Beat(6.5, Act.CUT, REDIS, "silo-2", 0.6),
)
"""Every act but a roll, which takes too long here; and a freeze of more than three leases."""


@pytest.mark.usefixtures("warm_processes")
def test_no_overlap_loss_repetition_or_leak_under_kills_freezes_restarts_moves_and_a_network_that_fails(
    tmp_path: Path,
) -> None:
    verdicts: list[Verdict] = []

    async def play() -> int:
        bench = Bench(PLAN, tmp_path, lambda what: print(what, file=sys.stderr), STORY)
        verdicts.append(await bench.run())
        return 0

    run_on(Loop.ASYNCIO, play())
    (verdict,) = verdicts
    print(verdict.counts)
    assert verdict.violations == []
    assert set(verdict.counts["acts"]) == set(Act) - {Act.ROLL, *OF_WIPES}
    assert verdict.counts["faults"] == len(STORY) - 1
    assert verdict.counts["migrations"] > 20
    assert verdict.counts["calls"]["value"] > 200
    assert verdict.counts["pieces_carried"][STREAM] > 200
    assert verdict.counts["pieces_carried"][LANE] > 50, "the lane is proxied, too"
