"""The command `silo`: clear about mistakes, and its exit codes are for scripts."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from pathlib import Path

import pytest

from silo import terminal
from silo.application import import_application
from silo.cli import EXIT_CODES, ExitCode, exit_code, invoke
from silo.directory.addresses import GrainId, SiloAddress
from silo.directory.errors import (
    CallTimeout,
    DirectoryUnavailable,
    EndpointInUse,
    HandshakeRefused,
    InvalidIdentity,
    NoGateway,
    Overloaded,
    SiloError,
)
from silo.migration.outcome import MigrationOutcome, MoveStatus


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.upper().startswith("SILO_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["frob"], "No such command 'frob' (see `silo --help`)"),
        (["run"], "Missing argument 'MODULE' (see `silo run --help`)"),
        (["run", "app"], "no Redis is named: give --redis URL or set SILO_REDIS"),
        (["run", "app", "--redis", "redis://x", "--clutser", "y"], "No such option: --clutser"),
        (["run", "no_such_module", "--redis", "redis://x"], "there is no module 'no_such_module'"),
        (["run", "app.py", "--redis", "redis://x"], "'app.py' is a file; name the module as in `import`"),
        (["run", "app", "--redis", "redis://x", "--listen", "0.0.0.0:7000"], "--insecure"),
        (["run", "app", "--redis", "redis://x", "--meta", "zone"], "--meta takes name=value, not 'zone'"),
        (["run", "app", "--redis", "redis://x", "--set", "hops=3"], "hops: there is no such setting"),
        (["run", "app", "--redis", "redis://x", "--log-level", "loud"], "telemetry.log_level"),
        (["run", "app", "--redis", "redis://x", "--set", "telemetry.log_level=loud"], "telemetry.log_level"),
        (["dev", "json", "--set", "telemetry.log_level=loud"], "telemetry.log_level"),
        (["run", "app", "--redis", "redis://x", "--loop", "fast"], "Invalid value for '--loop': 'fast' is not one of"),
        (["dev", "json", "no_such_module"], "there is no module 'no_such_module'"),
        (["dev", "json", "--once"], "`async def main(client)`, and json has none"),
        (["migrate", "lobby", "--to", "silo-2"], "'lobby' names no grain: write kind/key"),
        (["migrate", "room/lobby", "--on-busy", "maybe"], "'maybe' is not one of"),
        (["migrate", "room/lobby", "--to", "silo-2"], "which cluster? Give --redis URL"),
        (["status"], "which cluster? Give --redis URL"),
        (["status", "--redis", "redis://x", "--timeout", "-1"], "'--timeout': a time above 0 is wanted, not -1"),
        (["cordon", "silo-1"], "which cluster? Give --redis URL"),
        (["uncordon"], "Missing argument 'SILO'"),
        (["grains", "get", "lobby"], "'lobby' names no grain: write kind/key"),
        (["grains", "get", "room/lobby"], "which cluster? Give --redis URL"),
        (["deactivate", "lobby"], "'lobby' names no grain: write kind/key"),
        (["deactivate", "room/lobby"], "which cluster? Give --redis URL"),
        (["token"], "set SILO_CLUSTER_TOKEN"),
        (["config", "--config", "absent.toml"], "the settings file absent.toml cannot be read"),
    ],
)
def test_what_is_not_understood_ends_with_64_and_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(arguments) == 64
    told = capsys.readouterr()
    assert told.err.startswith("silo: ")
    assert message in told.err
    assert told.out == ""


def test_a_module_that_fails_on_import_shows_its_traceback_and_no_frames_of_ours(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken_application.py").write_text("import no_such_dependency\n", encoding="utf-8")
    assert invoke(["run", "broken_application", "--redis", "redis://x"]) == ExitCode.USAGE
    told = capsys.readouterr().err
    first, *rest = told.splitlines()
    what = "ModuleNotFoundError: No module named 'no_such_dependency'"
    assert first == f"silo: module 'broken_application' cannot be imported: {what}"
    assert [line.strip() for line in rest] == [
        "Traceback (most recent call last):",
        f'File "{tmp_path / "broken_application.py"}", line 1, in <module>',
        "import no_such_dependency",
        what,
    ]


def test_the_application_is_found_in_the_working_directory(tmp_path: Path) -> None:
    (tmp_path / "an_application.py").write_text("ANSWER = 42\n", encoding="utf-8")
    assert import_application("an_application").ANSWER == 42


def test_config_shows_values_and_where_they_come_from(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SILO_CLUSTER", "prod")
    assert invoke(["config", "--set", "calls.hops_max=7", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["cluster"] == {"value": "prod", "source": "SILO_CLUSTER"}
    assert shown["calls.hops_max"] == {"value": "7", "source": "flag"}
    assert shown["lease.lease_s"] == {"value": "5.0", "source": "default"}
    assert invoke(["config"]) == 0
    assert "SILO_CLUSTER" in capsys.readouterr().out


def test_a_token_for_clients_is_derived_and_cannot_derive_further(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SILO_CLUSTER_TOKEN", "of the cluster")
    assert invoke(["token", "--role", "client"]) == 0
    derived = capsys.readouterr().out.strip()
    assert derived.startswith("client:")
    monkeypatch.setenv("SILO_CLUSTER_TOKEN", derived)
    assert invoke(["token", "--role", "admin"]) == ExitCode.USAGE


def test_without_arguments_there_is_help_and_no_empty_complaint(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke([]) == ExitCode.USAGE
    told = capsys.readouterr()
    assert "Usage: silo" in told.out + told.err
    assert "silo: \n" not in told.err


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["--version"]) == ExitCode.DONE
    assert capsys.readouterr().out.startswith("silo ")


def test_a_table_wider_than_the_terminal_is_not_cut(capsys: pytest.CaptureFixture[str]) -> None:
    name, address = "a-silo-with-a-long-name" * 5, "host-with-a-long-name.example.com:7000"
    terminal.show_rows([{"name": name, "address": address}])
    assert f"{name}  {address}" in capsys.readouterr().out


def test_one_call_held_is_one_call() -> None:
    outcome = MigrationOutcome(GrainId("room", "lobby"), MoveStatus.MOVED, held_calls=1)
    assert str(outcome).endswith(" 1 call held")


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["--help"]) == 0
    told = capsys.readouterr().out
    names = ("run", "dev", "migrate", "status", "cordon", "uncordon", "grains", "deactivate", "config", "token")
    for command in names:
        assert command in told


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NoGateway("why"), ExitCode.UNREACHABLE),
        (DirectoryUnavailable("why"), ExitCode.UNREACHABLE),
        (CallTimeout("why"), ExitCode.TIMED_OUT),
        (EndpointInUse("why"), ExitCode.REFUSED),
        (HandshakeRefused("why"), ExitCode.REFUSED),
        (InvalidIdentity("why"), ExitCode.USAGE),
        (Overloaded("why"), ExitCode.NOT_MET),
    ],
)
def test_an_exit_code_says_what_kind_of_error_it_was(error: SiloError, code: ExitCode) -> None:
    assert exit_code(error) == code


def test_no_error_has_two_exit_codes() -> None:
    listed = [kind for group, _ in EXIT_CODES for kind in group]
    assert not [(one, other) for one in listed for other in listed if one is not other and issubclass(one, other)]


def test_an_outcome_is_json_with_names_for_scripts() -> None:
    outcome = MigrationOutcome(
        GrainId("room", "lobby"), MoveStatus.MOVED, SiloAddress("h:1", 7), SiloAddress("h:2", 8), pause_s=0.004
    )
    found = json.loads(terminal.as_json(outcome))
    assert found["grain"] == "room/lobby"
    assert found["status"] == "moved"
    assert found["target"] == "h:2@8"
    assert found["pause_s"] == 0.004


def test_a_status_is_shown_as_tables(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.show({"cluster": "prod", "silos": [{"name": "silo-1", "grains": 3}, {"name": "silo-2", "grains": None}]})
    assert capsys.readouterr().out == textwrap.dedent(
        """\
        cluster: prod
        silos:
        name    grains
        silo-1  3
        silo-2  -
        """
    )


@pytest.mark.parametrize("flags", [("--redis", "redis://127.0.0.1:1"), ("--gateway", "127.0.0.1:1")], ids=" ".join)
def test_a_command_that_reaches_no_cluster_says_what_was_in_the_way(
    capsys: pytest.CaptureFixture[str], flags: tuple[str, str]
) -> None:
    assert invoke(["migrate", "room/lobby", *flags, "--timeout", "1"]) == ExitCode.UNREACHABLE
    assert "127.0.0.1:1" in capsys.readouterr().err
