"""Calls: to a grain in the caller's own silo, in another silo, and from a client."""

from __future__ import annotations

from functools import partial

from benchmarks import rows_floors as floors
from benchmarks.grains import Counter, Fan, Mirror, Ring
from benchmarks.harness import Prepare, Rows
from benchmarks.meter import Work, looping
from benchmarks.sizes import FAN_GRAINS, LOCAL_GRAINS, REMOTE_GRAINS, SIZES
from benchmarks.sizes import body as body_of
from benchmarks.stage import BENCH, FURTHER, GATEWAY, REDIS, Stage, grains_on
from silo import Silo

SILOS = (BENCH, GATEWAY, FURTHER)
"""Over which the grains of one call are spread, where it takes several."""


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


def _echoed(size: str, in_flight: int) -> Prepare:
    async def prepare(stage: Stage) -> Work:
        mirrors = await grains_on(await stage.silo(), Mirror, f"of-{size}", REMOTE_GRAINS, GATEWAY)
        body = body_of(size)
        if await mirrors[0].echo(body) != body:
            raise RuntimeError("the mirror does not answer what it should")
        return looping([partial(mirrors[number % len(mirrors)].echo, body) for number in range(in_flight)])

    return prepare


async def _readers(stage: Stage) -> Work:
    (hot,) = await grains_on(await stage.silo(), Counter, "hot", 1, GATEWAY)
    return looping([hot.read] * 64)


async def _spread(silo: Silo, name: str, count: int) -> list[str]:
    """Counters over the three silos, by their keys."""
    keys: list[str] = []
    for number, place in enumerate(SILOS):
        share = len(range(number, count, len(SILOS)))
        await grains_on(silo, Counter, f"{name}-{place}", share, place)
        keys += [f"{name}-{place}-{one}" for one in range(share)]
    return keys


async def _fan_out(stage: Stage) -> Work:
    silo = await stage.silo()
    keys = await _spread(silo, "fan", FAN_GRAINS)
    (fan,) = await grains_on(silo, Fan, "fan", 1, GATEWAY)
    await fan.know(keys)
    return looping([partial(fan.add, 1)])


async def _ring(stage: Stage) -> Work:
    """Each call goes once around: from this silo through three grains on three silos, each within the one before."""
    silo = await stage.silo()
    grains = [(await grains_on(silo, Ring, f"ring-{place}", 1, place))[0] for place in SILOS]
    for number, ring in enumerate(grains):
        await ring.know(f"ring-{SILOS[(number + 1) % len(SILOS)]}-0")
    if await grains[0].around(len(SILOS)) != len(SILOS):
        raise RuntimeError("the ring does not close")
    return looping([partial(grains[0].around, len(SILOS))])


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
            also=[floors.tcp_echo(in_flight), *([] if in_flight == 64 else [floors.plain_echo(in_flight)])],
        )
    for size, in_flight in (("10k.", 64), ("1m.", 16)):
        rows.add(
            f"remote.{size}{in_flight}",
            f"silo to silo, {SIZES[size] // 1024} KiB echoed, {in_flight} in flight over {REMOTE_GRAINS} grains",
            [BENCH, GATEWAY],
            _echoed(size, in_flight),
            beside=floors.echo(in_flight, size),
        )
    rows.add(
        "remote.hot.64",
        "silo to silo, 64 readers of one grain",
        [BENCH, GATEWAY],
        _readers,
        beside=floors.echo(64),
    )
    rows.add(
        "fan.10",
        f"a grain that calls {FAN_GRAINS} others at once, over three silos",
        [BENCH, GATEWAY, FURTHER],
        _fan_out,
        beside=floors.echo(1),
    )
    rows.add(
        "ring.3",
        "a call around three grains on three silos, each within the one before",
        [BENCH, GATEWAY, FURTHER],
        _ring,
        beside=floors.echo(1),
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
