"""Every sample runs by itself, and says what happened."""

from __future__ import annotations

import importlib
import json
import re
import sys

import pytest

from samples.demo.verdict import verdict_rows
from samples.rolling.display import WIDTH
from silo.dev_cluster import scenario_of
from tests.samples.commands import Ended, run

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("warm_processes")]


async def sample(name: str, *options: str) -> Ended:
    return await run([sys.executable, "-m", f"samples.{name}", *options])


@pytest.mark.fresh  # as a newcomer runs it
async def test_hello_answers_before_and_after_the_move() -> None:
    ended = await sample("hello")
    assert ended.code == 0, ended.told
    ada, moved, grace = ended.out.splitlines()[-3:]
    assert re.fullmatch(r"Hello Ada, from silo-\d\. You are number 1\.", ada), ended.told
    assert "hello.greeter/reception moved from silo-" in moved
    assert re.fullmatch(r"Hello Grace, from silo-\d\. You are number 2\.", grace)
    assert ada.split()[3] != grace.split()[3]


async def test_chat_readers_read_on_while_the_room_moves() -> None:
    ended = await sample("chat")
    assert ended.code == 0, ended.told
    heard = re.findall(r"^\[(silo-\d)\] +(\d+)  ", ended.out, re.MULTILINE)
    assert [int(number) for _, number in heard] == list(range(1, 10)), ended.told
    assert {silo for silo, _ in heard} == {"silo-1", "silo-2"}
    assert ended.out.count("chat.room/lobby moved from") == 3
    assert "heard all 9 lines, each once and in order" in ended.out


async def test_presence_tells_every_player_each_heartbeat_once() -> None:
    options = ("--silos", "2", "--players", "160", "--seconds", "2", "--beat-every", "0.5")
    ended = await sample("presence", *options, "--json")
    assert ended.code == 0, ended.told
    found = json.loads(ended.out)
    assert found["ok"]
    assert found["wrong"] == []
    assert found["games_moved"] == 4
    assert found["heartbeats"] >= 20
    assert found["calls"] == found["heartbeats"] * 9
    assert set(found["grains_by_silo"]) == {"silo-1", "silo-2"}
    assert sum(found["grains_by_silo"].values()) == 160 + 20


async def test_rolling_restarts_each_silo_and_loses_nothing() -> None:
    ended = await sample("rolling", "--silos", "2", "--grains", "40", "--seconds", "5", "--json")
    assert ended.code == 0, ended.told
    found = json.loads(ended.out)
    assert found["ok"]
    assert found["lost"] == found["repeated"] == 0
    assert found["calls_made"] == found["calls_answered"] > 0
    assert [(each["silo"], each["exit_code"]) for each in found["restarts"]] == [("silo-1", 0), ("silo-2", 0)]
    assert found["moves"] >= 40, "each silo's grains have left it, and some came back"
    assert found["longest_pause_ms"] > 0
    assert sum(found["grains_by_silo"].values()) == 40
    assert 1 <= found["spread"] <= 2


async def test_R226_restart_under_traffic_prints_the_timeline_of_each_case() -> None:
    ended = await sample("restart_under_traffic", "--outage", "1")
    assert ended.code == 0, ended.told
    assert re.findall(r"^(\w[\w ]*): ", ended.out, re.MULTILINE) == [
        "traffic",
        "quiet",
        "silence after traffic",
        "storm",
    ]
    timeline = re.findall(r"^  +([+-]\d+\.\d{3}) s  (.+)$", ended.out, re.MULTILINE)
    for line in ("silo-1 is killed", "silo-1 is ready again"):
        assert [what for _, what in timeline].count(line) == 4, ended.told
    answered = [float(ms) for ms in re.findall(r"the grain answers, (\d+) ms after that", ended.out)]
    assert len(answered) == 4
    assert max(answered) < 1000
    assert "each time the grain was back as soon as its silo was" in ended.out


async def test_rolling_says_what_happened_to_people_in_80_columns() -> None:
    ended = await sample("rolling", "--silos", "2", "--grains", "20", "--seconds", "3")
    assert ended.code == 0, ended.told
    for name in ("lost", "run twice"):
        assert re.search(rf"^{name} +0$", ended.out, re.MULTILINE), ended.told
    for name in ("calls made", "calls answered", "moves of grains"):
        assert re.search(rf"^{name} +[1-9][\d,]*$", ended.out, re.MULTILINE), ended.told
    assert re.search(r"^silo-2 stops and starts +[\d.]+ s +[\d,]+", ended.out, re.MULTILINE), ended.told
    assert re.search(r"^longest pause a caller saw +\d+ ms$", ended.out, re.MULTILINE), ended.told
    assert ended.out.rstrip().endswith("every silo was replaced, and nobody noticed")
    lines = [line for line in ended.out.splitlines() if "moves not made" not in line]
    assert max(map(len, lines)) <= WIDTH


async def test_demo_accounts_for_every_call() -> None:
    ended = await sample("demo", "--seconds", "8", "--grains", "90", "--calls-per-s", "600", "--json")
    assert ended.code == 0, ended.told
    found = json.loads(ended.out)
    kill = found["kill"]
    assert found["ok"]
    assert found["lost"] == found["repeated"] == 0
    assert found["calls_made"] == found["calls_answered"] + kill["outcome_unknown"] + kill["not_executed"]
    assert found["moves"] > 60
    assert [each["exit_code"] for each in found["restarts"]] == [0, 0, 0]
    assert found["longest_pause_ms"] > 0
    assert kill["grains"] == kill["grains_back"] > 0
    assert 0 < kill["first_success_s"] <= kill["last_success_s"]
    assert [each["what"] for each in found["steps"]] == [
        "3 silos start",
        "calls, and nothing else",
        "grains move about",
        "silo-1 stops and starts",
        "silo-2 stops and starts",
        "silo-3 stops and starts",
        f"kill -9 of {kill['silo']}",
    ]
    told = verdict_rows(found)
    assert told["calls made"] == f"{found['calls_made']:,}"
    assert told["lost by a migration or a planned restart"] == told["run twice"] == "0"
    assert told["migrations"] == f"{found['moves']:,}"
    assert told["longest pause a caller saw before the kill"].endswith(" ms")
    assert told["  first success after the kill"].endswith(" s")


@pytest.mark.parametrize("name", ["hello", "chat", "presence"])
def test_silo_dev_finds_a_story_to_run_in_the_sample(name: str) -> None:
    assert scenario_of(importlib.import_module(f"samples.{name}")) is not None
