"""What silos know of each other's load: reports about once a second, and what placement makes of them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from silo.directory.addresses import SiloAddress
from silo.directory.membership import SiloRow, View
from silo.wire.frames import Load

LOAD_PERIOD_S = 1.0
"""How often a silo reports its load."""
LAG_MAX_S = 0.5
"""A silo whose event loop lags more than this is passed over by placement while another can be had."""


class Loads:
    """The latest load of each silo. Serves placement policies as their runtime (`PolicyRuntime`)."""

    def __init__(
        self, me: SiloAddress, rng: random.Random, view: Callable[[], View], own_count: Callable[[], int]
    ) -> None:
        self._me = me
        self._rng = rng
        self._view = view
        self._own_count = own_count
        self._reports: dict[SiloAddress, tuple[Load, float]] = {}
        """Each with the time at which it came."""
        self._subscribers: list[Callable[[SiloAddress, int], None]] = []
        self._lag_s = 0.0

    @property
    def silo(self) -> SiloAddress:
        return self._me

    @property
    def rng(self) -> random.Random:
        return self._rng

    @property
    def lag_s(self) -> float:
        """How late this silo's event loop woke at the last report."""
        return self._lag_s

    def view(self) -> View:
        return self._view()

    def self_load(self) -> int:
        return self._own_count()

    def peer_load(self, silo: SiloAddress) -> int | None:
        report = self._reports.get(silo)
        return report[0].activations if report is not None else None

    def report_of(self, silo: SiloAddress) -> Load | None:
        """The latest load of a silo, this one included; None where it has not reported."""
        if silo == self._me:
            return self.own_report()
        report = self._reports.get(silo)
        return report[0] if report is not None else None

    def subscribe_loads(self, on_report: Callable[[SiloAddress, int], None]) -> Callable[[], None]:
        self._subscribers.append(on_report)
        return lambda: self._subscribers.remove(on_report)

    def every(self, period_s: float, callback: Callable[[], None]) -> Callable[[], None]:
        loop = asyncio.get_running_loop()
        timer: list[asyncio.TimerHandle] = []

        def tick() -> None:
            timer[:] = [loop.call_later(period_s, tick)]
            callback()

        timer.append(loop.call_later(period_s, tick))
        return lambda: timer[0].cancel()

    def report(self, silo: SiloAddress, load: Load) -> None:
        """A peer's report arrived."""
        self._reports[silo] = load, asyncio.get_running_loop().time()
        for on_report in tuple(self._subscribers):
            on_report(silo, load.activations)

    def forget(self, silo: SiloAddress) -> None:
        self._reports.pop(silo, None)

    def own_report(self) -> Load:
        return Load(self._own_count(), self._lag_s)

    async def next_period(self) -> None:
        """Wait for the time of the next report, and measure how late the loop is."""
        loop = asyncio.get_running_loop()
        due = loop.time() + LOAD_PERIOD_S
        await asyncio.sleep(LOAD_PERIOD_S)
        self._lag_s = max(0.0, loop.time() - due)

    def why_lagging(self, row: SiloRow) -> str | None:
        """Why placement should pass a silo over while it can; None where it need not."""
        lag_s = self._lag_s if row.silo == self._me else self._lag_of(row.silo)
        return f"its event loop lags by {lag_s:.1f} s" if lag_s > LAG_MAX_S else None

    def _lag_of(self, silo: SiloAddress) -> float:
        """What it last said, or how late its next word is by now: a loop that stands still says nothing at all."""
        report = self._reports.get(silo)
        if report is None:
            return 0.0
        load, heard_at = report
        return max(load.lag_s, asyncio.get_running_loop().time() - heard_at - LOAD_PERIOD_S)
