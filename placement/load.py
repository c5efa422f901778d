"""How loaded the silos are, as one silo sees it: the last reports, and its own placements since.

Old reports make every silo that decides prefer the same target. Two things hold that down: each choice counts at once
against its target (the pending delta), and it counts as often as there are silos, because all of them decide from
reports of the same age (on what stale load does to such choices: Mitzenmacher, "How Useful Is Old Information?", IEEE
TPDS 2000).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass

from silo.directory.addresses import SiloAddress
from silo.directory.logs import get_logger
from silo.placement.policy import PolicyRuntime

log = get_logger(__name__)

REFRESH_S = 1.0
"""How often the own load is read and the age of the others' reports is counted on, in seconds."""
STALE_AFTER_PERIODS = 3
"""A silo that reported nothing for more periods than this is taken to be as loaded as the average of the others."""
LOAD_MAX = 2**53
"""A report from here on is nonsense."""


@dataclass(slots=True)
class _Load:
    count: int | None = None
    pending: int = 0
    age: int = 0
    """Whole periods since the last report, or since the silo was first seen."""


class LoadView:
    """The estimated number of activations of each silo. Plain bookkeeping: no I/O, no clock.

    A silo that never reported counts as empty, so that a fresh one gets work at once; one whose reports stopped, or
    never began, for a few periods counts as average: it is neither flooded nor starved.
    """

    def __init__(self, stale_after_periods: int = STALE_AFTER_PERIODS) -> None:
        self._stale_after = stale_after_periods
        self._loads: dict[SiloAddress, _Load] = {}
        self._placers = 1  # what one silo places, each of the others is taken to have placed too
        self._average: float | None = None

    def report(self, silo: SiloAddress, count: int) -> None:
        """Take in what a silo says of itself: own placements there are part of it from now on. Nonsense is ignored."""
        if not 0 <= count < LOAD_MAX:  # a float NaN from a broken peer is caught here, too
            log.debug("placement.load_ignored", silo=str(silo), load=repr(count))
            return
        self._loads[silo] = _Load(count)
        self._average = None

    def placed(self, silo: SiloAddress) -> None:
        """Count one choice of this silo's own against its target, until the target's next report."""
        self._loads.setdefault(silo, _Load()).pending += 1

    def period(self, members: Iterable[SiloAddress]) -> None:
        """One period has passed, and these are the silos now: the others are forgotten, with all that was pending."""
        self._loads = {silo: self._loads.get(silo) or _Load() for silo in members}
        self._placers = max(1, len(self._loads))
        for load in self._loads.values():
            load.age += 1
            if load.age > self._stale_after:
                load.pending = 0  # the average grows by itself: older choices are part of it
        self._average = None

    def estimate(self, silo: SiloAddress) -> float:
        """The activations that the silo is taken to have now, with the choices of all silos since its report."""
        load = self._loads.get(silo)
        if load is None:
            return 0.0
        return self._base(load) + load.pending * self._placers

    def known(self, silo: SiloAddress) -> float:
        """The activations that this silo can account for itself: the report and its own choices since."""
        load = self._loads.get(silo)
        return 0.0 if load is None else self._base(load) + load.pending

    def pending(self, silo: SiloAddress) -> float:
        """How many of the estimated activations are choices of all silos since the report."""
        load = self._loads.get(silo)
        return 0.0 if load is None else float(load.pending * self._placers)

    def youngest_age(self, silos: Iterable[SiloAddress]) -> int | None:
        """The age of the newest report of these silos, in periods; None where none of them is known."""
        return min((load.age for silo in silos if (load := self._loads.get(silo))), default=None)

    def _base(self, load: _Load) -> float:
        return self._fresh_average() if load.age > self._stale_after else float(load.count or 0)

    def _fresh_average(self) -> float:
        if self._average is None:
            counts = [
                load.count for load in self._loads.values() if load.count is not None and load.age <= self._stale_after
            ]
            self._average = sum(counts) / len(counts) if counts else 0.0
        return self._average


class AttachedLoads:
    """The load views that a policy keeps: one for each silo of this process to which it is attached."""

    def __init__(self, refresh_s: float = REFRESH_S) -> None:
        self._refresh_s = refresh_s
        self._views: dict[SiloAddress, LoadView] = {}

    def at(self, silo: SiloAddress | None) -> LoadView | None:
        """The load as that silo sees it; None where the policy is not attached there."""
        return None if silo is None else self._views.get(silo)

    def attach(self, runtime: PolicyRuntime) -> Callable[[], None]:
        """Follow the load reports of this silo's peers, until the returned teardown is run."""
        me = runtime.silo
        loads = LoadView()
        blind = 0

        def refresh() -> None:
            nonlocal blind
            members = [row.silo for row in runtime.view().active()]
            loads.period(members)
            loads.report(me, runtime.self_load())
            age = loads.youngest_age(silo for silo in members if silo != me)
            blind = blind + 1 if age is not None and age > STALE_AFTER_PERIODS else 0
            if blind % STALE_AFTER_PERIODS == 1:
                log.warning("placement.blind", silo=str(me), periods_without_report=age, period_s=self._refresh_s)

        undo = ExitStack()
        try:
            undo.callback(runtime.subscribe_loads(loads.report))
            undo.callback(runtime.every(self._refresh_s, refresh))
            for silo in (row.silo for row in runtime.view().active()):
                count = runtime.peer_load(silo) if silo != me else None
                if count is not None:
                    loads.report(silo, count)
            refresh()
        except BaseException:
            undo.close()
            raise
        self._views[me] = loads
        undo.callback(self._views.pop, me, None)
        return undo.close
