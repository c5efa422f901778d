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
    be_quiet()
    try:
        yield
    finally:
        structlog.configure(**before)
        logging.disable(level)


def be_quiet() -> None:
    """Log nothing in this process from now on."""
    logging.disable(logging.CRITICAL)
    structlog.configure(processors=[_drop])


def _drop(_logger: object, _method: str, _event: object) -> str:
    raise structlog.DropEvent
