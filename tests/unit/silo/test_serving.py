"""A silo process ends in order at the first signal, at once at the second, and with its parent."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from typing import Self

import pytest

from silo.lifespan import READY, stop_request
from silo.serving import serve
from silo.settings import SiloSettings

TIMEOUT_S = 10.0


class FakeSilo:
    """What `serve` needs of a silo, and what was asked of it."""

    endpoint = "127.0.0.1:4711"
    drained_by_admin = False

    def __init__(self, started: asyncio.Queue[FakeSilo]) -> None:
        self.asked: list[str] = []
        self.ends_by_itself = asyncio.Event()
        self._started = started

    async def __aenter__(self) -> Self:
        self.asked.append("start")
        self._started.put_nowait(self)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.asked.append("close")

    async def wait_stopped(self) -> None:
        await self.ends_by_itself.wait()

    async def drain_and_stop(self) -> None:
        self.asked.append("drain")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> asyncio.Queue[FakeSilo]:
    """The silos that `serve` has started, which are no real ones here."""
    queue: asyncio.Queue[FakeSilo] = asyncio.Queue()

    def fake(*_modules: object, settings: SiloSettings) -> FakeSilo:
        del settings
        return FakeSilo(queue)

    monkeypatch.setattr("silo.serving.Silo", fake)
    return queue


async def _next(started: asyncio.Queue[FakeSilo]) -> FakeSilo:
    return await asyncio.wait_for(started.get(), TIMEOUT_S)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_the_first_signal_drains_and_ends_with_0(
    started: asyncio.Queue[FakeSilo], capsys: pytest.CaptureFixture[str], number: signal.Signals
) -> None:
    serving = asyncio.create_task(serve([], SiloSettings(name="silo-1", cluster="prod")))
    silo = await _next(started)
    os.kill(os.getpid(), number)
    assert await asyncio.wait_for(serving, TIMEOUT_S) == 0
    assert silo.asked == ["start", "drain", "close"]
    assert capsys.readouterr().out == f"{READY} silo-1 of cluster prod on 127.0.0.1:4711\n"


async def test_a_silo_that_ends_by_itself_ends_the_process_with_1(started: asyncio.Queue[FakeSilo]) -> None:
    serving = asyncio.create_task(serve([], SiloSettings()))
    silo = await _next(started)
    silo.ends_by_itself.set()
    assert await asyncio.wait_for(serving, TIMEOUT_S) == 1
    assert silo.asked == ["start", "close"]


async def test_a_silo_that_an_administrator_drained_ends_the_process_with_0(started: asyncio.Queue[FakeSilo]) -> None:
    serving = asyncio.create_task(serve([], SiloSettings()))
    silo = await _next(started)
    silo.drained_by_admin = True
    silo.ends_by_itself.set()
    assert await asyncio.wait_for(serving, TIMEOUT_S) == 0
    assert silo.asked == ["start", "close"]


@pytest.mark.usefixtures("started")
async def test_a_signal_during_the_start_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    began = asyncio.Event()

    async def start_for_ever(_: FakeSilo) -> FakeSilo:
        began.set()
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(FakeSilo, "__aenter__", start_for_ever)
    serving = asyncio.create_task(serve([], SiloSettings()))
    await asyncio.wait_for(began.wait(), TIMEOUT_S)
    os.kill(os.getpid(), signal.SIGTERM)
    assert await asyncio.wait_for(serving, TIMEOUT_S) == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
async def test_the_second_signal_ends_the_process_at_once(number: signal.Signals, code: int) -> None:
    codes: asyncio.Queue[int] = asyncio.Queue()
    async with stop_request(end_now=codes.put_nowait) as request:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(request.made(), TIMEOUT_S)
        assert codes.empty()
        os.kill(os.getpid(), number)
        assert await asyncio.wait_for(codes.get(), TIMEOUT_S) == code
    assert request.because == "SIGTERM"


CHILD = """
import asyncio
from silo.lifespan import stop_request

async def wait():
    async with stop_request(with_parent=True, stacks=True) as request:
        print("up", flush=True)
        await request.made()
        print(request.because)

asyncio.run(wait())
"""


@pytest.mark.process
def test_a_process_ends_with_its_parent_and_shows_its_stacks_when_asked() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        assert child.stdin is not None
        assert child.stdout.readline() == "up\n"
        child.send_signal(signal.SIGQUIT)
        lines: list[str] = []
        while not any("await request.made()" in line or "in wait" in line for line in lines):
            lines.append(child.stderr.readline())
            assert lines[-1], "the process ended instead"
        child.stdin.close()
        assert child.stdout.read() == "the process that started this one has ended\n"
        assert child.wait(TIMEOUT_S) == 0
    assert any("most recent call first" in line for line in lines)
