"""Why an activation starts, ends or moves: the values that lifecycle hooks are told."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class ActivationReason(enum.StrEnum):
    """Why `on_activate` runs."""

    CALL = "call"
    """Somebody called the grain and it was nowhere active."""
    MIGRATION = "migration"
    """The grain arrived from another silo; `on_rehydrate` has run."""
    MIGRATION_ABORTED = "migration_aborted"
    """A move failed after `on_deactivate` had run; this is the same instance, with its state."""


class DeactivationReason(enum.StrEnum):
    """Why `on_deactivate` runs. It does not run where the grain is another activation's: nothing counts there."""

    IDLE = "idle"
    """Nobody called for the kind's `collect_after`."""
    MIGRATING = "migrating"
    """The grain goes on at another silo; soft state travels, so there may be nothing to save."""
    SHUTTING_DOWN = "shutting_down"
    """The silo ends and no other silo could take the grain."""
    APPLICATION = "application"
    """The grain asked for it: `self.deactivate()`."""
    ORDERED = "ordered"
    """An operator asked for it: `client.management.deactivate` or `silo deactivate`."""
    STALE_STATE = "stale_state"
    """What is stored of its persistent state is, or may be, not what it has read and written; the next call finds a new
    activation, which reads it."""


@dataclass(frozen=True, slots=True)
class MigrationNotice:
    """What `on_migrating` is told, before the source holds new calls back.

    Args:
        reason: who wants the move and why, as text: `application`, `admin`, `drain`, …
        target: the name of the silo that the grain goes to.
        left_s: the time that running calls have to end; None for as long as they need.
    """

    reason: str
    target: str
    left_s: float | None = None


@dataclass(frozen=True, slots=True)
class Departure:
    """What `on_dehydrate` may want to know of the move.

    Args:
        deactivation_error: what `on_deactivate` raised, where it did: soft state goes with the grain all the same.
    """

    reason: str = ""
    target: str = ""
    deactivation_error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Arrival:
    """What `on_rehydrate` may want to know of the move.

    Args:
        version: the grain kind's `version` at the source.
        app_version: the application's version at the source; empty where it has none.
    """

    reason: str = ""
    version: int = 1
    app_version: str = ""
