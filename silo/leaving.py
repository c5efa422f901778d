"""How a silo leaves without a loss: it moves what it hosts, and has its peers confirm that they send nothing more."""

from __future__ import annotations

import asyncio
import contextlib

from silo.activation.catalog import Catalog
from silo.logs import get_logger
from silo.messaging.links import Links
from silo.messaging.permissions import Role
from silo.migration.lifecycle import DeactivationReason
from silo.migration.outcome import MoveReason, MoveStatus
from silo.moving.moves import Moves
from silo.routing.book import CallBook
from silo.wire.frames import GoAway

log = get_logger(__name__)

SETTLE_S = 5.0
"""How long a leaving silo waits for its peers to confirm that they have what it sent, and send it nothing more."""


LEAVE_BEHIND_AT = 0.75
"""After this share of its time a silo that leaves waits for running turns no longer: the rest is for moving grains."""


async def move_everything(catalog: Catalog, moves: Moves, leave_by: float | None = None) -> None:
    """Move what can be moved, deactivate the rest; what arrives or activates meanwhile as well.

    Args:
        leave_by: the loop's time from which on grains move though turns of theirs still run.
    """
    while activations := list(catalog):
        outcomes = await asyncio.gather(
            *(moves.begin(activation, None, MoveReason.SILO_STOPPING, leave_by=leave_by) for activation in activations)
        )
        staying = [
            (activation, outcome.why)
            for activation, outcome in zip(activations, outcomes, strict=True)
            if outcome.status not in (MoveStatus.MOVED, MoveStatus.NOT_ACTIVE)
        ]
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
        if all(catalog.get(each.id) is each for each in activations):
            await catalog.next_removal()  # they are on their way already


async def say_last_words(links: Links, book: CallBook) -> None:
    """Have every peer confirm that it sends nothing more, then finish what is here."""
    for link in links.all():
        if link.peer.role is Role.SILO:
            link.send(GoAway())
    await _settle(links)
    await book.emptied()
    await _settle(links)


async def _settle(links: Links) -> None:
    """Wait until the peers have what was sent to them; those that do not say so in time may be gone."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(SETTLE_S):
            await asyncio.gather(*(link.drained() for link in links.all() if link.attached))
