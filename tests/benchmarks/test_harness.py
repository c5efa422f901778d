"""The harness of the benchmarks: which rows run, what their figures mean, and how they are judged."""

from __future__ import annotations

import asyncio
import math
import sys

import pytest

from benchmarks.harness import Bar, Measured, Prepare, Row, Rows, Scene, described, judge, long_scene, measure
from benchmarks.meter import Sample, Spent, Tally, Work, closed_loop, percentile, sample
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
    """A row of that name, with a repetition for each of these rates."""
    samples = [Sample(10, each, 1e6 / each, 2e6 / each, 1.0, 0.0) for each in per_s]
    return Measured(Row(name, "", ("bench",), _nothing, beside, "call"), samples)


def test_a_chosen_row_brings_the_one_that_it_is_compared_with() -> None:
    assert [row.name for row in rows().chosen(["remote.1"])] == ["echo.1", "remote.1"]
    assert [row.name for row in rows().chosen(["remote"])] == ["echo.1", "remote.1", "remote.16"]
    assert len(rows().chosen([])) == 3


def test_what_a_row_is_compared_with_brings_what_that_is_compared_with() -> None:
    made = rows()
    made.add("checks", "of its calls", ["bench"], _nothing, beside="remote.1")
    assert [row.name for row in made.chosen(["checks"])] == ["echo.1", "remote.1", "checks"]


def test_rows_that_take_long_are_measured_where_they_are_asked_for() -> None:
    made = rows()
    made.add("apart", "another scene", ["bench"], _nothing, scene=Scene("apart"))
    made.add("drain", "long", ["bench"], _nothing, scene=long_scene("drain", migration__drain_timeout_s=9))
    assert [row.name for row in made.chosen([])] == ["echo.1", "remote.1", "remote.16", "apart"]
    assert [row.name for row in made.chosen([], quick=True)] == ["echo.1", "remote.1", "remote.16"]
    assert len(made.chosen([], full=True)) == 5
    (drain,) = made.chosen(["drain"])
    assert drain.scene.settings == {"migration.drain_timeout_s": 9}


async def test_a_row_that_takes_long_is_measured_once_and_before_the_next_is_prepared() -> None:
    steps: list[str] = []

    def preparing(name: str) -> Prepare:
        async def prepare(_stage: Stage) -> Work:
            steps.append(f"prepare {name}")

            async def work(seconds: float) -> Tally:
                steps.append(f"measure {name}")
                return Tally([1000], seconds, count=50, failed=2)

            return work

        return prepare

    made = Rows()
    for name in ("one", "two"):
        made.add(name, "", ["bench"], preparing(name), scene=long_scene("long"))
    found = await measure(made.all(), rounds=5, seconds=0.1, progress=lambda _what: None)
    assert steps == ["prepare one", "measure one", "prepare two", "measure two"]
    assert [(one.median.count, one.median.failed) for one in found.values()] == [(50, 2.0)] * 2


async def test_a_row_that_fails_says_why_and_ends_no_other() -> None:
    async def broken(_stage: Stage) -> Work:
        raise RuntimeError("out of order")

    made = rows()
    made.add("broken", "", ["bench"], broken)
    made.add("nowhere", "", ["no such process"], broken, scene=Scene("nowhere"))
    found = await measure(made.all(), rounds=1, seconds=0.01, progress=lambda _what: None)
    assert found["broken"].error == "RuntimeError: out of order"
    assert found["remote.1"].samples
    assert found["nowhere"].error


async def test_rows_that_need_what_is_not_installed_are_skipped_and_say_what_to_install() -> None:
    made = Rows()
    made.add("other", "", ["bench"], _nothing, scene=Scene("other", needs="no_such.module", extra="more"))
    found = await measure(made.all(), rounds=1, seconds=0.01, progress=lambda _what: None)
    assert found["other"].skipped == "needs no_such.module: pip install 'grain-silo[more]'"
    assert not found["other"].error
    assert judge([Bar("other", "per_s", "least", 1.0)], found, 1.0) == []


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


