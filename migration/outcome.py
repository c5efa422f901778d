"""What a move was asked for, and what became of it."""

from __future__ import annotations

import enum

import msgspec

from silo.directory.addresses import GrainId, SiloAddress


class MoveReason(enum.StrEnum):
    """Why a grain moves; on every log line, metric and outcome of a move."""

    ADMIN = "admin"
    SELF = "self"
    SILO_STOPPING = "silo_stopping"
    VERSION_UPGRADE = "version_upgrade"
    REBALANCE = "rebalance"
    REPARTITION = "repartition"


class MoveStatus(enum.StrEnum):
    """How a move ended. After MOVED the grain is elsewhere; after REFUSED and ABORTED where it was, with its state."""

    MOVED = "moved"
    REFUSED = "refused"
    """Nothing was stopped: the grain, its kind, the target or the cluster does not allow it; `why` says which."""
    ABORTED = "aborted"
    """It was begun and taken back: a failure, a refusal or a timeout before the commit, or no target to open it."""
    NOT_ACTIVE = "not_active"
    """The grain has no activation; there is nothing to move."""
    LOST = "lost"
    """A silo was declared dead in the middle; the directory knows where the grain is."""
    UNKNOWN = "unknown"
    """The order was given, and what became of it could not be heard."""


class MigrationOutcome(msgspec.Struct, frozen=True, array_like=True):
    """What became of one move: where from, where to, and what it cost; or why not."""

    grain: GrainId
    status: MoveStatus
    source: SiloAddress | None = None
    target: SiloAddress | None = None
    reason: str = MoveReason.ADMIN
    why: str = ""
    """Why it was refused or aborted; empty for a move that went through."""
    pause_s: float = 0.0
    """From the source's last admission to the target's opening, by the source's clock."""
    payload_bytes: int = 0
    held_calls: int = 0
    epoch: int = 0
    source_name: str = ""
    target_name: str = ""
    on_busy: str = ""
    """How running calls were treated: `wait`, `stay` or `interrupt`; empty where it did not come to that."""

    @property
    def moved(self) -> bool:
        return self.status is MoveStatus.MOVED

    def __str__(self) -> str:
        if self.moved:
            held = f"{self.held_calls} {'call' if self.held_calls == 1 else 'calls'} held"
            return (
                f"{self.grain} moved from {self.source_name or self.source} to {self.target_name or self.target}:"
                f" pause {self.pause_s * 1000:.1f} ms, {self.payload_bytes} bytes, {held}"
            )
        return f"{self.grain} {self.status.value.replace('_', ' ')}: {self.why or 'no reason given'}"
