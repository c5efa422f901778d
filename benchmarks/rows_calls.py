"""Calls: to a grain in the caller's own silo, in another silo, and from a client."""

from __future__ import annotations

from functools import partial

from benchmarks import rows_floors as floors
from benchmarks.grains import Counter
from benchmarks.harness import Prepare, Rows
from benchmarks.meter import Work, looping
from benchmarks.stage import BENCH, FURTHER, GATEWAY, REDIS, Stage, grains_on

LOCAL_GRAINS = 16
REMOTE_GRAINS = 64


def _calls(counters: list[Counter], in_flight: int) -> Work:
    return looping([partial(counters[number % len(counters)].add, 1) for number in range(in_flight)])


def _from_silo(to: str, in_flight: int) -> Prepare:
    async def prepare(stage: Stage) -> Work:
        count = LOCAL_GRAINS if to == BENCH else REMOTE_GRAINS
        return _calls(await grains_on(await stage.silo(), Counter, f"of-{to}", count, to), in_flight)

    return prepare


def _from_client(to: str, in_flight: int) -> Prepare:
    async def prepare(stage: Stage) -> Work:
        await stage.silo()  # the same cluster for every row, whichever are chosen
        return _calls(await grains_on(await stage.client(), Counter, f"of-{to}", REMOTE_GRAINS, to), in_flight)

    return prepare


def add_rows(rows: Rows) -> None:
    rows.add("local.1", "a grain in the same silo", [BENCH, REDIS], _from_silo(BENCH, 1), beside=floors.LOCK)
    rows.add(
        "local.64",
        f"64 in flight over {LOCAL_GRAINS} grains in the same silo",
        [BENCH, REDIS],
        _from_silo(BENCH, 64),
        beside=floors.LOCK_64,
    )
    for in_flight in (1, 64, 512):
        rows.add(
            f"remote.{in_flight}",
            f"silo to silo, {in_flight} in flight over {REMOTE_GRAINS} grains",
            [BENCH, GATEWAY],
            _from_silo(GATEWAY, in_flight),
            beside=floors.echo(in_flight),
            also=[] if in_flight == 64 else [floors.plain_echo(in_flight)],
        )
    for in_flight in (1, 64, 512):
        rows.add(
            f"client.{in_flight}",
            f"client to its gateway, {in_flight} in flight over {REMOTE_GRAINS} grains",
            [BENCH, GATEWAY],
            _from_client(GATEWAY, in_flight),
            beside=floors.echo(in_flight),
        )
    rows.add(
        "client.hop.64",
        f"client through its gateway to another silo, 64 in flight over {REMOTE_GRAINS} grains",
        [BENCH, GATEWAY, FURTHER],
        _from_client(FURTHER, 64),
        beside=floors.echo(64),
    )
