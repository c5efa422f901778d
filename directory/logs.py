"""How everything here logs: each record is an event with a dotted, stable name, and fields.

Records go through the standard library's `logging` and read well under anybody's formatter, as `silo.ready cluster=prod
silo=…`; `silo.logs` renders those of our own processes.
"""

from __future__ import annotations

import logging
from typing import Any, Final, cast

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

FIELDS: Final = "silo_event"
"""The attribute of a log record that carries the event's fields."""


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """The logger of a module: `log = get_logger(__name__)`, then `log.info("silo.ready", endpoint=…)`."""
    logger = structlog.wrap_logger(
        logging.getLogger(name), wrapper_class=structlog.stdlib.BoundLogger, processors=to_standard()
    )
    return cast(structlog.stdlib.BoundLogger, logger.bind())  # once: unbound, it makes a logger anew for each event


def to_standard() -> list[Processor]:
    """What turns a structlog event into a record of the standard library."""
    return [
        structlog.stdlib.filter_by_level,
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.PositionalArgumentsFormatter(),
        _hand_over,
    ]


def _hand_over(_logger: WrappedLogger, _method: str, event: EventDict) -> tuple[tuple[str], dict[str, Any]]:
    """Make it a standard record that reads well under anybody's formatter, with the fields attached for ours."""
    passed_on = {key: event.pop(key) for key in ("exc_info", "stack_info", "stacklevel") if key in event}
    name = str(event.pop("event"))
    text = " ".join([name, *(f"{key}={value}" for key, value in event.items())])
    return (text,), {**passed_on, "extra": {FIELDS: {"event": name, **event}}}
