"""Grain storage in memory: the twin of the one on Redis, for simulation and unit tests.

Several silos of one simulated cluster share `StorageRows`, each through a `MemoryStorage` of its own, so that faults
can be given to each silo's way to the storage apart.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from silo.directory.addresses import GrainId
from silo.persistence.contract import (
    Change,
    Claim,
    Conflicting,
    Reading,
    StoredState,
    Superseded,
    WriteOutcome,
    Written,
)

StorageCall = Literal["read", "write"]
Hook = Callable[[StorageCall], Awaitable[None]]
"""Awaited before a call is carried out, or after it but before it is answered. It may wait, and it may raise: before,
StorageUnavailable, and nothing has changed; after, StorageOutcomeUnknown, and the answer is lost."""


@dataclass(slots=True)
class _Row:
    epoch: int = 0
    activation: str = ""
    states: dict[str, StoredState] = field(default_factory=dict[str, StoredState])


class StorageRows:
    """The states and fences of all grains: what Redis holds for the other implementation."""

    def __init__(self) -> None:
        self._rows: dict[GrainId, _Row] = {}

    def read(self, claim: Claim, names: Sequence[str]) -> Reading:
        row = self._rows.setdefault(claim.grain, _Row())
        if not _claimed(row, claim):
            return Superseded(row.epoch)
        return [row.states.get(name, StoredState()) for name in names]

    def write(self, claim: Claim, change: Change) -> WriteOutcome:
        row = self._rows.setdefault(claim.grain, _Row())
        standing = row.states.get(change.name)
        if standing is not None and standing.etag == change.etag:
            return Written()
        if not _may_claim(row, claim):
            return Superseded(row.epoch)
        if standing is None:
            if change.replaces:
                return Conflicting(StoredState().etag)
        elif standing.etag != change.expected:
            return Conflicting(standing.etag)
        _claimed(row, claim)
        row.states[change.name] = StoredState(change.etag, change.body)
        return Written()

    def state(self, grain: GrainId, name: str) -> StoredState:
        """What stands there, for tests: asks for nothing, and claims nothing."""
        row = self._rows.get(grain, _Row())
        return row.states.get(name, StoredState())

    def put(self, grain: GrainId, name: str, state: StoredState) -> None:
        """Change it behind everybody's back, for tests."""
        self._rows.setdefault(grain, _Row()).states[name] = state


class MemoryStorage:
    """A GrainStorage without a server; contract.py says what its methods promise.

    Args:
        rows: what it reads and writes; its own if not given.
        before, after: hooks for faults, see `Hook`.
    """

    def __init__(
        self, rows: StorageRows | None = None, *, before: Hook | None = None, after: Hook | None = None
    ) -> None:
        self.rows = StorageRows() if rows is None else rows
        self._before = before
        self._after = after

    async def open(self) -> None:
        """Memory will do."""

    async def read(self, claim: Claim, names: Sequence[str]) -> Reading:
        await self._run(self._before, "read")
        answer = self.rows.read(claim, names)
        await self._run(self._after, "read")
        return answer

    async def write(self, claim: Claim, change: Change) -> WriteOutcome:
        await self._run(self._before, "write")
        answer = self.rows.write(claim, change)
        await self._run(self._after, "write")
        return answer

    async def close(self) -> None:
        """There is nothing to let go of."""

    @staticmethod
    async def _run(hook: Hook | None, call: StorageCall) -> None:
        if hook is not None:
            await hook(call)


def _may_claim(row: _Row, claim: Claim) -> bool:
    return claim.epoch > row.epoch or (claim.epoch, claim.activation) == (row.epoch, row.activation)


def _claimed(row: _Row, claim: Claim) -> bool:
    """Raise the fence to the claim's epoch; False where it stands higher, or under another activation's."""
    if not _may_claim(row, claim):
        return False
    row.epoch, row.activation = claim.epoch, claim.activation
    return True
