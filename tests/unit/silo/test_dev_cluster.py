"""A development cluster: one console for all silos, and none of them outlives it."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import sys
import types
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from silo.dev_cluster import DevCluster, ScenarioFailed, run_dev_cluster, scenario_of
from silo.lifespan import READY
from silo.settings import SiloSettings

pytestmark = pytest.mark.usefixtures("warm_processes")

TIMEOUT_S = 20.0
HEAD = """
import asyncio, os, sys
from silo.lifespan import READY, stop_request

name = sys.argv[sys.argv.index("--name") + 1]

async def serve():
    async with stop_request(with_parent=True) as request:
        print(READY, name, "with", os.environ["SILO_REDIS"], flush=True)
        await request.made()
        print("drained", file=sys.stderr)
"""
SERVES = HEAD + "asyncio.run(serve())"
FAILS = HEAD + "sys.exit('cannot listen') if name == 'silo-2' else asyncio.run(serve())"
CRASHES = HEAD + "print(READY, name, flush=True) or sys.exit(9) if name == 'silo-2' else asyncio.run(serve())"
ALL_CRASH = HEAD + "print(READY, name, flush=True); sys.exit(9)"


class Screen(io.StringIO):
    """What a person would see, and a way to wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self._grew = asyncio.Event()

    def write(self, text: str, /) -> int:
        self._grew.set()
        return super().write(text)

    async def shows(self, text: str) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while text not in self.getvalue():
                self._grew.clear()
                await self._grew.wait()


def _cluster(script: str, screen: Screen, *, silos: int = 3, command: Sequence[str] = ()) -> DevCluster:
    return DevCluster(
        modules=["application"],
        silos=silos,
        settings=SiloSettings(cluster="dev", redis="redis://127.0.0.1:1"),
        command=command or (sys.executable, "-c", script),
        console=Console(file=screen, soft_wrap=True, highlight=False),
    )


@pytest.mark.process
async def test_all_silos_are_told_apart_and_drained_at_the_first_signal() -> None:
    screen = Screen()
    running = asyncio.create_task(run_dev_cluster(_cluster(SERVES, screen)))
    await screen.shows("3 silos are ready")
    os.kill(os.getpid(), signal.SIGTERM)
    assert await asyncio.wait_for(running, TIMEOUT_S) == 0
    for number in (1, 2, 3):
        assert f"silo-{number} {READY} silo-{number} with redis://127.0.0.1:1" in screen.getvalue()
        assert f"silo-{number} drained" in screen.getvalue()


@pytest.mark.process
async def test_a_silo_that_cannot_start_ends_the_cluster_with_its_code() -> None:
    screen = Screen()
    assert await asyncio.wait_for(run_dev_cluster(_cluster(FAILS, screen)), TIMEOUT_S) == 1
    assert "silo-2 cannot listen" in screen.getvalue()
    assert "silo-2 ended with code 1" in screen.getvalue()


@pytest.mark.process
async def test_a_silo_that_dies_later_is_reported_and_the_others_go_on() -> None:
    screen = Screen()
    running = asyncio.create_task(run_dev_cluster(_cluster(CRASHES, screen)))
    await screen.shows("silo-2 ended with code 9")
    await screen.shows("3 silos are ready")
    assert not running.done()
    os.kill(os.getpid(), signal.SIGINT)
    assert await asyncio.wait_for(running, TIMEOUT_S) == 0


@pytest.mark.process
async def test_without_any_silo_left_the_cluster_ends() -> None:
    screen = Screen()
    assert await asyncio.wait_for(run_dev_cluster(_cluster(ALL_CRASH, screen, silos=2)), TIMEOUT_S) == 1
    assert "no silo is left" in screen.getvalue()


async def test_a_command_that_does_not_exist_leaves_nothing_behind() -> None:
    with pytest.raises(FileNotFoundError):
        await run_dev_cluster(_cluster("", Screen(), command=["/no/such/command"]))


async def test_an_error_of_the_scenario_is_shown_from_the_scenario_on() -> None:
    async def scenario(client: object) -> None:
        raise LookupError("nobody is here")

    cluster = replace(_cluster(SERVES, Screen(), silos=1), scenario=scenario, once=True)
    with pytest.raises(ScenarioFailed) as failed:
        await asyncio.wait_for(run_dev_cluster(cluster), TIMEOUT_S)
    first, _, frame, *_ = str(failed.value).splitlines()
    assert first == "main(client) failed: LookupError: nobody is here"
    assert __file__ in frame
    assert "silo/dev_cluster.py" not in str(failed.value)


def test_a_modules_scenario_is_its_async_main_with_a_client() -> None:
    async def scenario(client: object) -> None: ...

    async def other() -> None: ...

    def blocking(client: object) -> None: ...

    module: Any = types.ModuleType("application")
    assert scenario_of(module) is None
    for main, found in ((scenario, scenario), (other, None), (blocking, None)):
        module.main = main
        assert scenario_of(module) is found
