"""How a silo leaves without a loss: it moves what it hosts, and has its peers confirm that they send nothing more."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any

from silo.activation.activation import Activation
from silo.activation.catalog import Catalog
from silo.directory.addresses import SiloAddress
from silo.directory.errors import MembershipUnavailable
from silo.directory.membership import TurnRight
from silo.logs import get_logger
from silo.messaging.links import Links
from silo.messaging.permissions import Role
from silo.migration.lifecycle import DeactivationReason
from silo.migration.outcome import MoveReason, MoveStatus
from silo.moving.moves import Moves
from silo.routing.book import CallBook
from silo.routing.router import Router
from silo.tasks import cancelled
from silo.wire.frames import GoAway

log = get_logger(__name__)

TRIES_MAX = 3
"""How often a leaving silo tries to move a grain, each time elsewhere than the time before where that is possible."""
SETTLE_S = 5.0
"""How long a leaving silo waits for its peers to confirm that they have what it sent, and send it nothing more."""


LEAVE_BEHIND_AT = 0.75
"""After this share of its time a silo that leaves waits for running turns no longer: the rest is for moving grains."""


async def while_leased(work: Coroutine[Any, Any, None], right: TurnRight, return_within_s: float) -> None:
    """Do the work of leaving for as long as this silo has a lease: without one it could only wait.

    Args:
        return_within_s: how long a lease that was lost may take to come back: it does at once where this process stood
            still, and does not while Redis is away.

    Raises:
        MembershipUnavailable: the lease was lost before the work was done, and did not come back.
    """
    working = asyncio.create_task(work, name="leave")
    lapsing = asyncio.create_task(_lapsed(right, return_within_s), name="watch the lease of a leaving silo")
    try:
        await asyncio.wait({working, lapsing}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            lapsing.result()
            raise MembershipUnavailable("its lease has run out, since Redis did not answer")
        working.result()
    finally:
        await cancelled((working, lapsing))


async def _lapsed(right: TurnRight, return_within_s: float) -> None:
    while True:
        await right.unleased()
        try:
            async with asyncio.timeout(return_within_s):
                await right.leased()
        except TimeoutError:
            return


async def move_everything(catalog: Catalog, moves: Moves, leave_by: float | None = None) -> None:
    """Move what can be moved, deactivate the rest; what arrives or activates meanwhile as well.

    A silo that does not take a grain is no reason to give up its state: others may, or it may a moment later.

    Args:
        leave_by: the loop's time from which on grains move though turns of theirs still run.
    """
    failed: dict[str, list[SiloAddress]] = {}
    """Where activations could not go, by their ids."""
    while activations := list(catalog):
        outcomes = await asyncio.gather(
            *(
                moves.begin(
                    activation,
                    None,
                    MoveReason.SILO_STOPPING,
                    leave_by=leave_by,
                    avoiding=failed.get(activation.activation_id, ())[-1:],
                )
                for activation in activations
            )
        )
        staying: list[tuple[Activation, str]] = []
        again = False
        for activation, outcome in zip(activations, outcomes, strict=True):
            if outcome.status in (MoveStatus.MOVED, MoveStatus.NOT_ACTIVE):
                continue
            tried = failed.setdefault(activation.activation_id, [])
            if outcome.target is not None:
                tried.append(outcome.target)
            if outcome.target is None or len(tried) >= TRIES_MAX:
                staying.append((activation, outcome.why))
            else:
                again = True
        if staying:  # one line for all: where a whole cluster stops, that is every grain
            first, why = staying[0]
            log.info("drain.deactivated", grains=len(staying), first=str(first.id), why=why)
        for activation, why in staying:
            log.debug("drain.grain_deactivated", grain=str(activation.id), why=why)
        # All at once: one that takes its time to deactivate does not take that of the others.
        failures = await asyncio.gather(
            *(catalog.deactivate(activation, DeactivationReason.SHUTTING_DOWN) for activation, _ in staying),
            return_exceptions=True,
        )
        for failure in failures:
            if failure is not None:
                raise failure
        if not again and all(catalog.get(each.id) is each for each in activations):
            await catalog.next_removal()  # they are on their way already


async def say_last_words(links: Links, book: CallBook, router: Router) -> None:
    """Have every peer confirm that it sends nothing more, then finish what is here: own calls, and those of others."""
    for link in links.all():
        if link.peer.role is Role.SILO:
            link.send(GoAway())
    await _settle(links)
    while len(book) or router.arrived_count:
        await book.emptied()
        await router.emptied()
    await _settle(links)


async def _settle(links: Links) -> None:
    """Wait until the peers have what was sent to them; those that do not say so in time may be gone.

    A link between two connections is waited for like any other: what is lost with it may be an answer.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(SETTLE_S):
            await asyncio.gather(*(link.drained() for link in links.all()))
