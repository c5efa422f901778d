"""What silos know of each other's load: reports about once a second, and what placement makes of them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from silo.activation.intake import full
from silo.directory.addresses import GrainId, SiloAddress
from silo.directory.membership import SiloRow, View
from silo.placement.resources import Resources
from silo.wire.frames import Load

LOAD_PERIOD_S = 1.0
"""How often a silo reports its load."""
LAG_MAX_S = 0.5
"""A silo whose event loop lags more than this is passed over by placement while another can be had."""


class Loads:
    """The latest load of each silo. Serves placement policies as their runtime (`PolicyRuntime`).

    Args:
        own_load: what this silo would report now, without the lag of its loop.
        in_flight_max_unheard: how many activations a silo that has said nothing yet is taken to begin at a time.
        on_room: told when a silo that was full says that it has room again.
    """

    def __init__(
        self,
        me: SiloAddress,
        rng: random.Random,
        view: Callable[[], View],
        own_load: Callable[[], Load],
        *,
        in_flight_max_unheard: int,
        on_room: Callable[[], None],
    ) -> None:
        self._me = me
        self._rng = rng
        self._view = view
        self._own_load = own_load
        self._in_flight_max_unheard = in_flight_max_unheard
        self._on_room = on_room
        self._chosen: dict[SiloAddress, set[GrainId]] = {}
        """The grains that this silo has sent to each other one since its last report, until they answer from there."""
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
        return self._own_load().activations

    def peer_load(self, silo: SiloAddress) -> int | None:
        report = self._reports.get(silo)
        return report[0].activations if report is not None else None

    def report_of(self, silo: SiloAddress) -> Load | None:
        """The latest load of a silo, this one included; None where it has not reported."""
        if silo == self._me:
            return self.own_report()
        report = self._reports.get(silo)
        return report[0] if report is not None else None

    def resources(self, silo: SiloAddress) -> Resources | None:
        """What a silo uses, as far as reports tell by now; None where it has not reported."""
        load = self.report_of(silo)
        return None if load is None else Resources(lag_s=load.lag_s)

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
        was_full = silo in self._reports and is_full(self._reports[silo][0])
        self._reports[silo] = load, asyncio.get_running_loop().time()
        self._chosen.pop(silo, None)
        for on_report in tuple(self._subscribers):
            on_report(silo, load.activations)
        if was_full and not is_full(load):
            self._on_room()

    def forget(self, silo: SiloAddress) -> None:
        self._reports.pop(silo, None)
        self._chosen.pop(silo, None)

    def chosen(self, grain: GrainId, silo: SiloAddress) -> None:
        """This silo has decided to have the grain activated there. Its own activations it counts as they are."""
        if silo == self._me:
            return
        report = self._reports.get(silo)
        most = report[0].in_flight_max if report is not None else self._in_flight_max_unheard
        chosen = self._chosen.setdefault(silo, set())
        if len(chosen) < (most or self._in_flight_max_unheard):  # beyond, it is passed over anyway
            chosen.add(grain)

    def answered(self, grain: GrainId, silo: SiloAddress) -> None:
        """A call that went there with the wish to activate the grain was answered: that is done."""
        chosen = self._chosen.get(silo)
        if chosen is not None:
            chosen.discard(grain)

    def own_report(self) -> Load:
        load = self._own_load()
        load.lag_s = self._lag_s
        return load

    async def next_period(self) -> None:
        """Wait for the time of the next report, and measure how late the loop is."""
        loop = asyncio.get_running_loop()
        due = loop.time() + LOAD_PERIOD_S
        await asyncio.sleep(LOAD_PERIOD_S)
        self._lag_s = max(0.0, loop.time() - due)

    def why_full(self, row: SiloRow) -> str | None:
        """Why a silo takes no activation, by its own word; None where it does."""
        load = self.report_of(row.silo)
        return full(load.activations, load.activations_max) if load is not None and is_full(load) else None

    def why_busy(self, row: SiloRow) -> str | None:
        """Why activations should begin elsewhere, as far as is known here; None where they need not."""
        load = self.report_of(row.silo)
        chosen = len(self._chosen.get(row.silo, ()))
        if load is None:
            in_flight, in_flight_max = chosen, self._in_flight_max_unheard
        else:
            in_flight, in_flight_max = load.in_flight + chosen, load.in_flight_max
        if in_flight_max and in_flight >= in_flight_max:
            return f"{in_flight} of {in_flight_max} activations in flight"
        if load is not None and load.activations_max and load.activations + chosen >= load.activations_max:
            return full(load.activations + chosen, load.activations_max) + ", with those on their way"
        return None

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


def is_full(load: Load) -> bool:
    """Whether the silo that says so takes no more activations."""
    return 0 < load.activations_max <= load.activations
