"""Silence: what the runtime logs while faults are played tells nobody anything new."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Generator

import structlog


@contextlib.contextmanager
def quiet() -> Generator[None]:
    """Log nothing in this block."""
    before = structlog.get_config()
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    structlog.configure(processors=[_drop])
    try:
        yield
    finally:
        structlog.configure(**before)
        logging.disable(level)


def _drop(_logger: object, _method: str, _event: object) -> str:
    raise structlog.DropEvent
