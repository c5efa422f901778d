"""Processes that a warm one has forked are processes like those that are started afresh."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from silo.cli import ExitCode
from tests.process.stage import Stage
from tests.support.waiting import until
from tests.support.warm_popen import WarmServer, order_of

SILO = (sys.executable, "-m", "silo")
WAIT_S = 30.0


def state_of(pid: int) -> tuple[str, int, int]:
    """What the kernel says of a process: its state, its parent, its session."""
    state, parent, _, session, *_ = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return state, int(parent), int(session)


async def test_they_have_the_streams_the_folder_and_the_environment_that_they_are_given(
    warm_server: WarmServer, tmp_path: Path
) -> None:
    (tmp_path / "silo.toml").write_text('name = "from-the-file"\n', encoding="utf-8")
    errors = tmp_path / "errors"
    with errors.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            *(*SILO, "config", "--json", "--config", "silo.toml"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=file,
            cwd=tmp_path,
            env={**os.environ, "SILO_CLUSTER": "from-the-environment"},
            start_new_session=True,
        )
    assert process.pid in warm_server.forked
    output, _ = await asyncio.wait_for(process.communicate(), WAIT_S)
    shown = json.loads(output)
    assert (shown["name"]["value"], shown["cluster"]["value"]) == ("from-the-file", "from-the-environment")
    assert (process.returncode, errors.read_bytes()) == (ExitCode.DONE, b"")


async def test_their_exit_codes_and_errors_are_what_they_would_be(warm_server: WarmServer, tmp_path: Path) -> None:
    errors = tmp_path / "errors"
    with errors.open("wb") as file:
        process = await asyncio.create_subprocess_exec(*SILO, "nonsense", stderr=file, start_new_session=True)
    assert process.pid in warm_server.forked
    assert await asyncio.wait_for(process.wait(), WAIT_S) == ExitCode.USAGE
    assert errors.read_bytes().startswith(b"silo: ")


async def test_they_are_children_of_ours_in_sessions_of_their_own_that_are_stopped_killed_and_reaped(
    warm_server: WarmServer, make_stage: Callable[..., Stage]
) -> None:
    async with make_stage() as stage:
        await stage.start("silo-1")
        silo = stage.cluster["silo-1"]
        assert silo.pid in warm_server.forked
        assert state_of(silo.pid)[1:] == (os.getpid(), silo.pid)
        silo.pause()
        await until(lambda: state_of(silo.pid)[0] == "T")
        silo.resume()
        await until(lambda: state_of(silo.pid)[0] != "T")
        assert await silo.kill() == -signal.SIGKILL
        with pytest.raises(ProcessLookupError):
            os.kill(silo.pid, 0)
        await stage.start("silo-2")
        assert await stage.cluster["silo-2"].stop() == 0


async def test_a_text_is_run_as_it_would_be(warm_server: WarmServer) -> None:
    text = "import sys\nfrom silo.cli import ExitCode\nprint(__name__, sys.argv)\nsys.exit(ExitCode.REFUSED)"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", text, "one"), stdout=asyncio.subprocess.PIPE, start_new_session=True
    )
    assert process.pid in warm_server.forked
    output, _ = await asyncio.wait_for(process.communicate(), WAIT_S)
    assert (process.returncode, output) == (ExitCode.REFUSED, b"__main__ ['-c', 'one']\n")


@pytest.mark.fresh
async def test_what_is_marked_fresh_is_not_forked(warm_server: WarmServer) -> None:
    process = await asyncio.create_subprocess_exec(
        *SILO, "--version", stdout=asyncio.subprocess.PIPE, start_new_session=True
    )
    output, _ = await process.communicate()
    assert process.pid not in warm_server.forked
    assert output.startswith(b"silo ")


@pytest.mark.parametrize(
    "asked",
    [
        {"args": [sys.executable, "-c", "pass"]},
        {"args": [sys.executable, "-m", "http.server"]},
        {"args": "ls"},
        {"args": [*SILO, "run"], "env": {**os.environ, "PYTHONHASHSEED": "1"}},
        {"args": [*SILO, "run"], "start_new_session": False},
    ],
    ids=["another program", "another module", "a shell's line", "what is read at the start", "a session that is ours"],
)
def test_what_a_warm_process_cannot_become_is_started_afresh(asked: Mapping[str, object]) -> None:
    given = {"env": None, "cwd": None, "start_new_session": True, "pass_fds": ()}
    assert order_of({**given, "args": [*SILO, "run"]}) is not None
    assert order_of({**given, **asked}) is None


def test_a_sample_is_forked_and_so_are_the_silos_that_it_starts() -> None:
    given = {"env": None, "cwd": None, "start_new_session": True, "pass_fds": ()}
    sample = order_of({**given, "args": [sys.executable, "-m", "samples.chat"]})
    silo = order_of({**given, "args": [*SILO, "run"]})
    assert sample is not None
    assert silo is not None
    assert (sample.forks, silo.forks) == (True, False)
