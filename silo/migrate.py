"""Moving a grain, from wherever a reference to it is held."""

from __future__ import annotations

from typing import Any

from silo.caller import Caller
from silo.directory.addresses import SiloAddress
from silo.kinds import OnBusy
from silo.migration.outcome import MigrationOutcome, MoveReason
from silo.reference import Reference, ReferenceUnbound, grain_id


async def migrate(
    reference: Any,
    *,
    to: str | SiloAddress | None = None,
    reason: str = MoveReason.ADMIN,
    force: bool = False,
    on_busy: OnBusy | None = None,
) -> MigrationOutcome:
    """Move the grain behind a reference to another silo, while it is being called. Activates nothing.

    The same verb in a client, in a silo, and in a grain about another grain. About itself a grain says
    `self.migrate(to=…)`.

    Args:
        reference: as `client.grain(...)` or `self.grain(...)` gives one.
        to: the name or address of a silo; without one, placement decides.
        force: move the grain even if its kind says `migratable=False`.
        on_busy: how to treat calls that run: `"wait"` for them, let the grain `"stay"`, or `"interrupt"` them; what its
            kind says if left out.

    Raises:
        ValueError: `on_busy` is none of these.
        NotExecuted, OutcomeUnknown: the order could not be given, or its outcome could not be heard.
    """
    grain = grain_id(reference)
    target = reference._silo_way[0] if isinstance(reference, Reference) else None  # pyright: ignore[reportPrivateUsage] - a method of the grain may have any other name
    if not isinstance(target, Caller):
        raise ReferenceUnbound(f"{grain}: only a reference that a client or a silo has made can be moved by")
    return await target.move(grain, to, reason, force, on_busy)
