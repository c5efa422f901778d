"""The desk of one silo where operators ask about a grain, and have its activation ended."""

from __future__ import annotations

import asyncio

from silo.activation.activation import Activation, State
from silo.activation.catalog import Catalog
from silo.chronicle import Chronicle
from silo.directory.addresses import GrainId, SiloAddress
from silo.directory.errors import NotExecuted
from silo.directory.membership import Membership
from silo.directory.registrar import Registrar
from silo.grain_records import (
    ActivationReport,
    DeactivationReport,
    DeactivationStatus,
    Fate,
    GrainReport,
    GrainState,
    Transition,
)
from silo.logs import get_logger
from silo.migration.lifecycle import DeactivationReason
from silo.routing.router import Router

log = get_logger(__name__)

LOOK_UP_TIMEOUT_S = 1.0
"""How long a report waits for the directory before it goes without."""
SAME_MOMENT_S = 0.001
"""Within it, two readings of the clock are of one event."""


class GrainDesk:
    """Reads what the parts of one silo know of a grain, and carries out the order to deactivate it."""

    def __init__(
        self,
        me: SiloAddress,
        catalog: Catalog,
        router: Router,
        registrar: Registrar,
        membership: Membership,
        chronicle: Chronicle,
    ) -> None:
        self._me = me
        self._catalog = catalog
        self._router = router
        self._registrar = registrar
        self._membership = membership
        self._chronicle = chronicle

    # ----------------------------------------------------------------------------------------------------------- report

    async def report(self, grain: GrainId, *, look_up: bool) -> GrainReport:
        """What this silo knows of the grain, and what the directory says where that is to be asked."""
        entry, entry_unknown = None, ""
        if look_up:
            try:
                async with asyncio.timeout(LOOK_UP_TIMEOUT_S):
                    entry = await self._registrar.lookup(grain)
            except TimeoutError as error:  # of ours, or of the directory's own
                entry_unknown = str(error) or f"the directory did not answer within {LOOK_UP_TIMEOUT_S:g} s"
            except NotExecuted as error:
                entry_unknown = str(error)
        now = asyncio.get_running_loop().time()
        activation = self._catalog.get(grain)
        told = None if activation is None else self._told(activation, now)
        transitions = self._chronicle.of(grain, now)
        if told is not None and told.reachable_s is not None and not _tells_of(transitions, told.reachable_s):
            since = Transition(Fate.ACTIVE, f"under epoch {told.epoch}", ago_s=told.reachable_s)
            transitions = tuple(sorted((*transitions, since), key=_age, reverse=True))
        return GrainReport(self._me, entry, entry_unknown, told, self._router.search(grain), transitions)

    def _told(self, activation: Activation, now: float) -> ActivationReport:
        turns, move = activation.turns, activation.move
        return ActivationReport(
            activation.activation_id,
            activation.epoch,
            _state_of(activation),
            turns.waiting_count,
            turns.running_count,
            max(0.0, now - activation.last_used) if turns.is_idle else None,
            now - activation.opened_at if activation.opened_at is not None and activation.starts_turns else None,
            "" if move is None else self._name_of(move.target),
        )

    def _name_of(self, silo: SiloAddress) -> str:
        row = self._membership.view.row(silo)
        return row.info.name if row is not None else str(silo)

    # ------------------------------------------------------------------------------------------------------- deactivate

    async def deactivate(self, grain: GrainId, within_s: float) -> DeactivationReport:
        """End the activation here as soon as that can be done: running calls end first, what waits goes to a new one.

        Calls that wait for the grain to be placed are tried at once, as if nothing had failed before. The order stands
        though nobody waits for it any more, and may be given again.
        """
        self._catalog.beginnings.forgive(grain)
        self._router.start_over(grain)
        activation = self._catalog.get(grain)
        now = asyncio.get_running_loop().time()
        state = "not active" if activation is None else _state_of(activation)
        log.info("management.deactivate", grain=str(grain), state=state)
        if activation is None:
            self._chronicle.go_on(grain, Fate.ORDERED, "it was not active here", now)
            return DeactivationReport(self._me, DeactivationStatus.NOT_ACTIVE)
        self._chronicle.note(grain, Fate.ORDERED, f"when it was {state}", now)
        activation.end_when_possible(DeactivationReason.ORDERED)
        move = activation.move
        try:
            async with asyncio.timeout(within_s):
                while self._catalog.get(grain) is activation:
                    move = activation.move or move
                    await self._catalog.next_removal()
        except TimeoutError:
            return DeactivationReport(self._me, DeactivationStatus.UNDER_WAY, self._waits_for(activation))
        if move is not None and (not move.outcome.done() or move.outcome.result().moved):
            # it went on with its grain; the order was this activation's, should the move yet be given back
            return DeactivationReport(self._me, DeactivationStatus.MOVED, f"to {self._name_of(move.target)}")
        return DeactivationReport(self._me, DeactivationStatus.DEACTIVATED)

    def _waits_for(self, activation: Activation) -> str:
        if activation.move is not None:
            return f"it is moving to {self._name_of(activation.move.target)}"
        if activation.busy_count:
            return f"its running calls end first: {activation.busy_with}"
        return f"it is {_state_of(activation)}"


def _state_of(activation: Activation) -> GrainState:
    if activation.state in (State.REGISTERING, State.STARTING):
        return GrainState.STARTING
    if activation.move is not None:
        return GrainState.MOVING
    return GrainState.ACTIVE if activation.state is State.OPEN else GrainState.DEACTIVATING


def _tells_of(transitions: tuple[Transition, ...], reachable_s: float) -> bool:
    """Whether the activation that is reachable since then is among them."""
    return any(
        each.state == Fate.ACTIVE and each.ago_s is not None and each.ago_s <= reachable_s + SAME_MOMENT_S
        for each in transitions
    )


def _age(transition: Transition) -> float:
    return float("inf") if transition.ago_s is None else transition.ago_s
