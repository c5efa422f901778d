"""`python -m benchmarks` runs, measures every row, and is not far off its bars."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import all_rows, main
from benchmarks.bars import BARS
from benchmarks.memory import measure

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 90.0


async def bench(*arguments: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "benchmarks",
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        async with asyncio.timeout(TIMEOUT_S):
            out, complaints = await process.communicate()
    except BaseException:
        process.kill()
        await process.wait()
        raise
    assert process.returncode is not None
    return process.returncode, out.decode(), complaints.decode()


@pytest.mark.process
@pytest.mark.slow
async def test_a_quick_run_measures_every_row_and_judges_it() -> None:
    """By which bars it passes is for a machine that does nothing else: `make bench-check`."""
    code, out, complaints = await bench("--quick", "--json")

    assert code == 0, complaints
    run: dict[str, Any] = json.loads(out)
    assert run["v"] == 1
    assert [row["name"] for row in run["rows"]] == [row.name for row in all_rows().chosen([], quick=True)]
    for row in run["rows"]:
        assert row["error"] is None
        assert row["count"] > 0
        assert row["per_s"] > 0
        assert 0 < row["p50_us"] <= row["p99_us"]
        assert row["processes"]
        if sys.platform == "linux":
            assert row["cpu_s"] > 0
    assert {bar["row"] for bar in run["bars"]} == {bar.row for bar in BARS} & {row["name"] for row in run["rows"]}
    rows = {row["name"]: row for row in run["rows"]}
    assert rows["local.1"]["p50_us"] < rows["remote.1"]["p50_us"]


@pytest.mark.process
async def test_the_memory_of_idle_grains_is_measured_by_what_the_silo_has_grown() -> None:
    """How much that is, so few grains in a process that has much to reuse cannot tell."""
    found = await measure(500)
    assert found.grains == 500
    assert abs(found.bytes_per_grain) < 100_000


def test_it_names_the_rows_it_has_and_refuses_one_that_it_has_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    shown = capsys.readouterr().out
    assert "remote.512" in shown
    assert "drain.50k" in shown

    with pytest.raises(SystemExit, match="2"):
        main(["--only", "remot-control"])
    assert "remote.512" in capsys.readouterr().err
