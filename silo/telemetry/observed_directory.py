"""A directory that is timed: every batch, and what came of each grain in it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

from silo.directory.addresses import Entry, GrainId, SiloAddress
from silo.directory.contract import Claim, GrainDirectory, Inquiry, Registration, Standing
from silo.telemetry.instruments import Instruments

Question = TypeVar("Question")
Answer = TypeVar("Answer")


class ObservedDirectory:
    """Passes everything on to another directory, and reports how it went."""

    def __init__(self, directory: GrainDirectory, instruments: Instruments) -> None:
        self._directory = directory
        self._instruments = instruments

    async def open(self) -> None:
        await self._directory.open()

    def part_of(self, bucket: int) -> str:
        return self._directory.part_of(bucket)

    async def lookup(self, grains: Sequence[GrainId]) -> list[Entry | None]:
        return await self._observe(
            "lookup",
            self._directory.lookup,
            grains,
            lambda entries: ("absent" if entry is None else "ok" for entry in entries),
        )

    async def register(self, registrations: Sequence[Registration]) -> list[Entry | None]:
        def results(entries: Sequence[Entry | None]) -> Iterable[str]:
            for wanted, entry in zip(registrations, entries, strict=True):
                yield "ok" if entry is not None and entry.activation == wanted.activation else "conflict"

        return await self._observe("register", self._directory.register, registrations, results)

    async def unregister(self, entries: Sequence[Entry]) -> list[bool]:
        return await self._observe(
            "unregister",
            self._directory.unregister,
            entries,
            lambda removed: ("ok" if each else "stale" for each in removed),
        )

    async def claim(self, claims: Sequence[Claim]) -> list[Standing | None]:
        return await self._observe(
            "claim",
            self._directory.claim,
            claims,
            lambda answers: ("error" if answer is None else "ok" for answer in answers),
        )

    async def inquire(self, inquiries: Sequence[Inquiry]) -> list[Standing | None]:
        return await self._directory.inquire(inquiries)

    def entries(self, silo: SiloAddress | None = None) -> AsyncIterator[list[Entry]]:
        return self._directory.entries(silo)

    async def close(self) -> None:
        await self._directory.close()

    async def _observe(
        self,
        operation: str,
        ask: Callable[[Sequence[Question]], Awaitable[list[Answer]]],
        questions: Sequence[Question],
        results: Callable[[Sequence[Answer]], Iterable[str]],
    ) -> list[Answer]:
        began = asyncio.get_running_loop().time()
        counts: Counter[str] = Counter({"error": len(questions)})
        try:
            answers = await ask(questions)
            counts = Counter(results(answers))
            return answers
        finally:
            took_s = asyncio.get_running_loop().time() - began
            outcome = "error" if counts["error"] else "ok"
            self._instruments.directory_duration.record(took_s, {"op": operation, "result": outcome})
            for result, count in counts.items():
                self._instruments.directory_operations.add(count, {"op": operation, "result": result})
