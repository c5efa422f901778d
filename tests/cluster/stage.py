"""What the grains of one test say and wait for: how a test sees inside of turns, and holds them where it wants them."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager

from silo.testing.looking import LIMIT_S


class Gate:
    """A turn that comes here waits until the test opens it; one that is open lets everybody through."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def open(self) -> None:
        self._event.set()

    async def passed(self) -> None:
        await self._event.wait()


class Stage:
    """Told by grains what happens to them; asked by the test."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._said = asyncio.Event()
        self._gates: dict[str, Gate] = {}
        self._stops: set[str] = set()

    def say(self, line: str) -> None:
        self.lines.append(line)
        self._said.set()

    async def heard(self, line: str, times: int = 1) -> None:
        """Wait until this was said so often."""
        async with asyncio.timeout(LIMIT_S):
            while self.lines.count(line) < times:
                self._said.clear()
                await self._said.wait()

    def gate(self, name: str) -> Gate:
        return self._gates.setdefault(name, Gate())

    def stop_at(self, place: str) -> None:
        """From now on whoever passes there stops, until the gate of that name is opened."""
        self._stops.add(place)

    async def stopped(self, place: str) -> None:
        """Wait until somebody has stopped there."""
        await self.heard(f"stopped: {place}")

    async def passed(self, place: str) -> None:
        """Whoever comes by a place where the test may want to stop them waits for this."""
        if place in self._stops:
            self.say(f"stopped: {place}")
            await self.gate(place).passed()

    def open_all(self) -> None:
        """Let everybody go, so that the cluster can end."""
        for gate in self._gates.values():
            gate.open()


_stages: list[Stage] = []


@contextmanager
def staged() -> Generator[Stage]:
    """The stage of one test."""
    stage = Stage()
    _stages.append(stage)
    try:
        yield stage
    finally:
        stage.open_all()
        _stages.remove(stage)


def stage() -> Stage:
    """The stage of the test that runs."""
    return _stages[-1]


def say(line: str) -> None:
    """Tell the test."""
    stage().say(line)


async def gate(name: str) -> None:
    """Wait until the test opens this gate."""
    await stage().gate(name).passed()


async def pass_by(place: str) -> None:
    """Stop here, if the test has said so."""
    await stage().passed(place)