def test_a_figure_may_be_held_to_itself() -> None:
    one = measured("moves", 2500.0)
    (falls,) = judge([Bar("moves", "per_s", "least", 3000.0)], {"moves": one}, 1.0)
    assert falls.passes is False
    assert str(falls) == "moves: per_s is 2,500; at least 3,000 is wanted: FALLS SHORT"
    (passes,) = judge([Bar("moves", "per_s", "least", 3000.0)], {"moves": one}, 2.0)
    assert passes.passes is True


def test_none_of_none_is_what_slack_leaves_of_a_bar_at_zero() -> None:
    row = Row("drain", "", ("bench",), _nothing, None, "grain")
    (judgement,) = judge(
        [Bar("drain", "failed", "most", 0)],
        {"drain": Measured(row, [Sample(9, 1.0, 1.0, 1.0, 1.0, 0.0, failed=1.0)])},
        2.0,
    )
    assert judgement.passes is False


def test_of_several_rows_beside_it_the_best_counts_that_was_measured() -> None:
    run = {"local.1": measured("local.1", 300.0), "slow": measured("slow", 100.0), "fast": measured("fast", 200.0)}
    (by_rate,) = judge([Bar("local.1", "per_s", "least", 1.5, beside=("slow", "fast", "absent"))], run, 1.0)
    assert (by_rate.beside, by_rate.value, by_rate.passes) == ("fast", 1.5, True)
    (by_time,) = judge([Bar("local.1", "p50_us", "most", 0.5, beside=("slow", "fast"))], run, 1.0)
    assert (by_time.beside, by_time.passes) == ("fast", False)


def test_a_bar_beside_a_peer_that_was_not_measured_is_left_open_and_says_so() -> None:
    (judgement,) = judge(
        [Bar("local.1", "per_s", "least", 1.2, beside=("peer.x.local.1",))], {"local.1": measured("local.1", 1.0)}, 1.0
    )
    assert judgement.passes is None
    assert str(judgement) == "local.1: per_s is not judged, since none of peer.x.local.1 was measured"


def test_a_bar_may_name_another_figure_of_the_other_row_and_a_goal_fails_nothing() -> None:
    run = {"move": measured("move", 100.0), "echo": measured("echo", 1000.0)}
    (judgement,) = judge([Bar("move", "p99_us", "most", 25.0, beside="echo", of="p50_us", goal=10.0)], run, 1.0)
    assert judgement.value == 20.0
    assert (judgement.passes, judgement.reaches_goal) == (True, False)
    assert "that of echo's p50_us" in str(judgement)
    assert "goal 10 x: not reached" in str(judgement)


def test_rows_of_different_scenes_shared_no_round_and_are_compared_by_their_medians() -> None:
    one = Measured(Row("one", "", ("bench",), _nothing, None, "call", scene=Scene("apart")), [])
    one.samples = [Sample(1, 600.0, 1.0, 1.0, 1.0, 0.0)]
    assert one.times(measured("other", 100.0, 300.0, 500.0), "per_s") == 2.0


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


async def test_the_processor_time_of_a_process_that_ends_meanwhile_counts() -> None:
    busy = "sum(range(10_000_000))"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", f"input()\n{busy}", stdin=asyncio.subprocess.PIPE
    )
    spent = Spent([process.pid])
    await process.communicate(b"\n")
    assert spent.cpu_s() > 0.01


def test_percentiles_go_by_nearest_rank() -> None:
    assert percentile([1, 2, 3, 4], 0.5) == 2
    assert percentile([7], 0.99) == 7
    assert math.isnan(percentile([], 0.5))


def test_of_several_errors_the_first_is_named() -> None:
    inner = ExceptionGroup("unhandled errors", [ValueError("that one"), TypeError("another")])
    assert described(ExceptionGroup("outer", [inner])) == "ValueError: that one"
