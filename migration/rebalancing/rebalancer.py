"""The rebalancer's core: whether to move anything now, and what.

    idle ── uneven in `confirmations` snapshots in a row ──> moving ── everyone within `stop` of its share ──> idle

Each step takes the state and what was seen, and gives the next state and a verdict. So the state can be kept anywhere,
and whoever takes over goes on from it.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

import msgspec

from silo.migration.rebalancing.loads import LoadSnapshot, Surroundings
from silo.migration.rebalancing.plan import Standing, TransferPlan, make_plan, spread_of, stand
from silo.migration.rebalancing.settings import RebalanceSettings

PLANNABLE_LEAST = 2
"""How many silos must be known for a plan to mean anything."""


class Suspension(msgspec.Struct, frozen=True):
    """An operator's word that nothing is to move, until a time or until it is taken back."""

    until: float | None
    reason: str


class RebalancerState(msgspec.Struct, frozen=True):
    """What the rebalancer remembers from one snapshot to the next."""

    suspension: Suspension | None = None
    version: int = -1
    """The newest snapshot that was looked at."""
    sightings: int = 0
    """In how many snapshots in a row the load was uneven enough to begin."""
    moving: bool = False

    def suspended(self, until: float | None, reason: str) -> RebalancerState:
        """Nothing moves until then, by the clock that steps are told; None for until `resumed`."""
        return RebalancerState(Suspension(until, reason), self.version)

    def resumed(self) -> RebalancerState:
        return msgspec.structs.replace(self, suspension=None)


class Because(enum.StrEnum):
    """Why nothing moves."""

    SUSPENDED = "suspended"
    DRAINING = "draining"
    ROLLING = "rolling"
    UNSETTLED = "unsettled"
    """The members changed a moment ago: loads and placements have yet to follow."""
    SEEN = "seen"
    """There is no newer snapshot than the last one."""
    BLIND = "blind"
    """Too few silos are known, or more are silent than are known: moving on missing reports does harm."""
    BALANCED = "balanced"
    WATCHED = "watched"
    """It is uneven, and has to be so once more."""
    NO_BUDGET = "no_budget"
    """The fleet's budget does not allow for the next bite yet."""
    STUCK = "stuck"
    """It is uneven, and no silo that has too much may give, or none may take."""


class Held(msgspec.Struct, frozen=True):
    """Nothing is to move now."""

    because: Because
    why: str
    spread: float | None = None
    """How uneven it is; None where that was not looked at."""

    def __str__(self) -> str:
        return f"{self.because}: {self.why}"


class Move(msgspec.Struct, frozen=True):
    """This plan is to be carried out."""

    plan: TransferPlan


Verdict = Held | Move


def step(
    settings: RebalanceSettings,
    state: RebalancerState,
    loads: LoadSnapshot,
    surroundings: Surroundings,
    *,
    now: float,
    budget_grains: int,
) -> tuple[RebalancerState, Verdict]:
    """Look at a snapshot.

    Args:
        now: the time by which suspensions expire, in seconds.
        budget_grains: how many grains the fleet's budget allows now.
    """
    if state.suspension is not None and state.suspension.until is not None and now >= state.suspension.until:
        state = state.resumed()
    held = _quiet(settings, state, loads, surroundings)
    if held is not None:
        if held.because is Because.SEEN:
            return state, held
        return RebalancerState(state.suspension, max(state.version, loads.version)), held
    standings, unit = stand(loads, settings.measure)
    spread = spread_of(standings)
    if not state.moving:
        off = _beyond(standings, settings.trigger, unit)
        if off is None:
            return RebalancerState(None, loads.version), Held(Because.BALANCED, "no silo is far from its share", spread)
        sightings = state.sightings + 1
        if sightings < settings.confirmations:
            why = f"{_told(off)}, seen {sightings} of {settings.confirmations} times"
            return RebalancerState(None, loads.version, sightings), Held(Because.WATCHED, why, spread)
    elif _beyond(standings, settings.stop, unit) is None:
        why = f"every silo is within {settings.stop:.0%} of its share"
        return RebalancerState(None, loads.version), Held(Because.BALANCED, why, spread)
    state = RebalancerState(None, loads.version, moving=True)
    budget = min(budget_grains, settings.moves_per_plan_max)
    plan = make_plan(loads, settings.measure, budget_grains=budget, bite_grains=settings.bite_grains)
    if not plan.transfers and plan.needed > budget * plan.unit:
        why = f"{budget_grains:,} grains are not enough for the next bite of up to {settings.bite_grains:,}"
        return state, Held(Because.NO_BUDGET, why, spread)
    if not plan.transfers:
        return state, Held(Because.STUCK, "what remains is less than half a grain, or bound by limits", spread)
    return state, Move(plan)


def dry_run(settings: RebalanceSettings, loads: LoadSnapshot) -> TransferPlan:
    """The plan that these loads call for, all of it, whether or not it would be begun now."""
    return make_plan(loads, settings.measure, budget_grains=2**53)


def _quiet(
    settings: RebalanceSettings, state: RebalancerState, loads: LoadSnapshot, around: Surroundings
) -> Held | None:
    """Why this is no time to move anything, whatever the loads."""
    if state.suspension is not None:
        until = state.suspension.until
        return Held(
            Because.SUSPENDED,
            f"{state.suspension.reason} ({'until resumed' if until is None else f'until {until:.0f}'})",
        )
    if around.draining:
        return Held(Because.DRAINING, f"{', '.join(around.draining)} is being emptied")
    if around.rolling:
        return Held(Because.ROLLING, f"a roll is under way: {around.rolling}")
    if around.settled_for_s < settings.settle_s:
        why = f"the members changed {around.settled_for_s:.0f} s ago, of {settings.settle_s:.0f} s to wait"
        return Held(Because.UNSETTLED, why)
    if loads.version <= state.version:
        return Held(Because.SEEN, f"snapshot {loads.version} is no newer than {state.version}")
    known = len(loads.known())
    if known < PLANNABLE_LEAST or known * 2 < len(loads.silos):
        return Held(Because.BLIND, f"{known} of {len(loads.silos)} silos are known")
    return None


def _beyond(standings: Sequence[Standing], fraction: float, unit: int) -> Standing | None:
    """The silo that is furthest beyond this fraction of its share, and beyond one grain more; None where none is."""
    worst = max(standings, key=lambda one: abs(one.has - one.share.exact) - fraction * one.share.exact)
    off = abs(worst.has - worst.share.exact) - fraction * worst.share.exact > unit
    return worst if off else None


def _told(one: Standing) -> str:
    return f"{one.name} has {one.has:,} where its share is {one.share.exact:,.1f}"
