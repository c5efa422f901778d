"""Where the logs of our own processes go: one JSON object per line, or coloured text to a terminal.

Everything goes through the standard library's `logging`, under loggers named after our modules: an application that
embeds a silo sees the records wherever it sends its own, as `silo.ready cluster=prod silo=…`, and needs none of this.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, MutableMapping
from datetime import UTC, datetime
from typing import Any, Literal, TextIO, cast

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from silo.directory.logs import FIELDS, get_logger, to_standard

__all__ = ["configure", "get_logger"]

OURS = "silo"
"""The logger above all of ours."""
QUIET = ("asyncio", "grpc", "opentelemetry")
"""Loggers of libraries whose debug output helps nobody here; they speak from `warning` on."""


def configure(
    level: str = "info",
    form: Literal["auto", "json", "console"] = "auto",
    stream: TextIO | None = None,
    *,
    quiet: bool = False,
) -> None:
    """Send this process's logs to the stream (standard error): as JSON lines, or for the eye where it is a terminal.

    `quiet` keeps our own to warnings and errors, and leaves the application's as they are.
    """
    out = stream if stream is not None else sys.stderr
    if form == "auto":
        form = "console" if out.isatty() else "json"
    handler = logging.StreamHandler(out)
    handler.setFormatter(_formatter(form))
    root = logging.getLogger()
    for former in root.handlers[:]:
        root.removeHandler(former)
    root.addHandler(handler)
    root.setLevel(level.upper())
    logging.getLogger(OURS).setLevel(max(logging.WARNING, root.level) if quiet else logging.NOTSET)
    for name in QUIET:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
    logging.captureWarnings(True)
    structlog.configure(  # the application's own structlog loggers take the same way
        processors=to_standard(),
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
    )


def _formatter(form: Literal["json", "console"]) -> logging.Formatter:
    # Tracebacks as text, without the values of local variables: those are the application's, and may be secret.
    render: list[Processor]
    if form == "json":
        render = [
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(default=str, ensure_ascii=False),
        ]
    else:
        render = [
            structlog.dev.ConsoleRenderer(timestamp_key="ts", exception_formatter=structlog.dev.plain_traceback),
        ]
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[structlog.stdlib.ExtraAdder(), _unfold, structlog.stdlib.add_log_level, _stamp],
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render],
    )


def _unfold(_logger: WrappedLogger, _method: str, event: EventDict) -> MutableMapping[str, Any]:
    """Fields of our own records take the place of their text; records of others keep their text as the event."""
    fields = cast("Mapping[str, Any] | None", event.pop(FIELDS, None))
    return {**event, **fields} if fields is not None else event


def _stamp(_logger: WrappedLogger, _method: str, event: EventDict) -> MutableMapping[str, Any]:
    """When the record was made, not when it was written; and by which logger, at the head of the line."""
    record = cast(logging.LogRecord, event["_record"])
    moment = datetime.fromtimestamp(record.created, tz=UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return {"ts": moment, "level": event.pop("level"), "event": event.pop("event"), "logger": record.name, **event}
