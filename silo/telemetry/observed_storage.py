"""A grain storage that is timed: every read and write, and what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import TypeVar

from silo.persistence.contract import Change, Claim, Conflicting, GrainStorage, Reading, Superseded, WriteOutcome
from silo.telemetry.instruments import Instruments

Answer = TypeVar("Answer")


class ObservedStorage:
    """Passes everything on to another storage, and reports how it went."""

    def __init__(self, storage: GrainStorage, instruments: Instruments) -> None:
        self._storage = storage
        self._instruments = instruments

    async def open(self) -> None:
        await self._storage.open()

    async def read(self, claim: Claim, names: Sequence[str]) -> Reading:
        return await self._observe("read", claim, self._storage.read(claim, names))

    async def write(self, claim: Claim, change: Change) -> WriteOutcome:
        operation = "clear" if change.body is None else "write"
        return await self._observe(operation, claim, self._storage.write(claim, change))

    async def close(self) -> None:
        await self._storage.close()

    async def _observe(self, operation: str, claim: Claim, asking: Awaitable[Answer]) -> Answer:
        began = asyncio.get_running_loop().time()
        result = "error"
        try:
            answer = await asking
            result = "conflict" if isinstance(answer, (Conflicting, Superseded)) else "ok"
            return answer
        finally:
            labels = {"op": operation, "result": result, "type": self._instruments.kind(claim.grain.kind)}
            self._instruments.storage_duration.record(asyncio.get_running_loop().time() - began, labels)
