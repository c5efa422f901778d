"""The harness of the benchmarks: which rows run, what their figures mean, and how they are judged."""

from __future__ import annotations

import asyncio
import math

import pytest

from benchmarks.harness import Bar, Measured, Row, Rows, described, judge
from benchmarks.meter import Sample, Tally, Work, closed_loop, percentile, sample
from benchmarks.stage import Stage


async def _nothing(_stage: Stage) -> Work:
    async def work(seconds: float) -> Tally:
        return Tally([], seconds)

    return work


def rows() -> Rows:
    made = Rows()
    made.add("echo.1", "the floor", ["bench"], _nothing)
    made.add("remote.1", "one", ["bench"], _nothing, beside="echo.1")
    made.add("remote.16", "many", ["bench"], _nothing)
    return made


def measured(name: str, *per_s: float, beside: str | None = None) -> Measured:
    samples = [Sample(10, each, 1e6 / each, 2e6 / each, 1.0, 0.0) for each in per_s]
    return Measured(Row(name, "", ("bench",), _nothing, beside, "call"), samples)


def test_a_chosen_row_brings_the_one_that_it_is_compared_with() -> None:
    assert [row.name for row in rows().chosen(["remote.1"])] == ["echo.1", "remote.1"]
    assert [row.name for row in rows().chosen(["remote"])] == ["echo.1", "remote.1", "remote.16"]
    assert len(rows().chosen([])) == 3


def test_a_name_that_no_row_has_is_refused_and_one_is_never_taken_twice() -> None:
    with pytest.raises(ValueError, match=r"there are echo\.1, remote\.1, remote\.16"):
        rows().chosen(["client"])
    with pytest.raises(ValueError, match="two rows"):
        rows().add("echo.1", "again", ["bench"], _nothing)


def test_figures_are_medians_and_ratios_are_taken_within_each_round() -> None:
    echo = measured("echo.1", 1000.0, 100.0, 500.0)
    remote = measured("remote.1", 500.0, 50.0, 100.0, beside="echo.1")
    assert echo.median.per_s == 500.0
    assert echo.median.count == 30
    assert remote.times(echo, "per_s") == 0.5
    assert remote.times(echo, "p50_us") == 2.0


@pytest.mark.parametrize(
    ("bar", "slack", "passes"),
    [
        (Bar("remote.1", "per_s", "least", 0.5, beside="echo.1"), 1.0, True),
        (Bar("remote.1", "per_s", "least", 0.6, beside="echo.1"), 1.0, False),
        (Bar("remote.1", "per_s", "least", 0.6, beside="echo.1"), 2.0, True),
        (Bar("remote.1", "p50_us", "most", 2.0, beside="echo.1"), 1.0, True),
        (Bar("remote.1", "p50_us", "most", 1.6, beside="echo.1"), 1.0, False),
        (Bar("remote.1", "p50_us", "most", 1.6, beside="echo.1"), 2.0, True),
    ],
)
def test_a_row_is_judged_against_the_one_beside_it(bar: Bar, slack: float, passes: bool) -> None:
    echo, remote = measured("echo.1", 1000.0), measured("remote.1", 500.0, beside="echo.1")
    (judgement,) = judge([bar], {"echo.1": echo, "remote.1": remote}, slack)
    assert judgement.passes is passes
    assert "remote.1" in str(judgement)
    assert ("FALLS SHORT" in str(judgement)) is not passes


def test_a_row_that_could_not_be_measured_passes_no_bar_and_one_that_was_not_chosen_has_none() -> None:
    echo, remote = measured("echo.1", 1000.0), measured("remote.1", beside="echo.1")
    bar = Bar("remote.1", "per_s", "least", 0.1, beside="echo.1")
    (judgement,) = judge([bar], {"echo.1": echo, "remote.1": remote}, 1.0)
    assert not judgement.passes
    assert judge([bar], {"echo.1": echo}, 1.0) == []


async def test_a_closed_loop_makes_each_call_again_once_it_is_answered() -> None:
    running, most = 0, 0

    async def call() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    tally = await closed_loop([call] * 8, 0.01)
    assert most == 8
    assert len(tally.latencies_ns) >= 8
    assert tally.wall_s >= 0.01


async def test_a_sample_counts_the_calls_and_their_cpu_time() -> None:
    async def work(_seconds: float) -> Tally:
        return Tally([3000, 1000, 2000, 4000], 2.0)

    one = await sample(work, 0.0, [], [])
    assert (one.count, one.per_s, one.p50_us, one.p99_us, one.cpu_s) == (4, 2.0, 2.0, 4.0, 0.0)


def test_percentiles_go_by_nearest_rank() -> None:
    assert percentile([1, 2, 3, 4], 0.5) == 2
    assert percentile([7], 0.99) == 7
    assert math.isnan(percentile([], 0.5))


def test_of_several_errors_the_first_is_named() -> None:
    inner = ExceptionGroup("unhandled errors", [ValueError("that one"), TypeError("another")])
    assert described(ExceptionGroup("outer", [inner])) == "ValueError: that one"
