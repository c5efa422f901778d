"""The short form of the chaos bench: every kind of fault within seconds, and every promise kept."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from silo.application import Loop, run_on
from tests.chaos.bench import Bench, Plan
from tests.chaos.schedule import OF_WIPES, Act
from tests.chaos.verdict import Verdict

# This seed has every act of a short run, and a freeze of more than three leases.
PLAN = Plan(seconds=7.0, seed=216, lease_s=1.0, grains=30, call_rate=30.0, move_rate=15.0, warm_s=0.5)


def test_no_overlap_loss_repetition_or_leak_under_kills_freezes_restarts_moves_and_a_network_that_fails(
    tmp_path: Path,
) -> None:
    verdicts: list[Verdict] = []

    async def play() -> int:
        verdicts.append(
            await Bench(PLAN, tmp_path, lambda what: print(f"{time.monotonic():.1f} {what}", file=sys.stderr)).run()
        )
        return 0

    run_on(Loop.ASYNCIO, play())
    (verdict,) = verdicts
    print(verdict.counts)
    assert verdict.violations == []
    assert set(verdict.counts["acts"]) == set(Act) - {Act.ROLL, Act.REDIS_RESTART, *OF_WIPES}
    assert verdict.counts["faults"] >= 10
    assert verdict.counts["migrations"] > 20
    assert verdict.counts["calls"]["value"] > 200
