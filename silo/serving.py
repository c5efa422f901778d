"""One silo process: it serves until it is told to stop, then drains and ends."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from silo.host import Silo
from silo.lifespan import READY, StopRequest, stop_request
from silo.logs import get_logger
from silo.settings import SiloSettings

log = get_logger(__name__)


async def serve(modules: Sequence[ModuleType], settings: SiloSettings, *, with_parent: bool = False) -> int:
    """Run one silo that hosts the grain kinds of the modules until it is told to stop; returns the exit code."""
    up = asyncio.Event()
    async with stop_request(with_parent=with_parent, stacks=True) as request:
        life = asyncio.create_task(_live(modules, settings, request, up), name="life of the silo")
        asked = asyncio.create_task(request.made(), name="stop request")
        try:
            await asyncio.wait({life, asked}, return_when=asyncio.FIRST_COMPLETED)
            if not up.is_set():
                life.cancel()  # told to stop while it was starting: there is nothing to drain
            await asyncio.wait({life})
            return 0 if life.cancelled() else life.result()
        finally:
            await _end({life, asked})


async def _live(modules: Sequence[ModuleType], settings: SiloSettings, request: StopRequest, up: asyncio.Event) -> int:
    silo = Silo(*modules, settings=settings)
    async with silo:
        up.set()
        print(f"{READY} {settings.name or silo.endpoint} of cluster {settings.cluster} on {silo.endpoint}", flush=True)
        stopped = asyncio.create_task(silo.wait_stopped(), name="end of the silo")
        asked = asyncio.create_task(request.made(), name="stop request")
        try:
            await asyncio.wait({stopped, asked}, return_when=asyncio.FIRST_COMPLETED)
            if not request.is_made:
                stopped.result()
                if silo.drained_by_admin:
                    log.info("silo.ended", reason="an administrator drained it")
                    return 0
                log.error("silo.ended", reason="it stopped although nobody told it to; see the events before this one")
                return 1
            log.info("silo.stopping", because=request.because)
            await silo.drain_and_stop()
            return 0
        finally:
            await _end({stopped, asked})


async def _end(tasks: set[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
