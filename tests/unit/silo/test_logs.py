"""Logs are events with fields, whoever writes them and wherever they go."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Generator
from pathlib import Path

import pytest
import structlog

import silo
from silo.directory.addresses import SiloAddress
from silo.directory.lease_events import AdoptView
from silo.directory.membership import SiloInfo, SiloRow, SiloStatus, Table, View
from silo.directory.membership_board import MembershipBoard
from silo.directory.turn_right import LeasedRight
from silo.logs import configure, get_logger


@pytest.fixture(autouse=True)
def _root_logger_as_before() -> Generator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)
    structlog.reset_defaults()


def _lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_record_is_one_json_object_with_its_fields_under_any_name() -> None:
    stream = io.StringIO()
    configure("info", "json", stream)
    get_logger("silo.host").info("silo.ready", name="silo-1", args="100 %s", grains={"a"})
    (line,) = _lines(stream)
    assert line["event"] == "silo.ready"
    assert line["level"] == "info"
    assert line["logger"] == "silo.host"
    assert line["name"] == "silo-1"
    assert line["args"] == "100 %s"
    assert str(line["ts"]).endswith("Z")


def test_records_of_the_standard_library_and_of_structlog_come_out_alike() -> None:
    stream = io.StringIO()
    configure("info", "json", stream)
    logging.getLogger("silo.directory").warning("directory.conflict", extra={"grain": "room/lobby"})
    logging.getLogger("application").info("hello %s", "you")
    structlog.stdlib.get_logger("application").info("app.ready", port=1)
    conflict, hello, ready = _lines(stream)
    assert (conflict["event"], conflict["grain"]) == ("directory.conflict", "room/lobby")
    assert hello["event"] == "hello you"
    assert (ready["event"], ready["port"], ready["logger"]) == ("app.ready", 1, "application")


def test_where_the_screen_is_the_applications_ours_are_told_from_warning_on() -> None:
    stream = io.StringIO()
    configure("info", "json", stream, quiet=True)
    get_logger("silo.membership").info("membership.member")
    get_logger("silo.membership").warning("membership.namesake")
    logging.getLogger("application").info("hello")
    assert [line["event"] for line in _lines(stream)] == ["membership.namesake", "hello"]
    configure("info", "json", stream)
    get_logger("silo.runtime").info("silo.ready")
    assert _lines(stream)[-1]["event"] == "silo.ready"


def test_a_traceback_is_told_without_the_values_of_variables() -> None:
    stream = io.StringIO()
    configure("info", "json", stream)

    def fail() -> None:
        password = "hunter" + "2"
        raise LookupError(len(password))

    try:
        fail()
    except LookupError:
        get_logger("silo").exception("grain.failed", grain="room/lobby")
    (line,) = _lines(stream)
    assert line["level"] == "error"
    assert "LookupError: 7" in str(line["exception"])
    assert "hunter2" not in stream.getvalue()


def test_what_the_directory_tells_has_fields_too() -> None:
    stream = io.StringIO()
    configure("info", "json", stream)
    board = MembershipBoard(LeasedRight())
    row = SiloRow(SiloAddress("10.0.0.1:7000", 1), SiloInfo("silo-1"), SiloStatus.ACTIVE, joined=1, seen=1, seq=1)
    board.post([AdoptView(View(Table("run", 1, (row,))))])
    (line,) = _lines(stream)
    assert (line["event"], line["logger"]) == ("membership.member", "silo.membership")
    assert (line["silo"], line["name"], line["status"]) == ("10.0.0.1:7000@1", "silo-1", "active")


def test_what_is_below_the_level_costs_no_line() -> None:
    stream = io.StringIO()
    configure("warning", "json", stream)
    get_logger("silo").info("silo.ready")
    assert stream.getvalue() == ""


def test_text_for_the_eye_has_event_and_fields() -> None:
    stream = io.StringIO()
    configure("info", "console", stream)
    get_logger("silo").info("silo.ready", endpoint="127.0.0.1:1")
    assert "silo.ready" in stream.getvalue()
    assert "127.0.0.1:1" in stream.getvalue()


LOG_CALL = re.compile(r'\b_?log\.(?:debug|info|warning|error|exception|critical|log)\(\s*(?:level,\s*)?("[^"]*"|\w+)')
EVENT = re.compile(r'"[a-z_]+(\.[a-z_]+)+"')


def test_all_of_us_log_events_with_fields_by_one_seam() -> None:
    package = Path(silo.__file__).parent
    folders = (package, *(package / linked for linked in ("directory", "placement", "migration")))
    sources = {path.relative_to(package): path.read_text(encoding="utf-8") for f in folders for path in f.rglob("*.py")}
    names = [name for text in sources.values() for name in LOG_CALL.findall(text)]
    assert len(names) > 50
    assert [name for name in names if not EVENT.fullmatch(name)] == ["event"]
    by_hand = {str(path) for path, text in sources.items() if "logging.getLogger(" in text}
    assert by_hand == {"directory/logs.py", "logs.py"}


def test_without_configuration_records_reach_the_applications_own_handlers(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        get_logger("silo.host").info("silo.ready", endpoint="127.0.0.1:1")
    assert caplog.messages == ["silo.ready endpoint=127.0.0.1:1"]
