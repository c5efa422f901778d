"""An ASGI application, served by uvicorn at an endpoint: the network of peers that have none of their own."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import AsyncGenerator
from typing import Any, Final

BACKLOG: Final = 2048


@contextlib.asynccontextmanager
async def served(application: Any, endpoint: str) -> AsyncGenerator[None]:
    uvicorn: Any = importlib.import_module("uvicorn")
    address, _, port = endpoint.rpartition(":")
    config = uvicorn.Config(
        application,
        host=address,
        port=int(port),
        log_level="critical",
        access_log=False,
        lifespan="off",
        loop="none",
        backlog=BACKLOG,
    )
    server = uvicorn.Server(config)
    config.load()
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    try:
        yield
    finally:
        await server.shutdown()
