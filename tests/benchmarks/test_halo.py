"""The halo simulation: it runs whole in its quick form, tells the same for the same seed, and its judgement is true."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from benchmarks.halo.__main__ import main
from benchmarks.halo.cases import BARS, CASES, choose, judge
from benchmarks.halo.run import run
from benchmarks.halo.upkeep import bytes_per_grain, per_message_ns
from benchmarks.halo.workloads import WORKLOADS, Halo, poisson
from silo.migration.repartitioning.settings import RepartitioningSettings, Strategy


def test_R604_hub_first_brings_most_of_the_traffic_home_and_leaves_no_silo_with_more_than_its_share() -> None:
    settings = RepartitioningSettings(strategy=Strategy.HUB_FIRST, budget_share=None)
    outcome = run("halo-frozen", settings, seed=1, silos=4, minutes=4)
    assert outcome.remote < 0.1
    assert outcome.curve[0] > 0.5
    assert outcome.count_ratio < 1.06


def test_the_quick_form_writes_what_it_found_and_the_same_for_the_same_seed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found: list[dict[str, Any]] = []
    for _ in range(2):
        given = ["--quick", "--json", "--jobs", "1", "--no-upkeep", "--only", "halo-frozen", "--save", str(tmp_path)]
        assert main(given) == 0
        told = json.loads(capsys.readouterr().out)
        for row in told["cases"]:
            del row["cpu_s"]
        found.append(told)
    assert found[0] == found[1]
    assert (tmp_path / "halo.json").exists()
    assert main(["--only", "no such case"]) == 2


def test_each_bar_is_of_a_case_and_each_case_of_a_workload() -> None:
    names = {case.name for case in CASES}
    assert {bar.case for bar in BARS} <= names
    assert {bar.beside for bar in BARS} - {""} <= names
    assert {case.workload for case in CASES} <= set(WORKLOADS)
    assert {bar.case for bar in BARS} <= {case.name for case in choose([], with_long=False)}


def test_a_bar_is_missed_by_what_is_above_it() -> None:
    rows = [
        {"name": "halo.pairwise", "moves_per_min": {"mean": 0.02}},
        {
            "name": "halo.hub-first",
            "remote": {"mean": 0.03},
            "count_ratio": {"mean": 1.0},
            "moves_per_min": {"mean": 0.01},
        },
    ]
    assert {bar["figure"]: bar["passes"] for bar in judge(rows)} == {
        "remote": False,
        "count_ratio": True,
        "moves_per_min": True,
    }


def test_the_workload_is_the_one_that_is_described() -> None:
    halo = Halo(random.Random(1), players=800)
    step = halo.step(600.0)
    games = {talk.other for talk in step.talks}
    assert all(sum(talk.other == game for talk in step.talks) == 8 for game in games)
    assert 90 <= len(games) <= 99  # a percent waits
    requests = 8 * len(games) * 0.06 * 600
    assert sum(talk.messages for talk in step.talks) == pytest.approx(18 * requests, rel=0.02)


def test_a_tenth_of_the_games_ends_in_as_many_minutes_as_their_length_says() -> None:
    halo = Halo(random.Random(1), players=800)
    halo.step(60.0)
    ended = [grain for _ in range(50) for grain in halo.step(60.0).ended if grain.kind == "game"]
    assert len(ended) == pytest.approx(98 * 50 / 25, rel=0.15)


@pytest.mark.parametrize("mean", [0.5, 5.0, 50.0])
def test_draws_have_the_mean_and_the_spread_of_the_poisson_distribution(mean: float) -> None:
    rng = random.Random(1)
    drawn = [poisson(rng, mean) for _ in range(4_000)]
    average = sum(drawn) / len(drawn)
    assert average == pytest.approx(mean, rel=0.06)
    assert sum((each - average) ** 2 for each in drawn) / len(drawn) == pytest.approx(mean, rel=0.12)


def test_watching_is_measured() -> None:
    found = per_message_ns(repeats=1, messages=500)
    assert set(found) == {"remote", "remote_crowded", "local"}
    assert 100 < bytes_per_grain(grains=200, peers=4) < 5_000
