"""Floors: what a call costs at the very least, without any runtime."""

from __future__ import annotations

import asyncio
import pickle
from functools import partial
from typing import TypeVar

from benchmarks.echo import NUMBER
from benchmarks.harness import Prepare, Rows
from benchmarks.meter import Work, looping
from benchmarks.sizes import LOCAL_GRAINS, SIZES, body
from benchmarks.stage import BENCH, ECHO, PLAIN, PLAIN_CALLER, TCP, Stage

T = TypeVar("T")

AWAIT = "floor.await"
LOCK = "floor.lock"
LOCK_64 = "floor.lock.64"


def echo(in_flight: int, size: str = "") -> str:
    return f"echo.{size}{in_flight}"


def unary_echo(in_flight: int) -> str:
    return f"echo.unary.{in_flight}"


def tcp_echo(in_flight: int) -> str:
    return f"echo.tcp.{in_flight}"


def plain_echo(in_flight: int) -> str:
    return f"echo.plain.{in_flight}"


class Plain:
    """An object with an async method: what a grain is without a runtime."""

    def __init__(self) -> None:
        self.total = 0
        self._lock = asyncio.Lock()

    async def add(self, amount: int) -> int:
        self.total += amount
        return self.total

    async def add_apart(self, amount: int) -> int:
        """One at a time, with copies of the argument and the result, as the least that isolation takes."""
        (own,) = _copied((amount,))
        async with self._lock:
            result = await self.add(own)
        copy: int = _copied(result)
        return copy


def _copied(value: T) -> T:
    copy: T = pickle.loads(pickle.dumps(value, 5))  # noqa: S301 - bytes of this very process
    return copy


async def _await(_stage: Stage) -> Work:
    return looping([partial(Plain().add, 1)])


async def _lock(_stage: Stage) -> Work:
    return looping([partial(Plain().add_apart, 1)])


async def _lock_64(_stage: Stage) -> Work:
    plain = [Plain() for _ in range(LOCAL_GRAINS)]
    return looping([partial(plain[number % LOCAL_GRAINS].add_apart, 1) for number in range(64)])


def _echo(in_flight: int, size: str = "") -> Prepare:
    async def prepare(stage: Stage) -> Work:
        client, more = await stage.echo(), body(size)[NUMBER.size :]
        _expect_next(await client.call(NUMBER.pack(41) + more), more)
        return looping([partial(client.call, NUMBER.pack(1) + more)] * in_flight)

    return prepare


def _unary_echo(in_flight: int) -> Prepare:
    async def prepare(stage: Stage) -> Work:
        client = await stage.echo()
        _expect_next(await client.once(NUMBER.pack(41)))
        return looping([partial(client.once, NUMBER.pack(1))] * in_flight)

    return prepare


def _tcp_echo(in_flight: int) -> Prepare:
    async def prepare(stage: Stage) -> Work:
        client = await stage.tcp_echo()
        _expect_next(await client.call(NUMBER.pack(41)))
        return looping([partial(client.call, NUMBER.pack(1))] * in_flight)

    return prepare


def _expect_next(answer: bytes, more: bytes = b"") -> None:
    if answer != NUMBER.pack(42) + more:
        raise RuntimeError("the echo does not answer what it should")


def _plain_echo(in_flight: int) -> Prepare:
    async def prepare(stage: Stage) -> Work:
        return partial(stage.plain_echo.measure, in_flight)

    return prepare


def add_rows(rows: Rows) -> None:
    rows.add(AWAIT, "await of a plain object's method", [BENCH], _await)
    rows.add(LOCK, "the same with asyncio.Lock and copies", [BENCH], _lock)
    rows.add(LOCK_64, f"the same, 64 callers of {LOCAL_GRAINS} objects", [BENCH], _lock_64)
    for in_flight in (1, 64, 512):
        rows.add(echo(in_flight), f"bare coalesced gRPC echo, {in_flight} in flight", [BENCH, ECHO], _echo(in_flight))
    for size, in_flight in (("10k.", 64), ("1m.", 16)):
        what = f"the same echo of {SIZES[size] // 1024} KiB, {in_flight} in flight"
        rows.add(echo(in_flight, size), what, [BENCH, ECHO], _echo(in_flight, size))
    for in_flight in (1, 64):
        what = f"gRPC echo by unary calls, {in_flight} in flight"
        rows.add(unary_echo(in_flight), what, [BENCH, ECHO], _unary_echo(in_flight))
    for in_flight in (1, 64, 512):
        what = f"bare coalesced TCP echo on the same event loop, {in_flight} in flight"
        rows.add(tcp_echo(in_flight), what, [BENCH, TCP], _tcp_echo(in_flight))
    for in_flight in (1, 512):
        what = f"the coalesced gRPC echo on asyncio, with gRPC's own settings, {in_flight} in flight"
        rows.add(plain_echo(in_flight), what, [PLAIN, PLAIN_CALLER], _plain_echo(in_flight))
